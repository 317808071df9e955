//! `POST /v1/chat/completions`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Server;
use crate::error::ApiError;
use crate::messages::Conversation;
use crate::queue::{Question, Said, Waiting};
use crate::request::ChatRequest;
use crate::response::{Ended, Head};

/// Answers a chat request, whole or streamed.
pub(crate) async fn complete(
    State(server): State<Arc<Server>>,
    body: Result<Json<Value>, JsonRejection>,
) -> Result<Response, ApiError> {
    let mut request = ChatRequest::new(body?.0)?;
    server.check_model(request.model.as_deref())?;
    request.check()?;
    let messages = std::mem::take(&mut request.messages);
    let question = server.question(&request, Conversation::new(messages)?)?;
    let head = Head::new(&server.settings.model);
    let waiting = server.queue.add(question)?;
    if !request.stream {
        return Ok(Json(head.completion(whole(waiting).await?)).into_response());
    }
    let options = request.stream_options;
    let usage = options.is_some_and(|options| options.include_usage);
    Ok(streamed(waiting, head, usage).await?.into_response())
}

impl Server {
    /// The question of a request.
    fn question(
        &self,
        request: &ChatRequest,
        conversation: Conversation,
    ) -> Result<Question, ApiError> {
        let settings = &self.settings;
        let mut files = request.documents.clone();
        let named = conversation.files.into_iter();
        files.extend(named.filter(|id| !request.documents.contains(id)));
        Ok(Question {
            document: self.files.documents(&files)?,
            turns: conversation.turns,
            question: conversation.question,
            method: request.method(&settings.method)?,
            budget: request.budget(settings.budget)?,
            sampling: request.sampling(),
            max_tokens: request.max_tokens(settings.max_tokens)?,
            thinking: request.thinking,
            limits: settings.limits,
            vault: (settings.vault.clone()).filter(|_| request.vault != Some(false)),
            stop_texts: request.stop_texts(),
            map: request.map,
        })
    }
}

/// Waits for the end of an answer.
async fn whole(mut waiting: Waiting) -> Result<Ended, ApiError> {
    loop {
        match waiting.said.recv().await {
            Some(Said::Text(_)) => {}
            Some(Said::End(end)) => return end.map(|ended| *ended),
            None => return Err(ApiError::Bug("the engine's thread has ended".to_owned())),
        }
    }
}

/// The events of a piece of an answer; `usage`: the client asked for the cost.
fn events(head: &Head, usage: bool, said: Said) -> Vec<Value> {
    match said {
        Said::Text(text) => vec![head.chunk(json!({"content": text}), None)],
        Said::End(Ok(ended)) => {
            let mut last = head.chunk(json!({}), Some(ended.finish));
            last["kept"] = ended.kept;
            if usage {
                vec![last, head.usage_chunk(ended.usage)]
            } else {
                vec![last]
            }
        }
        Said::End(Err(error)) => vec![error.body()],
    }
}

/// How long a streamed answer waits for its first piece: a question that is refused meanwhile is an HTTP error.
const PATIENCE: Duration = Duration::from_secs(2);

/// The stream of an answer's pieces.
///
/// # Errors
/// If the question is refused before the stream begins.
async fn streamed(
    mut waiting: Waiting,
    head: Head,
    usage: bool,
) -> Result<impl IntoResponse + use<>, ApiError> {
    let first = match timeout(PATIENCE, waiting.said.recv()).await {
        Ok(Some(Said::End(Err(error)))) => return Err(error),
        Ok(first) => first,
        Err(_) => None,
    };
    let begin = head.chunk(json!({"role": "assistant", "content": ""}), None);
    let rest = stream::unfold(waiting, |mut waiting: Waiting| async move {
        let said = waiting.said.recv().await?;
        Some((said, waiting))
    });
    let said = stream::iter(first).chain(rest);
    let answer = said.flat_map(move |said| stream::iter(events(&head, usage, said)));
    let values = stream::iter([begin]).chain(answer);
    let texts = values.map(|value| value.to_string());
    let events = texts.chain(stream::iter(["[DONE]".to_owned()]));
    let events = events.map(|data| Ok::<_, Infallible>(Event::default().data(data)));
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}
