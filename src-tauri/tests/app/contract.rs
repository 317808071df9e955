//! `ui/src/lib/contract.ts`, the Rust shapes, the list of commands and what the page is allowed: all the same.

use std::collections::{BTreeMap, BTreeSet};

use kept_app::contract::*;
use kept_engine::fidelity::{HeadFigures, WaveletFigures};
use serde::Serialize;
use serde_json::Value;

mod values;
use values::*;

const TYPES: &str = concat!(
    include_str!("../../../ui/src/lib/contract.ts"),
    include_str!("../../../ui/src/lib/contract-models.ts"),
    include_str!("../../../ui/src/lib/contract-comparison.ts")
);
const CAPABILITIES: &str = include_str!("../../capabilities/main.json");
const BUILD: &str = include_str!("../../build.rs");

type Names = BTreeSet<String>;

fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Names {
    names.into_iter().map(str::to_owned).collect()
}

/// Fields of `export interface NAME { ... }`.
fn interface(name: &str) -> Names {
    let start = TYPES
        .find(&format!("export interface {name} {{"))
        .unwrap_or_else(|| panic!("contract.ts has no {name}"));
    let body = &TYPES[start..];
    let body = &body[body.find('{').expect("opens") + 1..body.find("\n}").expect("closes")];
    names(body.lines().filter_map(|line| {
        let (name, _) = line.trim().split_once(':')?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then_some(name)
    }))
}

fn fields(value: &impl Serialize) -> Names {
    match serde_json::to_value(value).expect("JSON") {
        Value::Object(fields) => fields.into_iter().map(|(name, _)| name).collect(),
        other => panic!("{other} is no object"),
    }
}

#[test]
fn every_shape_has_the_fields_of_the_contract() {
    let snapshot =
        kept_app::state::AppState::new(kept_app::state::Remembered::default(), true).snapshot();
    let shapes: BTreeMap<&str, Names> = [
        ("Settings", fields(&settings())),
        ("ModelChoice", fields(&snapshot.models[0])),
        ("DocumentFacts", fields(&snapshot.document)),
        ("Snapshot", fields(&snapshot)),
        ("Memory", fields(&memory())),
        ("Progress", fields(&progress())),
        ("WorkerState", fields(&worker())),
        ("Turn", fields(&turn())),
        ("Choice", fields(&Choice::plain("", None))),
        ("Comparison", fields(&comparison())),
        (
            "ComparisonRun",
            fields(&ComparisonRun {
                choice: Choice::plain("", None),
                result: None,
            }),
        ),
        ("Library", fields(&library())),
        ("FoundModel", fields(&found_model())),
        ("CatalogueModel", fields(&catalogue_model())),
        ("Download", fields(&download())),
        ("HubOffer", fields(&hub_offer())),
        ("FitLine", fields(&fit_line())),
        ("Inspection", fields(&inspection())),
        (
            "UnfinishedModel",
            fields(&UnfinishedModel {
                id: String::new(),
                name: String::new(),
                bytes: None,
                place: String::new(),
                ours: true,
            }),
        ),
        (
            "ModelFolder",
            fields(&ModelFolder {
                id: String::new(),
                path: String::new(),
            }),
        ),
        (
            "LayerRow",
            fields(&LayerRow {
                number: 1,
                layer: None,
                window: None,
                mean: None,
            }),
        ),
        ("ReferenceResult", fields(&reference_result())),
        ("RunResult", fields(&run_result())),
        ("ReferenceReport", fields(&reference_report())),
        ("RunFacts", fields(&refused_run())),
        ("MethodRun", fields(&method_run())),
        ("Fidelity", fields(&fidelity())),
        ("IndexFigures", fields(&index_figures())),
        (
            "HeadFigures",
            fields(&HeadFigures {
                sparsity: 0.0,
                redundancy: 0.0,
            }),
        ),
        (
            "WaveletFigures",
            fields(&WaveletFigures {
                tokens: 0,
                first: 0,
                positions_per_point: 0,
                levels: Vec::new(),
            }),
        ),
        (
            "PageRange",
            fields(&PageRange {
                number: 1,
                start: 0,
                end: 0,
            }),
        ),
        (
            "ModelFacts",
            fields(&ModelFacts {
                name: String::new(),
                file: String::new(),
                quantisation: String::new(),
                architecture: String::new(),
                layers: 0,
                q_heads: 0,
                kv_heads: 0,
                head_dim: 0,
                context: 0,
                parameters: 0,
                weights_bytes: 0,
                bytes_per_row: 0,
                stretch: None,
                can_think: false,
                computes_on: String::new(),
                why_processor: None,
            }),
        ),
        ("GPUs", fields(&Gpus::default())),
        ("GraphicsCard", fields(&gpu())),
        (
            "MethodFacts",
            fields(&MethodFacts {
                name: String::new(),
                title: String::new(),
                paper: String::new(),
                keeps: String::new(),
                acts: String::new(),
                positions: String::new(),
                parameters: Vec::new(),
                streams: true,
            }),
        ),
        (
            "ParameterFacts",
            fields(&ParameterFacts {
                name: String::new(),
                default: String::new(),
                range: String::new(),
                meaning: String::new(),
            }),
        ),
        (
            "Estimate",
            fields(&Estimate {
                prompt_tokens: 0,
                rows: 0,
                memory: memory(),
                note: None,
                chosen: None,
                tokens_from_vault: 0,
                cache: String::new(),
            }),
        ),
        (
            "Source",
            fields(&Source {
                start: 0,
                end: 0,
                page: None,
                document: None,
                text: String::new(),
                weight: 0.0,
                kept: 0.0,
            }),
        ),
        (
            "Facts",
            fields(&Facts {
                finish: String::new(),
                prompt_tokens: 0,
                answer_tokens: 0,
                rows: 0.0,
                kept_bytes: 0,
                full_bytes: 0,
                first_token_seconds: 0.0,
                prefill_seconds: 0.0,
                decode_seconds: 0.0,
                tokens_per_second: 0.0,
                notes: Vec::new(),
                chosen: None,
                tokens_from_vault: 0,
                streamed: false,
                cache: String::new(),
            }),
        ),
        (
            "Chosen",
            fields(&Chosen {
                method: String::new(),
                rows: 0,
                reason: String::new(),
            }),
        ),
        ("Vault", fields(&vault())),
        (
            "DocumentPart",
            fields(&DocumentPart {
                name: String::new(),
                start: 0,
                end: 0,
                pages: 0,
            }),
        ),
        (
            "TokenSlots",
            fields(&TokenSlots {
                start: 0,
                end: 0,
                kept: 0,
                slots: 0,
                per_layer: Vec::new(),
                kv_heads: 0,
                tokens: 1,
                page: None,
                document: None,
            }),
        ),
        (
            "TableRow",
            fields(&TableRow {
                name: String::new(),
                start: 0,
                mean: 0.0,
                max: 0.0,
            }),
        ),
    ]
    .into();
    for (name, ours) in &shapes {
        assert_eq!(*ours, interface(name), "{name}");
    }
    let declared = TYPES.matches("export interface ").count();
    assert_eq!(shapes.len(), declared, "every interface is compared");
}

/// `| { event: 'name'; field: type; ... }`, by name.
fn events_of_the_contract() -> BTreeMap<String, Names> {
    let start = TYPES.find("export type AppEvent =").expect("AppEvent");
    let body = TYPES[start..].split("\n\n").next().expect("a type");
    body.lines()
        .filter_map(|line| line.trim().strip_prefix("| {")?.strip_suffix('}'))
        .map(|line| {
            let fields: Vec<(&str, &str)> = line
                .split(';')
                .filter_map(|field| field.split_once(':'))
                .map(|(name, kind)| (name.trim(), kind.trim()))
                .collect();
            let event = fields[0].1.trim_matches('\'').to_owned();
            (event, names(fields.iter().map(|(name, _)| *name)))
        })
        .collect()
}

#[test]
fn every_event_has_the_fields_of_the_contract() {
    let events = [
        AppEvent::Worker { worker: worker() },
        AppEvent::Methods {
            methods: Vec::new(),
        },
        AppEvent::Models {
            models: Vec::new(),
            settings: settings(),
        },
        AppEvent::Model {
            model: None,
            error: None,
        },
        AppEvent::Opening { name: None },
        AppEvent::Document {
            document: None,
            turns: Vec::new(),
        },
        AppEvent::Turn { turn: turn() },
        AppEvent::Token {
            turn: 1,
            text: String::new(),
        },
        AppEvent::Progress {
            turn: 1,
            progress: progress(),
            memory: memory(),
        },
        AppEvent::Map {
            turn: 1,
            layers_done: 0,
            layers: 0,
        },
        AppEvent::Comparison { comparison: None },
        AppEvent::ComparisonReference {
            comparison: 1,
            result: Box::new(reference_result()),
        },
        AppEvent::ComparisonRun {
            comparison: 1,
            run: 0,
            result: Box::new(run_result()),
        },
        AppEvent::ComparisonProgress {
            comparison: 1,
            run: None,
            sharing: 1,
            progress: progress(),
        },
        AppEvent::ComparisonEnded {
            comparison: 1,
            state: ComparisonState::Done,
            error: None,
        },
        AppEvent::Thinking { thinking: true },
        AppEvent::Vault {
            vault: Some(vault()),
        },
        AppEvent::Gpus {
            gpus: Gpus::default(),
        },
        AppEvent::Library {
            library: Box::new(library()),
        },
        AppEvent::Downloads {
            downloads: Vec::new(),
        },
        AppEvent::Replacing { name: None },
        AppEvent::Drag {
            files: 0,
            refusal: None,
        },
        AppEvent::Notice {
            kind: NoticeKind::Info,
            r#where: Place::Document,
            message: String::new(),
        },
    ];
    let ours: BTreeMap<String, Names> = events
        .iter()
        .map(|event| {
            let json = serde_json::to_value(event).expect("JSON");
            let name = json["event"].as_str().expect("a name").to_owned();
            (name, fields(event))
        })
        .collect();
    assert_eq!(ours, events_of_the_contract());
}

#[test]
fn words_are_those_of_the_contract() {
    let json = |value: &dyn erased::Json| value.json();
    for (value, word) in [
        (&Theme::System as &dyn erased::Json, "system"),
        (&WorkerStatus::Restarting, "restarting"),
        (&TurnState::Answering, "answering"),
        (&Phase::Answering, "answering"),
        (&Place::Conversation, "conversation"),
        (&Place::Comparison, "comparison"),
        (&ComparisonState::Stopped, "stopped"),
        (&Place::Models, "models"),
        (&Place::Settings, "settings"),
        (&Suits::TooLarge, "tooLarge"),
        (&DownloadState::Stopping, "stopping"),
        (&NoticeKind::Error, "error"),
    ] {
        assert_eq!(json(value), word);
        assert!(TYPES.contains(&format!("'{word}'")));
    }
}

mod erased {
    /// JSON of values of several types in one list.
    pub trait Json {
        fn json(&self) -> serde_json::Value;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("JSON")
        }
    }
}

#[test]
fn the_page_may_call_every_command_and_nothing_else() {
    let start = TYPES
        .find("export type CommandName =")
        .expect("CommandName");
    let contract = names(
        TYPES[start..]
            .lines()
            .skip(1)
            .map_while(|line| line.trim().strip_prefix("| '")?.strip_suffix('\'')),
    );
    assert!(contract.contains("map_table"));
    let list = BUILD.split("&[").nth(1).expect("the list");
    let built = names(
        list.split(']')
            .next()
            .expect("its end")
            .split('"')
            .skip(1)
            .step_by(2),
    );
    assert_eq!(built, contract);
    let capabilities: Value = serde_json::from_str(CAPABILITIES).expect("JSON");
    let allowed: Names = capabilities["permissions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|permission| permission.as_str().expect("a name").to_owned())
        .collect();
    let wanted: Names = contract
        .iter()
        .map(|command| format!("allow-{}", command.replace('_', "-")))
        .collect();
    assert_eq!(allowed, wanted);
}

/// A run with a result has the fields of both: the engine writes them side by side.
#[test]
fn a_run_with_a_result_has_its_own_fields_and_those_of_the_result() {
    let mut report = refused_run();
    (report.refused, report.result) = (None, Some(method_run()));
    let both = &interface("RunFacts") | &interface("MethodRun");
    assert_eq!(fields(&report), both);
}
