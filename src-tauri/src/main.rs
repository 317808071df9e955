//! The desktop app.
fn main() {
    kept_app::run();
}
