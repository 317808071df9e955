//! Frames of the worker's protocol and the messages in them.
#![no_main]

use kept_worker::protocol::{ProtocolError, Reply, Request, read_message, write_message};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fuzz_target!(|stream: &[u8]| {
    survives::<Request>(stream);
    survives::<Reply>(stream);
});

/// What is a message is the same message after it was sent on.
fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(mut stream: &[u8]) {
    loop {
        let (message, bytes) = match read_message::<T>(&mut stream) {
            Ok(Some(read)) => read,
            Err(ProtocolError::Message(_)) => continue,
            Ok(None) | Err(_) => return,
        };
        let mut sent = Vec::new();
        write_message(&mut sent, &message, &bytes).expect("a message is JSON");
        let again = read_message(&mut sent.as_slice()).expect("a message");
        assert_eq!(again, Some((message, bytes)));
    }
}
