//! Comparisons: filled run by run, stopped, refused, dropped, exported.

use kept_engine::MethodSpec;
use kept_eval::fidelity::{
    Fidelity, HeadFigures, IndexFigures, MethodRun, ReferenceReport, RunReport,
};
use kept_worker::protocol::Failure;
use serde_json::Value;

use super::*;
use crate::contract::{ComparisonState, ElsewhereState, Place, RefusalCode, TurnState};
use crate::messages;
use crate::state::{ComparedMaps, Loaded, StoredComparison};

/// The reply with the full cache's run of `ticket`.
pub fn reference(ticket: u64) -> Reply {
    Reply::Reference {
        ticket,
        seconds: 2.0,
        report: Box::new(ReferenceReport {
            run: "reference".into(),
            method: "full".into(),
            model: "mini".into(),
            prompt_tokens: 100,
            answer: "Because".into(),
            answer_tokens: 2,
            finish: kept_engine::Finish::End,
            kv_bytes: 400,
            first_token_seconds: 1.0,
            decode_tokens_per_second: 8.0,
            heads: vec![vec![HeadFigures {
                sparsity: 0.5,
                redundancy: 0.25,
            }]],
            wavelet: None,
        }),
    }
}

fn figures() -> MethodRun {
    MethodRun {
        budget_rows: 25,
        rows_per_layer: vec![25, 25],
        kv_bytes: 100,
        cache: "f16".into(),
        kv_bytes_full: 400,
        prefill_seconds: 1.0,
        select_seconds: 0.1,
        first_token_seconds: 1.1,
        decode_tokens_per_second: 9.0,
        answer: "Because".into(),
        finish: kept_engine::Finish::End,
        same_answer: true,
        fidelity: Fidelity {
            kl: Some(0.01),
            top1: Some(1.0),
            attention_recall: Some(0.9),
            attention_recall_per_layer: vec![0.9, 0.9],
            kl_per_token: vec![0.01, 0.01],
            first_kl: 0.0,
        },
        indices: IndexFigures {
            jaccard: Some(0.5),
            jaccard_first_head: Some(0.5),
            layer_similarity: vec![vec![1.0, 0.5], vec![0.5, 1.0]],
            position_histogram: vec![0.5, 0.5],
            position_entropy: 0.69,
            position_entropy_most: 0.69,
        },
        map: Default::default(),
    }
}

fn run(ticket: u64, run: usize, result: Result<MethodRun, String>) -> Reply {
    let method = MethodSpec {
        name: "snapkv".into(),
        parameters: vec![("w".into(), "8".into())],
    };
    Reply::Run {
        ticket,
        run,
        seconds: 3.0,
        report: Box::new(RunReport::new(&method, "25%", 100, result)),
    }
}

fn two() -> Vec<Choice> {
    let mut first = Choice::plain("snapkv", Some("25%"));
    first.parameters.insert("w".into(), "8".into());
    vec![first, Choice::plain("h2o", Some("4"))]
}

fn begun() -> (Story, u64) {
    let mut story = Story::ready();
    let id = story.state.compare(" Why? ", two()).expect("accepted");
    (story, id)
}

#[test]
fn runs_come_one_by_one_and_a_refused_one_stands_in_its_row() {
    let (mut story, id) = begun();
    let effects = story.look();
    let sent = effects.iter().find_map(|effect| match effect {
        Effect::Worker {
            request: Request::Compare { compare, .. },
            ..
        } => Some(compare.clone()),
        _ => None,
    });
    let sent = sent.expect("the worker is asked");
    let runs = sent.runs;
    assert_eq!((sent.question.as_str(), sent.max_tokens), ("Why?", 64));
    assert_eq!(runs[0].method.parameters, [("w".into(), "8".into())]);
    assert_eq!(runs[1].budget.as_deref(), Some("4"));
    story.hear(reference(id));
    story.hear(run(id, 0, Ok(figures())));
    let needed = "H2O needs a budget of at least 10 rows per head (5 recent, 4 sinks), but the budget is 4 of the prompt's 100 tokens; raise the budget to 10 or set less";
    story.hear(run(id, 1, Err(needed.into())));
    story.hear(Reply::Compared { ticket: id });
    let comparison = story.state.snapshot().comparison.expect("a comparison");
    assert_eq!(comparison.state, ComparisonState::Done);
    assert!(comparison.reference.is_some());
    let results: Vec<_> = comparison.runs.iter().map(|r| r.result.clone()).collect();
    let first = results[0].clone().expect("done").report;
    assert_eq!(first.result.map(|r| r.kv_bytes), Some(100));
    assert_eq!(
        results[1].clone().expect("done").report.refused.as_deref(),
        Some(
            "H2O needs a budget of at least 10 rows per head (5 recent, 4 sinks), but the budget is 4 of the prompt's 100 tokens; raise the budget to 10 or set less."
        )
    );
    let told: Vec<&str> = story.events().iter().filter_map(name).collect();
    assert_eq!(told, ["reference", "run", "run", "ended"]);
    story.ask("And now?");
}

fn name(event: &AppEvent) -> Option<&'static str> {
    match event {
        AppEvent::ComparisonReference { .. } => Some("reference"),
        AppEvent::ComparisonRun { .. } => Some("run"),
        AppEvent::ComparisonEnded { .. } => Some("ended"),
        _ => None,
    }
}

#[test]
fn a_comparison_that_is_stopped_keeps_its_rows() {
    let (mut story, id) = begun();
    story.hear(reference(id));
    story.hear(run(id, 0, Ok(figures())));
    story.look();
    story.state.stop_comparison();
    assert_eq!(story.requests(), [Request::Stop { ticket: id }]);
    stopped(&mut story, id);
    let comparison = story.state.snapshot().comparison.expect("a comparison");
    assert_eq!(
        (comparison.state, comparison.error),
        (ComparisonState::Stopped, None)
    );
    assert!(comparison.runs[0].result.is_some() && comparison.runs[1].result.is_none());
    story.look();
    story.state.stop_comparison();
    assert_eq!(story.requests(), [], "nothing runs any more");
    story.ask("And now?");
}

/// Ends what runs, as the worker does after a stop.
fn stopped(story: &mut Story, ticket: u64) {
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Compare,
        "stopped",
        true,
    ));
}

/// The runs that the worker was asked for since the last look, with their ticket.
fn asked(story: &mut Story) -> (u64, Vec<String>) {
    let requests = story.requests();
    let [Request::Compare { ticket, compare }] = requests.as_slice() else {
        panic!("{requests:?}");
    };
    let names = compare.runs.iter().map(|run| run.method.name.clone());
    (*ticket, names.collect())
}

#[test]
fn a_stopped_comparison_continues_with_the_runs_that_it_lacks() {
    let (mut story, id) = begun();
    let refused = story.state.continue_comparison();
    assert_eq!(refused, Err(messages::BUSY_COMPARING.to_owned()));
    story.hear_bytes(reference(id), &[1, 0, 0, 0]);
    story.hear_bytes(run(id, 0, Ok(figures())), &[7]);
    stopped(&mut story, id);
    story.look();
    story.state.continue_comparison().expect("continued");
    let (next, runs) = asked(&mut story);
    assert_eq!(runs, ["h2o"]);
    story.hear_bytes(reference(next), &[1, 0, 0, 0]);
    story.hear_bytes(run(next, 0, Ok(figures())), &[9]);
    story.hear(Reply::Compared { ticket: next });
    let comparison = story.state.snapshot().comparison.expect("a comparison");
    assert_eq!(comparison.state, ComparisonState::Done);
    assert!(comparison.runs.iter().all(|run| run.result.is_some()));
    assert_eq!(story.state.compared_map(next, Some(0)), Ok(vec![7]));
    assert_eq!(story.state.compared_map(next, Some(1)), Ok(vec![9]));
    assert!(story.state.compared_map(id, Some(1)).is_err(), "of another");
    let refused = story.state.continue_comparison();
    assert_eq!(refused, Err(messages::NOTHING_TO_CONTINUE.to_owned()));
}

#[test]
fn a_comparison_of_another_model_does_not_continue() {
    let (mut story, id) = begun();
    stopped(&mut story, id);
    let mut comparison = story.state.snapshot().comparison.expect("a comparison");
    comparison.model = "another".into();
    let mut later = Story::after(Remembered {
        document: Some((**story.state.document().expect("open")).clone()),
        comparison: Some(StoredComparison {
            comparison,
            maps: ComparedMaps::default(),
        }),
        ..Remembered::default()
    });
    later.hello();
    later.hear(model("mini"));
    let refused = later.state.continue_comparison();
    assert_eq!(refused, Err(messages::compared_with("another")));
}

/// What is stored of the comparison since the last look: its finished runs, and its maps.
fn saved(story: &mut Story) -> Vec<String> {
    let name = |effect: &Effect| match effect {
        Effect::Save(Save::Comparison { comparison, .. }) => Some(match comparison {
            Some(comparison) => {
                let done = comparison.runs.iter().filter(|run| run.result.is_some());
                format!("{} done", done.count())
            }
            None => "none".to_owned(),
        }),
        Effect::Save(Save::ComparedMap { run, bytes, .. }) => Some(format!("{run:?} {bytes:?}")),
        _ => None,
    };
    story.look().iter().filter_map(name).collect()
}

#[test]
fn a_comparison_is_stored_run_by_run_and_returns_with_its_document() {
    let (mut story, id) = begun();
    assert_eq!(saved(&mut story), [""; 0], "nothing is known yet");
    story.hear_bytes(reference(id), &[1, 0, 0, 0]);
    assert_eq!(saved(&mut story), ["0 done", "None [1, 0, 0, 0]"]);
    story.hear_bytes(run(id, 0, Ok(figures())), &[7]);
    assert_eq!(saved(&mut story), ["1 done", "Some(0) [7]"]);
    // Kept is closed now, and opened again.
    let stored = StoredComparison {
        comparison: story.state.snapshot().comparison.expect("a comparison"),
        maps: ComparedMaps {
            ends: vec![1, 0, 0, 0],
            shares: [(0, vec![7])].into(),
        },
    };
    let document = story.state.document().expect("open").clone();
    let mut later = Story::after(Remembered {
        document: Some((*document).clone()),
        comparison: Some(stored.clone()),
        ..Remembered::default()
    });
    let comparison = later.state.snapshot().comparison.expect("a comparison");
    assert_eq!(comparison.state, ComparisonState::Stopped);
    assert_eq!(
        later.state.compared_map(comparison.id, Some(0)),
        Ok(vec![7])
    );
    later.hello();
    later.hear(model("mini"));
    later.look();
    later.state.continue_comparison().expect("continued");
    assert_eq!(asked(&mut later).1, ["h2o"]);
    // A conversation about another document, and back.
    stopped(&mut story, id);
    let (_, ticket) = story.ask("And now?");
    story.hear(Reply::failed(Some(ticket), Failure::Ask, "stopped", true));
    let conversation = story.state.snapshot().conversation.expect("open");
    story.state.open_text("Another.".into()).expect("opened");
    assert_eq!(story.state.snapshot().comparison, None);
    story.state.choose_conversation(conversation).expect("one");
    let loaded = Loaded {
        conversation,
        document,
        comparison: Some(stored),
        turns: Vec::new(),
    };
    assert_eq!(story.state.conversation_loaded(loaded), Ok(true));
    let comparison = story.state.snapshot().comparison.expect("a comparison");
    assert_eq!(comparison.state, ComparisonState::Stopped);
    // A second conversation about the same document has it too.
    story.state.new_conversation();
    assert!(story.state.snapshot().comparison.is_some());
}

#[test]
fn what_cannot_be_compared_is_refused_with_a_sentence() {
    let mut story = Story::ready();
    let refused = |story: &mut Story, question: &str, runs: Vec<Choice>| {
        story.state.compare(question, runs).expect_err("refused")
    };
    assert_eq!(refused(&mut story, " ", two()), messages::EMPTY_QUESTION);
    assert_eq!(
        refused(&mut story, "Why?", Vec::new()),
        messages::NOTHING_TO_COMPARE
    );
    let many = vec![Choice::plain("snapkv", None); 201];
    assert!(refused(&mut story, "Why?", many).contains("201"));
    let magic = vec![Choice::plain("magic", None)];
    assert!(refused(&mut story, "Why?", magic).contains("'magic'"));
    let zero = vec![Choice::plain("snapkv", Some("0%"))];
    assert!(refused(&mut story, "Why?", zero).contains("0%"));
    assert_eq!(story.state.snapshot().comparison, None);
    story.ask("Why?");
    assert_eq!(refused(&mut story, "Why?", two()), messages::BUSY);
    let (mut story, _) = begun();
    assert_eq!(refused(&mut story, "Why?", two()), messages::BUSY_COMPARING);
    let asked = story.try_to_ask("Why?");
    assert!(asked.is_ok());
    assert_eq!(story.turn().state, TurnState::Waiting, "for its end");
}

#[test]
fn a_comparison_goes_on_without_its_document_and_a_question_waits_for_its_end() {
    let (mut story, id) = begun();
    story.look();
    story.state.open_sample();
    let effects = story.look();
    assert!(!effects.iter().any(|effect| matches!(
        effect,
        Effect::Worker {
            request: Request::Stop { .. },
            ..
        }
    )));
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Page(AppEvent::Comparison { comparison: None })
    )));
    assert_eq!(story.state.snapshot().comparison, None);
    let turn = story.try_to_ask("Why?");
    assert!(turn.is_ok());
    assert_eq!(story.requests(), [], "the worker is still busy");
    story.hear_bytes(reference(id), &[1, 0, 0, 0]);
    story.hear_bytes(run(id, 0, Ok(figures())), &[7]);
    assert_eq!(
        saved(&mut story),
        ["0 done", "None [1, 0, 0, 0]", "1 done", "Some(0) [7]"]
    );
    let elsewhere = |story: &mut Story| {
        let all = story.state.snapshot().elsewhere.into_iter();
        all.map(|left| (left.question, left.state))
            .collect::<Vec<_>>()
    };
    let compared = |state| [("Why?".to_owned(), state)];
    assert_eq!(elsewhere(&mut story), compared(ElsewhereState::Comparing));
    assert_eq!(story.state.snapshot().elsewhere[0].runs, Some([1, 2]));
    story.hear(Reply::Compared { ticket: id });
    assert!(matches!(story.requests().as_slice(), [Request::Ask { .. }]));
    assert_eq!(elsewhere(&mut story), compared(ElsewhereState::Done));
    // Opened again, its results are those in memory.
    let conversation = story.state.snapshot().elsewhere[0].conversation;
    story.state.choose_conversation(conversation).expect("one");
    let document = story.state.document().expect("open").clone();
    story.load(conversation, document, Vec::new());
    let comparison = story.state.snapshot().comparison.expect("a comparison");
    assert_eq!(
        (comparison.id, comparison.state),
        (id, ComparisonState::Done)
    );
    let left = elsewhere(&mut story);
    assert_eq!(left, [("Why?".to_owned(), ElsewhereState::Answering)]);
}

#[test]
fn a_comparison_of_a_document_that_was_left_ends_with_the_worker() {
    let (mut story, _) = begun();
    story.state.open_sample();
    story.state.worker_died("It ended.");
    let [left] = story.state.snapshot().elsewhere.try_into().expect("one");
    assert_eq!(left.state, ElsewhereState::Failed);
    assert!(!story.state.is_busy());
}

/// It is listed with the conversation that began it, also after another one about its document was open.
#[test]
fn a_comparison_is_found_in_the_conversation_that_began_it() {
    let (mut story, id) = begun();
    let document = story.state.document().expect("open").clone();
    let first = story.state.snapshot().conversation.expect("open");
    story.state.new_conversation();
    story.state.open_sample();
    let [left] = story.state.snapshot().elsewhere.try_into().expect("one");
    assert_eq!(
        (left.conversation, left.state),
        (first, ElsewhereState::Comparing)
    );
    story.state.choose_conversation(first).expect("one");
    story.load(first, document, Vec::new());
    let snapshot = story.state.snapshot();
    let comparison = snapshot.comparison.expect("a comparison");
    assert_eq!(comparison.state, ComparisonState::Running);
    assert_eq!((comparison.id, snapshot.elsewhere), (id, vec![]));
    // Without its conversation it could not be found again.
    story.state.new_conversation();
    story.state.delete_conversation(first).expect("deleted");
    story.look();
    story.state.open_text("Another.".into()).expect("opened");
    assert!(story.requests().contains(&Request::Stop { ticket: id }));
    assert!(story.state.snapshot().elsewhere.is_empty());
}

/// One method twice, with different parameters: both reach the engine, and the export distinguishes them.
#[test]
fn a_method_is_compared_with_itself_under_other_parameters() {
    let mut runs = two();
    runs[1] = runs[0].clone();
    runs[1].parameters.insert("sinks".into(), "0".into());
    let mut story = Story::ready();
    let id = story.state.compare("Why?", runs).expect("accepted");
    let sent = story.look().iter().find_map(|effect| match effect {
        Effect::Worker {
            request: Request::Compare { compare, .. },
            ..
        } => Some(compare.runs.clone()),
        _ => None,
    });
    let sent = sent.expect("the worker is asked");
    story.hear(reference(id));
    for (index, run) in sent.iter().enumerate() {
        story.hear(Reply::Run {
            ticket: id,
            run: index,
            seconds: 3.0,
            report: Box::new(RunReport::new(&run.method, "25%", 100, Ok(figures()))),
        });
    }
    let (_, json) = story.state.exported_comparison().expect("something");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let labels = [0, 1].map(|run| json["runs"][run]["label"].as_str().map(str::to_owned));
    assert_eq!(
        labels.map(Option::unwrap),
        ["snapkv[w=8]", "snapkv[w=8,sinks=0]"]
    );
}

/// Invalid parameters are refused before any request, with the sentence that the page shows at the field.
#[test]
fn parameters_are_checked_for_a_method_without_setting_them() {
    let check = |method: &str, name: &str, value: &str| {
        crate::state::check_method(method, &[(name.into(), value.into())].into())
    };
    assert_eq!(check("snapkv", "w", "8"), Ok(()));
    assert_eq!(
        check("snapkv", "kernel", "4"),
        Err(Refusal {
            message: "“4” is not possible: kernel takes an odd whole number from 1 to 1023."
                .to_owned(),
            code: Some(RefusalCode::Parameter {
                name: "kernel".to_owned()
            }),
        })
    );
    assert!(check("snapkv", "nothing", "1").is_err());
    assert!(check("nothing", "w", "8").is_err());
}

#[test]
fn what_is_exported_is_what_the_terminal_prints() {
    let (mut story, id) = begun();
    assert_eq!(
        story.state.exported_comparison(),
        Err(messages::NO_COMPARISON.to_owned())
    );
    story.hear(reference(id));
    story.hear(run(id, 0, Ok(figures())));
    let (name, json) = story.state.exported_comparison().expect("something");
    assert_eq!(name, "sample compared.json");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["complete"], false);
    assert_eq!(json["reference"]["heads"][0][0]["sparsity"], 0.5);
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["runs"][0]["fidelity"]["kl"], 0.01);
    assert_eq!(json["runs"][0]["parameters"][0], "w=8");
    story.look();
    let folder = std::path::Path::new("/home/ann/out.json");
    let place = Place::Comparison;
    story.state.exported(place, "comparison", folder, None);
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    story
        .state
        .exported(place, "comparison", folder, Some(full));
    let told: Vec<(Place, String)> = story
        .events()
        .into_iter()
        .filter_map(|event| match event {
            AppEvent::Notice {
                r#where, message, ..
            } => Some((r#where, message)),
            _ => None,
        })
        .collect();
    assert_eq!(
        told,
        [
            (
                Place::Comparison,
                messages::exported("comparison", "out.json")
            ),
            (Place::Comparison, messages::not_exported("out.json")),
        ]
    );
}
