//! The page's types are generated from the program's, and the page can call exactly the commands that the program has.

use std::collections::BTreeSet;

use kept_app::contract::*;
use kept_engine::Finish;
use kept_eval::fidelity::{
    Fidelity, HeadFigures, IndexFigures, MethodRun, ReferenceReport, RunReport, WaveletFigures,
};
use serde_json::Value;
use ts_rs::{Config, TS};

/// The generated file.
const TYPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ui/src/lib/contract.ts");
/// Set to write it again.
const UPDATE: &str = "KEPT_UPDATE";

const CALLS: &str = include_str!("../../../ui/src/lib/calls.ts");
const CAPABILITIES: &str = include_str!("../../capabilities/main.json");

const HEAD: &str = "\
// Generated from src-tauri/src/contract.rs and the engine's reports by
// `KEPT_UPDATE=1 cargo test -p kept-app --test app contract`. Do not edit.
//
// Offsets are UTF-16 code units of the document's text, that is, indices into the JavaScript string. Sizes are bytes.

/** Values of a method's parameters, by name, as typed; missing ones are at their defaults. */
export type Parameters = Record<string, string>;
";

/// The engine writes the fields of a run and of its result into one object.
const RUN_REPORT: &str = r"
/** A run: refused with a message, or with the fields of `MethodRun`. */
export type RunReport = RunFacts & ({ refused: string } | ({ refused: null } & MethodRun));
";

fn declared<T: TS>(config: &Config) -> String {
    let docs = T::docs().unwrap_or_default();
    format!("\n{docs}export {}\n", T::decl(config))
}

macro_rules! declare {
    ($($name:ty),* $(,)?) => {{
        let config = Config::new().with_large_int("number");
        let mut text = HEAD.to_owned();
        $(text += &declared::<$name>(&config);)*
        text + RUN_REPORT
    }};
}

#[test]
fn contract_ts_matches_the_rust_types() {
    let generated = declare!(
        Theme,
        Choice,
        Settings,
        ModelChoice,
        ModelFacts,
        Parameter,
        MethodFacts,
        PageRange,
        DocumentPart,
        OutlineEntry,
        DocumentFacts,
        Elsewhere,
        ElsewhereState,
        PendingFile,
        FileNeeds,
        WorkerStatus,
        WorkerState,
        Snapshot,
        ConversationEntry,
        FoundPassage,
        FoundPiece,
        Place,
        NoticeKind,
        AppEvent,
        ComparisonState,
        RunResult,
        ReferenceResult,
        ComparisonRun,
        Comparison,
        Gpus,
        Gpu,
        Fit,
        FoundModel,
        UnfinishedModel,
        ModelFolder,
        CatalogueModel,
        Library,
        DownloadState,
        Download,
        HubOffer,
        FitLine,
        Inspection,
        Memory,
        Refusal,
        RefusalCode,
        Estimate,
        Chosen,
        Source,
        Citation,
        Doubt,
        Attended,
        PictureOf,
        TurnState,
        Facts,
        Turn,
        Relation,
        Phase,
        Progress,
        TokenSlots,
        EarlierTurns,
        EarlierTurn,
        LayerRow,
        TableRow,
        Vault,
        StoredDocument,
        ReadAhead,
        Finish,
        ReferenceReport,
        HeadFigures,
        WaveletFigures,
        RunReport,
        MethodRun,
        Fidelity,
        IndexFigures,
    );
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(TYPES, &generated).expect("written");
    }
    let written = std::fs::read_to_string(TYPES).expect("the page's types");
    assert!(
        generated == written,
        "ui/src/lib/contract.ts is stale: run {UPDATE}=1 cargo test -p kept-app --test app contract"
    );
}

type Names = BTreeSet<String>;

#[test]
fn the_page_is_allowed_exactly_the_programs_commands() {
    let quoted = CALLS.split("('").skip(1);
    let called: Names = quoted
        .filter_map(|rest| Some(rest.split_once('\'')?.0.to_owned()))
        .collect();
    assert!(called.contains("map_table"));
    let capabilities: Value = serde_json::from_str(CAPABILITIES).expect("JSON");
    let allowed: Names = capabilities["permissions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|permission| permission.as_str().expect("a name").to_owned())
        .collect();
    let wanted: Names = called
        .iter()
        .map(|command| format!("allow-{}", command.replace('_', "-")))
        .collect();
    assert_eq!(allowed, wanted);
}
