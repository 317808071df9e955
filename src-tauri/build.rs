//! Lists the commands one by one, so that `capabilities/main.json` allows them one by one and no other command can be
//! called.

const CAPABILITIES: &str = include_str!("capabilities/main.json");

fn main() {
    let allowed = CAPABILITIES
        .split('"')
        .filter_map(|word| word.strip_prefix("allow-"));
    let commands: Vec<&str> = allowed
        .map(|command| &*command.replace('-', "_").leak())
        .collect();
    let manifest = tauri_build::AppManifest::new().commands(commands.leak());
    let attributes = tauri_build::Attributes::new().app_manifest(manifest);
    if let Err(error) = tauri_build::try_build(attributes) {
        println!("cargo::error={error:#}");
        std::process::exit(1);
    }
}
