//! Frames of the worker's protocol and the messages in them.
#![no_main]

use kept_worker::protocol::{Frame, Reply, Request, read_frame};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fuzz_target!(|stream: &[u8]| {
    let mut rest = stream;
    while let Ok(Some(frame)) = read_frame(&mut rest) {
        survives::<Request>(&frame);
        survives::<Reply>(&frame);
    }
});

/// What is a message is the same message after it was sent on.
fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(frame: &Frame) {
    if let Ok(message) = frame.message::<T>() {
        let sent = Frame::json(&message).expect("a message is JSON");
        assert_eq!(sent.message::<T>().ok(), Some(message));
    }
}
