//! Chat templates, each with the conversation that it is given: the template, then messages after lines of their own.
//!
//! ```text
//! {% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}
//! === user
//! Who signs?
//! ```
#![no_main]

use kept_fuzz::forgive_libraries;
use kept_models::{ChatTemplate, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: forgive_libraries(), |data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.split("\n=== ");
    let source = parts.next().unwrap_or_default();
    let bos = Some("<s>".to_owned());
    let Ok(template) = ChatTemplate::from_source(source, bos, None) else {
        return;
    };
    let Ok(template) = template.at(1_800_000_000) else {
        panic!("it compiled before");
    };
    let message = |part: &str| {
        let (role, content) = part.split_once('\n').unwrap_or((part, ""));
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
        }
    };
    let messages: Vec<Message> = parts.map(message).take(20).collect();
    for thinking in [false, true] {
        let first = template.render(&messages, true, thinking);
        assert_eq!(first, template.render(&messages, true, thinking));
    }
});
