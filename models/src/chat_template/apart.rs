//! Templates in a process of their own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kept_sandbox::{Limits, Task};
use serde::{Deserialize, Serialize};

use super::jinja::{Conversation, Jinja, Source};
use crate::ModelError;

/// For one rendering. Templates of real models take 1 ms and 1 MB.
const LIMITS: Limits = Limits {
    memory: 256 << 20,
    seconds: 2,
    reply: 4 << 20,
};
/// The most renderings that are remembered.
const MAX_RENDERINGS: usize = 16;

/// The task of the process that renders templates. A program passes it to [`kept_sandbox::enter`].
pub const RENDERING: Task = Task {
    name: "template",
    work,
};

#[derive(Serialize, Deserialize)]
struct Request {
    source: Source,
    /// `None` asks whether the template compiles.
    conversation: Option<Conversation>,
}

/// The renderings of one template. They contain no text of documents or questions, so few are different.
#[derive(Default)]
pub(super) struct Apart {
    done: Mutex<HashMap<Conversation, String>>,
}

impl Apart {
    pub(super) fn check(source: &Source) -> Result<Self, ModelError> {
        run(source, None).map(|_| Self::default())
    }

    /// # Errors
    /// `Template` if the template refuses the conversation or exceeds a limit.
    pub(super) fn render(&self, source: &Source, of: Conversation) -> Result<String, ModelError> {
        let done = || self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = done().get(&of) {
            return Ok(text.clone());
        }
        let text = run(source, Some(of.clone()))?;
        let mut done = done();
        if done.len() >= MAX_RENDERINGS {
            done.clear();
        }
        done.insert(of, text.clone());
        Ok(text)
    }
}

fn run(source: &Source, conversation: Option<Conversation>) -> Result<String, ModelError> {
    let failed = |what: String| ModelError::Template { what };
    let request = Request {
        source: source.clone(),
        conversation,
    };
    let request = serde_json::to_vec(&request).map_err(|error| failed(error.to_string()))?;
    let reply = kept_sandbox::run(RENDERING.name, &[&request], LIMITS);
    let reply = reply.map_err(|why| failed(why.to_string()))?;
    let reply: Result<String, String> = serde_json::from_slice(&reply)
        .map_err(|_| failed(kept_sandbox::Exceeded::Senseless.to_string()))?;
    reply.map_err(failed)
}

/// The task: a request to a reply. A request that is none is a bug, and gets no reply.
fn work(request: Vec<u8>) -> Vec<u8> {
    let Request {
        source,
        conversation,
    } = serde_json::from_slice(&request).expect("a request");
    let rendered = Jinja::compile(&source).and_then(|jinja| match conversation {
        None => Ok(String::new()),
        Some(conversation) => jinja.render(&conversation),
    });
    let reply = rendered.map_err(|error| match error {
        ModelError::Template { what } => what,
        other => other.to_string(),
    });
    serde_json::to_vec(&reply).expect("text is JSON")
}
