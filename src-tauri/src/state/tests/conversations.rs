//! The list of conversations.

use std::path::Path;

use kept_engine::Finish;
use kept_engine::documents::{Page, Part};
use serde_json::{Value, json};

use super::*;
use crate::contract::{ConversationEntry, Doubt, TurnState};
use crate::messages;
use crate::state::{Loaded, Open, OpenDocument};

/// Asks and answers a question.
fn converse(story: &mut Story, question: &str) {
    let (_, ticket) = story.ask(question);
    story.hear(answered(ticket, "Because", Finish::End));
    story.look();
}

fn list(story: &mut Story) -> Vec<ConversationEntry> {
    story.state.snapshot().conversations
}

fn titles(story: &mut Story) -> Vec<String> {
    list(story).into_iter().map(|entry| entry.title).collect()
}

fn current(story: &mut Story) -> u64 {
    story.state.snapshot().conversation.expect("one is open")
}

/// What the store would load of the open conversation.
fn loaded(story: &mut Story) -> Loaded {
    let conversation = current(story);
    Loaded {
        conversation,
        document: story.state.document().expect("open").clone(),
        comparison: None,
        turns: story.state.snapshot().turns,
    }
}

/// The writes since the last look, other than settings and turns.
fn saved(story: &mut Story) -> Vec<String> {
    let name = |effect: &Effect| match effect {
        Effect::Save(Save::Conversation(conversation)) => {
            Some(format!("conversation {}", conversation.id))
        }
        Effect::Save(Save::Open(Open { conversation, .. })) => {
            Some(format!("open {conversation:?}"))
        }
        Effect::Save(Save::HideConversation(id)) => Some(format!("hide {id}")),
        _ => None,
    };
    story.look().iter().filter_map(name).collect()
}

#[test]
fn the_first_question_begins_a_conversation_and_its_title() {
    let mut story = Story::ready();
    assert_eq!(list(&mut story), []);
    let choice = Choice::plain("snapkv", None);
    story
        .state
        .ask("  Why?  ", choice, Relation::default())
        .expect("accepted");
    assert_eq!(saved(&mut story), ["conversation 1", "open Some(1)"]);
    let [entry] = list(&mut story).try_into().expect("one");
    assert_eq!(
        (entry.title.as_str(), entry.document.as_str()),
        ("Why?", "sample.txt")
    );
    assert!(entry.updated > 1_700_000_000 && entry.questions == 1 && !entry.pinned);
    // The conversation is written before its turn.
    let mut story = Story::ready();
    story.ask("Why?");
    let of = |effect: &Effect| match effect {
        Effect::Save(Save::Conversation(_)) => Some('c'),
        Effect::Save(Save::Turn { .. }) => Some('t'),
        _ => None,
    };
    let order: String = story.seen.iter().filter_map(of).collect();
    assert_eq!(order, "ct");
}

#[test]
fn a_new_conversation_has_the_same_document_and_sees_no_earlier_turn() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let document = story.document();
    story.state.new_conversation();
    assert_eq!(saved(&mut story), ["open None"]);
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.document, document);
    assert_eq!((snapshot.turns, snapshot.conversation), (vec![], None));
    converse(&mut story, "Two?");
    assert_eq!(list(&mut story).len(), 2);
}

#[test]
fn a_conversation_is_opened_with_its_document_and_turns() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let first = loaded(&mut story);
    story.state.open_path("/a.txt".into());
    let reply = document("a.txt");
    story.hear_bytes(reply, b"a");
    converse(&mut story, "Two?");
    story.look();
    story.state.show_conversation(first.clone()).expect("shown");
    let requests = story.requests();
    assert!(
        matches!(requests.as_slice(), [Request::AdoptDocument { document }] if document.name == "sample.txt"),
        "{requests:?}"
    );
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.turns, first.turns);
    assert_eq!(snapshot.conversation, Some(first.conversation));
    // The same document again needs no transfer.
    story.state.new_conversation();
    story.state.show_conversation(first.clone()).expect("shown");
    assert_eq!(story.requests(), []);
    // Not after a deletion.
    story.delete();
    let refused = story.state.show_conversation(first);
    assert_eq!(refused, Err(messages::NO_CONVERSATION.to_owned()));
}

#[test]
fn of_the_conversations_that_are_being_loaded_the_last_one_chosen_is_opened() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let one = loaded(&mut story);
    story.state.new_conversation();
    converse(&mut story, "Two?");
    let two = loaded(&mut story);
    story.state.new_conversation();
    let (first, second) = (one.conversation, two.conversation);
    let choose = |story: &mut Story, id| story.state.choose_conversation(id).expect("there");
    let opens = |story: &mut Story, of: &Loaded| {
        let shown = story.state.conversation_loaded(of.clone());
        (shown.expect("there"), story.state.snapshot().conversation)
    };
    choose(&mut story, first);
    choose(&mut story, second);
    // The larger one arrives last.
    assert_eq!(opens(&mut story, &two), (true, Some(second)));
    assert_eq!(opens(&mut story, &one), (false, Some(second)));
    // What the user does meanwhile counts: a stop, a new conversation, a file.
    let meanwhile: [fn(&mut AppState); 3] = [AppState::stop, AppState::new_conversation, |state| {
        state.open_path("/a.txt".into())
    }];
    for act in meanwhile {
        choose(&mut story, first);
        act(&mut story.state);
        assert!(!opens(&mut story, &one).0);
    }
    // The file in its turn, which the worker is reading by now.
    choose(&mut story, first);
    assert_eq!(story.state.snapshot().opening, None);
    assert_eq!(opens(&mut story, &one), (true, Some(first)));
    let missing = story.state.choose_conversation(9);
    assert_eq!(missing, Err(messages::NO_CONVERSATION.to_owned()));
}

#[test]
fn titles_and_pins_are_kept_and_sorted() {
    let known = |id: u64, updated: u64| ConversationEntry {
        id,
        title: format!("Question {id}"),
        document: "a.txt".into(),
        document_id: 1,
        pages: 0,
        page_noun: "page".into(),
        first: format!("Question {id}"),
        questions: 1,
        updated,
        pinned: false,
    };
    let mut story = Story::after(Remembered {
        conversations: vec![known(1, 30), known(2, 10), known(3, 20)],
        started_before: true,
        ..Remembered::default()
    });
    assert_eq!(
        titles(&mut story),
        ["Question 1", "Question 3", "Question 2"]
    );
    story.look();
    story.state.pin_conversation(2, true).expect("pinned");
    story
        .state
        .rename_conversation(3, "  Rent ")
        .expect("renamed");
    assert_eq!(saved(&mut story), ["conversation 2", "conversation 3"]);
    assert_eq!(titles(&mut story), ["Question 2", "Question 1", "Rent"]);
    story.state.rename_conversation(3, " ").expect("renamed");
    story.state.pin_conversation(2, false).expect("unpinned");
    assert_eq!(
        titles(&mut story),
        ["Question 1", "Question 3", "Question 2"]
    );
    let long = "x".repeat(5000);
    story.state.rename_conversation(1, &long).expect("renamed");
    assert_eq!(titles(&mut story)[0].len(), 200);
    let missing = Err(messages::NO_CONVERSATION.to_owned());
    assert_eq!(story.state.rename_conversation(9, "x"), missing);
    assert_eq!(story.state.pin_conversation(9, true), missing);
    assert_eq!(story.state.delete_conversation(9), missing);
    assert_eq!(story.state.restore_conversation(1), missing);
}

#[test]
fn deleted_conversations_are_restored_in_any_order() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    story.state.new_conversation();
    converse(&mut story, "Two?");
    story.look();
    story.delete();
    assert_eq!(saved(&mut story), ["hide 2", "open None"]);
    let snapshot = story.state.snapshot();
    assert!(snapshot.document.is_some_and(|d| d.sample), "stays open");
    assert_eq!(snapshot.turns, []);
    assert_eq!(titles(&mut story), ["One?"]);
    story.state.restore_conversation(2).expect("restored");
    assert_eq!(titles(&mut story).len(), 2);
    story.look();
    story.state.delete_conversation(1).expect("deleted");
    story.state.delete_conversation(2).expect("deleted");
    assert_eq!(saved(&mut story), ["hide 1", "hide 2"]);
    story.state.restore_conversation(1).expect("restored");
    assert!(story.state.restore_conversation(1).is_err(), "it is back");
    assert_eq!(titles(&mut story), ["One?"]);
    // Ids are not used again.
    converse(&mut story, "Three?");
    assert_eq!(current(&mut story), 3);
}

#[test]
fn a_deleted_conversation_leaves_nothing_in_the_vaults() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let name = story.document().expect("open").name;
    story.look();
    story.delete();
    let cleared = |story: &mut Story| -> Vec<(String, bool)> {
        let cleared = |request: Request| match request {
            Request::ClearVaultsOf {
                document, whole, ..
            } => Some((document, whole)),
            _ => None,
        };
        story.requests().into_iter().filter_map(cleared).collect()
    };
    // The document is still open, and its vault serves the next conversation.
    assert_eq!(cleared(&mut story), [(name.clone(), false)]);
    story.state.close_document();
    assert_eq!(cleared(&mut story), [(name.clone(), true)]);
    // A worker that ends before it has answered is asked again.
    story.state.worker_died("The engine has crashed.");
    story.hello();
    assert_eq!(cleared(&mut story), [(name.clone(), true)]);
    story.hear(model("mini"));
    // Of two conversations about a document the first leaves its turns.
    story.state.open_sample();
    converse(&mut story, "One?");
    story.state.new_conversation();
    converse(&mut story, "Two?");
    story.state.close_document();
    assert_eq!(cleared(&mut story), []);
    let ids: Vec<u64> = list(&mut story).iter().map(|entry| entry.id).collect();
    story.state.delete_conversation(ids[0]).expect("deleted");
    assert_eq!(cleared(&mut story), [(name.clone(), false)]);
    story.state.delete_conversation(ids[1]).expect("deleted");
    assert_eq!(cleared(&mut story), [(name.clone(), true)]);
    // One that comes back keeps what it reads again.
    story.state.restore_conversation(ids[1]).expect("restored");
    story.state.open_sample();
    story.look();
    story.state.close_document();
    assert_eq!(cleared(&mut story), []);
    // Of a chat only the turns go, and a document that is opened again keeps its vault.
    story.state.chat();
    converse(&mut story, "Who are you?");
    story.look();
    story.delete();
    assert_eq!(cleared(&mut story), [(String::new(), false)]);
    story.state.open_sample();
    story.state.delete_conversation(ids[1]).expect("deleted");
    story.state.open_sample();
    story.look();
    story.state.close_document();
    assert_eq!(cleared(&mut story), []);
}

/// An added document does not change what another conversation is about.
#[test]
fn a_shared_document_is_not_extended() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let first = story.document().expect("open").id;
    story.state.new_conversation();
    converse(&mut story, "Two?");
    story.state.add_path("/b.txt".into());
    let reply = document("both");
    story.hear_bytes(reply, b"both");
    let grown = story.document().expect("open");
    assert!(grown.id > first && story.state.snapshot().turns.len() == 1);
    let documents: Vec<String> = list(&mut story).into_iter().map(|c| c.document).collect();
    assert_eq!(documents, ["both", "sample.txt"]);
}

#[test]
fn what_is_said_below_an_answer_is_exported() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let mut answered = loaded(&mut story);
    let export = |answered: &crate::state::Loaded, name: &str| {
        crate::exported::export(std::path::Path::new(name), "Rent", answered).expect("a format")
    };
    let turn = &mut answered.turns[0];
    turn.answer = "Größe: €5. Yes.".into();
    let facts = turn.facts.as_mut().expect("answered");
    facts.citations = vec![kept_engine::Citation { end: 10, source: 0 }];
    facts.turns_seen = 1;
    let mut again = answered.turns[0].clone();
    (again.id, again.version_of) = (9, Some(answered.turns[0].id));
    again.facts.as_mut().expect("answered").turns_seen = 0;
    answered.turns.push(again);
    let cited = export(&answered, "/x/a");
    assert!(cited.contains("\nGröße: €5. [1] Yes.\n"), "{cited}");
    assert!(cited.contains("\n> [1] "), "{cited}");
    assert_eq!(
        cited.matches(", without earlier questions*").count(),
        1,
        "{cited}"
    );
    let html = export(&answered, "/x/a.html");
    assert!(
        html.contains("€5. [1] Yes.") && html.contains("<blockquote>[1] <mark"),
        "{html}"
    );
    answered.turns.truncate(1);
    let facts = answered.turns[0].facts.as_mut().expect("answered");
    facts.finish = Finish::Length;
    facts.notes = vec!["1 & 2 stand nowhere.".into()];
    facts.citations.clear();
    let noted = export(&answered, "/x/a");
    assert!(
        noted.contains("\n> ") && !noted.contains("[1]"),
        "no sentence cites it: {noted}"
    );
    assert!(
        noted.contains(
            "\n*The answer reached the maximum length set in Settings.*\n\n*1 & 2 stand nowhere.*\n"
        ),
        "{noted}"
    );
    answered.turns[0].state = TurnState::Stopped;
    let noted = export(&answered, "/x/a");
    assert!(
        noted.contains("*1 & 2 stand nowhere.*") && !noted.contains("maximum"),
        "{noted}"
    );
    let turn = &mut answered.turns[0];
    turn.state = TurnState::Done;
    let facts = turn.facts.as_mut().expect("answered");
    (facts.finish, facts.notes) = (Finish::End, Vec::new());
    facts.doubt = Some(Doubt::Unseen);
    let html = export(&answered, "/x/a.html");
    assert!(
        html.contains("<em>This answer stands on no passage the model clearly looked at.</em>"),
        "{html}"
    );
}

#[test]
fn an_exported_conversation_is_imported_as_another_one() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let open = loaded(&mut story);
    let path = |name: &str| std::path::PathBuf::from(format!("/x/{name}"));
    let json = crate::exported::export(&path("a.JSON"), "Rent", &open).unwrap();
    let (title, document, turns) =
        crate::exported::import("a.json", json.as_bytes()).expect("read");
    story
        .state
        .import_conversation(&title, document, turns)
        .expect("imported");
    assert_eq!(titles(&mut story), ["Rent", "One?"]);
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.turns[0].answer, "Because");
    assert_ne!(snapshot.turns[0].id, open.turns[0].id);
    assert_ne!(
        snapshot.document.map(|d| d.id),
        Some(open.document.facts.id)
    );
    // Texts to read.
    let mut answered = open.clone();
    answered.turns[0].question = "Is 1 < 2 & <b>?".into();
    let html = crate::exported::export(&path("a.html"), "T", &answered).unwrap();
    assert!(
        html.contains("<h2>Is 1 &lt; 2 &amp; &lt;b&gt;?</h2>"),
        "{html}"
    );
    let text = crate::exported::export(&path("a"), "Rent", &answered).unwrap();
    assert_eq!(
        crate::exported::export(&path("a.PDF"), "Rent", &answered),
        Err(messages::no_such_export("pdf"))
    );
    assert!(
        text.starts_with("# Rent\n\nAbout sample.txt\n\n## Is 1 < 2"),
        "{text}"
    );
    assert!(text.contains("\nBecause [1]\n"));
    // An attempt without an answer is left out where another one has it.
    let failed = crate::contract::Turn {
        id: 99,
        answer: String::new(),
        state: TurnState::Failed,
        version_of: Some(answered.turns[0].id),
        ..answered.turns[0].clone()
    };
    answered.turns.push(failed);
    assert_eq!(
        crate::exported::export(&path("a"), "Rent", &answered).unwrap(),
        text
    );
    answered.turns.remove(0);
    let text = crate::exported::export(&path("a"), "Rent", &answered).unwrap();
    assert!(text.contains("*Not answered.*"), "{text}");
    // What is no export is refused, a damaged one with the place of the error.
    let refused = |text: &str| match crate::exported::import("a.json", text.as_bytes()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text} was read"),
    };
    assert!(refused("{").contains("a.json is no exported conversation"));
    assert!(refused(&json.replacen("\"turns\": [", "\"turns\": [7,", 1)).contains("line "));
    assert!(refused("{\"kept_conversation\": 2}").contains("newer Kept"));
    let empty = json.split("\"turns\"").next().expect("text").to_owned() + "\"turns\": []}";
    assert!(refused(&empty).contains("no question"));
}

/// The paths of all values of a JSON document.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                paths(item, &format!("{path}/{i}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, item) in fields {
                paths(item, &format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn a_forged_conversation_is_refused_or_shown() {
    let mut story = Story::ready();
    converse(&mut story, "One?");
    let mut open = loaded(&mut story);
    let info = open.document.info.clone();
    let page = |number, range| Page { number, range };
    let part = |range| Part {
        range,
        document: info.clone(),
    };
    let mut joined = info.clone();
    joined.pages = vec![page(1, 0..3), page(2, 3..9)];
    joined.parts = vec![part(0..4), part(4..9)];
    let text = "# \u{e9}\u{1f600} and # more".into();
    open.document = OpenDocument::new(0, joined, text, false).into();
    let json = crate::exported::export(Path::new("a.json"), "Rent", &open).unwrap();
    let whole: Value = serde_json::from_str(&json).expect("JSON");
    let mut all = Vec::new();
    paths(&whole, "", &mut all);
    let forged = [
        json!(null),
        json!(0),
        json!(1),
        json!(4),
        json!(-1),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!("\u{1f600}\u{0}"),
        json!([]),
        json!({}),
    ];
    let mut shown = 0;
    for path in &all {
        for value in &forged {
            let mut changed = whole.clone();
            *changed.pointer_mut(path).expect("a path") = value.clone();
            let bytes = serde_json::to_vec(&changed).expect("JSON");
            let Ok((title, document, turns)) = crate::exported::import("a.json", &bytes) else {
                continue;
            };
            let mut story = Story::ready();
            if story
                .state
                .import_conversation(&title, document, turns)
                .is_err()
            {
                continue;
            }
            shown += 1;
            let snapshot = serde_json::to_value(story.state.snapshot()).expect("JSON");
            assert!(snapshot["turns"].is_array(), "{path} = {value}");
            let again = loaded(&mut story);
            for name in ["a.json", "a.html", "a.md"] {
                crate::exported::export(Path::new(name), &title, &again).unwrap();
            }
        }
    }
    assert!(shown > 100, "{shown} of {}", all.len() * forged.len());
    // Every beginning of the file, and nesting without an end.
    for end in (0..json.len()).filter(|end| json.is_char_boundary(*end)) {
        let read = crate::exported::import("a.json", &json.as_bytes()[..end]);
        assert!(read.is_err() || json[end..].trim().is_empty(), "{end}");
    }
    assert!(crate::exported::import("a.json", "[".repeat(1 << 20).as_bytes()).is_err());
}
