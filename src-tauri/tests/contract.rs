//! `ui/src/lib/contract.ts`, the Rust shapes, the list of commands and what the page is allowed: all the same.

use std::collections::{BTreeMap, BTreeSet};

use kept_app::contract::*;
use kept_engine::fidelity::{
    Fidelity, HeadFigures, IndexFigures, MethodRun, ReferenceReport, RunReport, WaveletFigures,
};
use kept_engine::{Finish, Method, RetentionMap};
use serde::Serialize;
use serde_json::Value;

const TYPES: &str = include_str!("../../ui/src/lib/contract.ts");
const CAPABILITIES: &str = include_str!("../capabilities/main.json");
const BUILD: &str = include_str!("../build.rs");

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

fn reference_report() -> ReferenceReport {
    ReferenceReport {
        run: String::new(),
        method: String::new(),
        model: String::new(),
        prompt_tokens: 0,
        answer: String::new(),
        answer_tokens: 0,
        finish: Finish::End,
        kv_bytes: 0,
        first_token_seconds: 0.0,
        decode_tokens_per_second: 0.0,
        heads: Vec::new(),
        wavelet: None,
    }
}

fn index_figures() -> IndexFigures {
    IndexFigures {
        jaccard: None,
        jaccard_first_head: None,
        layer_similarity: Vec::new(),
        position_histogram: Vec::new(),
        position_entropy: 0.0,
        position_entropy_most: 0.0,
    }
}

fn fidelity() -> Fidelity {
    Fidelity {
        kl: None,
        top1: None,
        attention_recall: None,
        attention_recall_per_layer: Vec::new(),
        kl_per_token: Vec::new(),
        first_kl: 0.0,
    }
}

fn method_run() -> MethodRun {
    MethodRun {
        budget_rows: 0,
        rows_per_layer: Vec::new(),
        kv_bytes: 0,
        kv_bytes_full: 0,
        prefill_seconds: 0.0,
        select_seconds: 0.0,
        first_token_seconds: 0.0,
        decode_tokens_per_second: 0.0,
        answer: String::new(),
        same_answer: true,
        fidelity: fidelity(),
        indices: index_figures(),
        map: RetentionMap::default(),
    }
}

/// A run with no result: the fields that every run has.
fn refused_run() -> RunReport {
    let method = Method {
        name: String::new(),
        parameters: Vec::new(),
    };
    RunReport::new(&method, "", 0, Err(String::new()))
}

fn run_result() -> RunResult {
    RunResult {
        seconds: 0.0,
        report: refused_run(),
    }
}

fn reference_result() -> ReferenceResult {
    ReferenceResult {
        seconds: 0.0,
        report: reference_report(),
    }
}

fn comparison() -> Comparison {
    Comparison {
        id: 1,
        question: String::new(),
        document: String::new(),
        model: String::new(),
        max_tokens: 64,
        state: ComparisonState::Running,
        error: None,
        reference: None,
        runs: Vec::new(),
        current: None,
        progress: None,
    }
}

fn settings() -> Settings {
    kept_app::desk::default_settings()
}

fn memory() -> Memory {
    Memory {
        weights: 0,
        kept: 0,
        kept_full: 0,
        tables: 0,
        scratch: 0,
        available: None,
        total: None,
    }
}

fn progress() -> Progress {
    Progress {
        phase: Phase::Reading,
        tokens_done: 0,
        tokens_total: 0,
        tokens_per_second: 0.0,
        seconds_left: 0.0,
    }
}

fn worker() -> WorkerState {
    WorkerState {
        state: Life::Starting,
        message: None,
    }
}

fn turn() -> Turn {
    Turn {
        id: 1,
        question: String::new(),
        answer: String::new(),
        state: TurnState::Asked,
        error: None,
        method: String::new(),
        parameters: Parameters::new(),
        budget: None,
        model: String::new(),
        sources: Vec::new(),
        facts: None,
        has_map: false,
    }
}

#[test]
fn every_shape_has_the_fields_of_the_contract() {
    let snapshot =
        kept_app::desk::Desk::new(kept_app::desk::Remembered::default(), true).snapshot();
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
            }),
        ),
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
            }),
        ),
        (
            "Source",
            fields(&Source {
                start: 0,
                end: 0,
                page: None,
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
                page: None,
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
            progress: progress(),
        },
        AppEvent::ComparisonEnded {
            comparison: 1,
            state: ComparisonState::Done,
            error: None,
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
        (&Life::Restarting, "restarting"),
        (&TurnState::Answering, "answering"),
        (&Phase::Answering, "answering"),
        (&Place::Conversation, "conversation"),
        (&Place::Comparison, "comparison"),
        (&ComparisonState::Stopped, "stopped"),
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
