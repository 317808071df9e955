//! The dispatcher without an app: behaviour after a bug, and models that do not fit in memory together.

use std::fs::File;
use std::io::{PipeReader, pipe};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;

use kept_engine::MethodSpec;
use kept_engine::documents::Document;
use kept_worker::protocol::{AskRequest, EstimateRequest, read_message};

use super::*;
use crate::work::EngineHealth;

fn next(replies: &mut PipeReader) -> Reply {
    read_message(replies).unwrap().expect("a reply").0
}

/// A running dispatcher: the pipe of its replies, and a function that sends it inputs.
fn at_work(free_before_opening: fn(&OpenModel) -> bool) -> (PipeReader, impl Fn(Input)) {
    let (replies, write) = pipe().unwrap();
    let output = Output::new(File::from(OwnedFd::from(write)));
    let (inbox, inputs) = channel();
    let dispatcher = Dispatcher {
        free_before_opening,
        ..Dispatcher::new(output, inbox.clone())
    };
    std::thread::spawn(move || dispatcher.run(inputs));
    let say = move |input| assert!(inbox.send(input).is_ok(), "the dispatcher runs");
    (replies, say)
}

fn open(model: &str) -> Input {
    let model = Request::OpenModel {
        model: model.to_owned(),
        stretch: None,
    };
    Input::Request(model, Vec::new())
}

fn adopt(text: &str) -> Input {
    let document = Document::from_bytes("note.txt", text.as_bytes().to_vec()).unwrap();
    Input::Request(Request::AdoptDocument { document }, text.into())
}

/// Memory of the GPU holds only one of the models.
#[test]
fn previous_model_returns_if_the_next_fails_to_open() {
    let (mut replies, say) = at_work(|_| true);
    let file = |reply: Reply| match reply {
        Reply::Model { model } => model.file,
        other => panic!("{other:?}"),
    };
    say(open("mini"));
    assert_eq!(file(next(&mut replies)), "mini.gguf");
    say(open("/no/such/model.gguf"));
    let reply = next(&mut replies);
    assert!(
        matches!(&reply, Reply::Failed { what: Failure::Model, message, .. } if message.contains("there is no such file")),
        "{reply:?}"
    );
    say(adopt("The tide was low."));
    let counted = next(&mut replies);
    assert!(matches!(counted, Reply::Tokens { refusal: None, .. }));
    // The model that is opened again counts the document again.
    say(open("/no/such/model.gguf"));
    let failed = next(&mut replies);
    assert!(matches!(failed, Reply::Failed { .. }), "{failed:?}");
    let counted = next(&mut replies);
    assert!(matches!(counted, Reply::Tokens { refusal: None, .. }));
    let other = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/group2-llama3-tied.gguf"
    );
    say(open(other));
    assert_eq!(file(next(&mut replies)), "group2-llama3-tied.gguf");
    let counted = next(&mut replies);
    assert!(matches!(counted, Reply::Tokens { refusal: None, .. }));
}

/// After a bug the model is opened again and serves the next question.
#[test]
fn model_is_reopened_after_a_panic() {
    let (mut replies, say) = at_work(|_| false);
    say(open("mini"));
    assert!(matches!(next(&mut replies), Reply::Model { .. }));
    let reply = Reply::failed(Some(1), Failure::Ask, "a bug", false);
    say(Input::Ended {
        reply: reply.clone(),
        engine_health: EngineHealth::Broken,
    });
    assert_eq!(next(&mut replies), reply);
    // The app did not request the model, so it gets no reply; but document tokens are counted with the new model.
    say(adopt("The tide was low."));
    let reply = next(&mut replies);
    assert!(
        matches!(reply, Reply::Tokens { refusal: None, .. }),
        "{reply:?}"
    );
}

/// The app opens another document while a question waits for a section of the first to be read.
#[test]
fn question_is_about_the_document_that_was_open_when_it_was_asked() {
    let (mut replies, say) = at_work(|_| false);
    say(open("mini"));
    say(adopt(&"The tide was low. ".repeat(500)));
    let counted = |replies: &mut PipeReader| loop {
        if let Reply::Tokens { tokens, .. } = next(replies) {
            return tokens;
        }
    };
    let tokens = counted(&mut replies);
    let of = EstimateRequest {
        method: MethodSpec::plain("snapkv"),
        budget: None,
        cache: None,
        memory: None,
        max_tokens: None,
    };
    let request = |request| Input::Request(request, Vec::new());
    say(request(Request::ReadDocument { ticket: 1, of }));
    let ask = AskRequest {
        turns: Vec::new(),
        instructions: String::new(),
        question: "When?".to_owned(),
        method: MethodSpec::plain("snapkv"),
        budget: None,
        max_tokens: 1,
        temperature: 0.0,
        seed: 0,
        repeat_penalty: None,
        thinking: false,
        cache: None,
        memory: None,
    };
    say(request(Request::Ask { ticket: 2, ask }));
    say(adopt("The quay was dry."));
    let read = loop {
        match next(&mut replies) {
            Reply::Prompt {
                document_tokens, ..
            } => break document_tokens,
            Reply::Failed { what, message, .. } => assert_eq!(what, Failure::Read, "{message}"),
            _ => {}
        }
    };
    assert_eq!(read, tokens);
}
