//! The `kept` terminal program.
fn main() {}
