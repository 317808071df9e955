//! Lists the commands one by one, so that `capabilities/main.json` allows them one by one and no other command can be
//! called.

fn main() {
    let commands = &[
        "subscribe",
        "snapshot",
        "document_text",
        "choose_document",
        "open_sample",
        "close_document",
        "choose_model",
        "save_settings",
        "save_draft",
        "estimate",
        "ask",
        "stop",
        "check_method",
        "compare",
        "stop_comparison",
        "save_comparison",
        "replace_document",
        "new_conversation",
        "open_conversation",
        "rename_conversation",
        "pin_conversation",
        "delete_conversation",
        "restore_conversation",
        "search_conversations",
        "export_conversation",
        "import_conversation",
        "restart_worker",
        "map_ends",
        "map_counts",
        "map_strip",
        "map_token",
        "map_table",
        "map_layers",
        "look_for_models",
        "add_model_folder",
        "forget_model_folder",
        "inspect_model",
        "use_model",
        "remove_model",
        "remove_unfinished",
        "resume_unfinished",
        "hub_offers",
        "start_download",
        "resume_download",
        "pause_download",
        "cancel_download",
        "set_thinking",
        "clear_vault",
        "stop_reading",
        "resume_reading",
        "add_document",
        "remove_document",
        "report",
    ];
    let manifest = tauri_build::AppManifest::new().commands(commands);
    let attributes = tauri_build::Attributes::new().app_manifest(manifest);
    if let Err(error) = tauri_build::try_build(attributes) {
        println!("cargo::error={error:#}");
        std::process::exit(1);
    }
}
