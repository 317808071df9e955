//! The desk without a window: what it does after a bug.

use std::fs::File;
use std::io::{PipeReader, pipe};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;

use kept_engine::documents::Document;
use kept_engine::protocol::read_frame;

use super::*;

fn next(replies: &mut PipeReader) -> Reply {
    let frame = read_frame(replies).unwrap().expect("a reply");
    frame.message().unwrap()
}

/// After a bug the model is opened again, and the next question finds it.
#[test]
fn after_a_bug_the_model_is_opened_again() {
    let (mut replies, write) = pipe().unwrap();
    let output = Output::new(File::from(OwnedFd::from(write)));
    let (inbox, inputs) = channel();
    let desk = Desk::new(output, inbox.clone());
    std::thread::spawn(move || desk.run(inputs));
    let say = |input| assert!(inbox.send(input).is_ok(), "the desk listens");
    let model = Request::OpenModel {
        model: "mini".to_owned(),
        stretch: None,
    };
    say(Input::Request(model, Vec::new()));
    assert!(matches!(next(&mut replies), Reply::Model { .. }));
    let reply = Reply::Failed {
        ticket: Some(1),
        what: Failure::Ask,
        message: "a bug".to_owned(),
        stopped: false,
    };
    say(Input::Ended {
        reply: reply.clone(),
        left: Left::Broken,
    });
    assert_eq!(next(&mut replies), reply);
    // Nobody asked for the model, so nobody is told of it; but there is one to count a document's tokens for.
    let document = Document::from_bytes("note.txt", b"The tide was low.".to_vec()).unwrap();
    let adopt = Request::AdoptDocument {
        document: facts::document(&document),
    };
    say(Input::Request(adopt, document.text.into_bytes()));
    let reply = next(&mut replies);
    assert!(
        matches!(reply, Reply::Tokens { fits: true, .. }),
        "{reply:?}"
    );
}
