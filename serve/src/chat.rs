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
use crate::queue::{AnswerEvent, Question, WaitingQuestion};
use crate::request::ChatRequest;
use crate::response::{CompletedAnswer, CompletionHeader};

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
    let header = CompletionHeader::new(&server.settings.model);
    let waiting = server.queue.add(question)?;
    if !request.stream {
        return Ok(Json(header.completion(whole(waiting).await?)).into_response());
    }
    let options = request.stream_options;
    let usage = options.is_some_and(|options| options.include_usage);
    Ok(streamed(waiting, header, usage).await?.into_response())
}

impl Server {
    /// The question of a request.
    fn question(
        &self,
        request: &ChatRequest,
        conversation: Conversation,
    ) -> Result<Question, ApiError> {
        let settings = &self.settings;
        let mut files: Vec<String> = Vec::new();
        for id in request.documents.iter().cloned().chain(conversation.files) {
            if !files.contains(&id) {
                files.push(id);
            }
        }
        Ok(Question {
            documents: self.files.documents(&files)?,
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
async fn whole(mut waiting: WaitingQuestion) -> Result<CompletedAnswer, ApiError> {
    loop {
        match waiting.events.recv().await {
            Some(AnswerEvent::Text(_)) => {}
            Some(AnswerEvent::End(end)) => return end.map(|answer| *answer),
            None => return Err(ApiError::Bug("the engine's thread has ended".to_owned())),
        }
    }
}

/// The events of a piece of an answer; `usage`: the client asked for the cost.
fn events(header: &CompletionHeader, usage: bool, event: AnswerEvent) -> Vec<Value> {
    match event {
        AnswerEvent::Text(text) => vec![header.chunk(json!({"content": text}), None)],
        AnswerEvent::End(Ok(answer)) => {
            let mut last = header.chunk(json!({}), Some(answer.finish));
            last["kept"] = answer.kept;
            if usage {
                vec![last, header.usage_chunk(answer.usage)]
            } else {
                vec![last]
            }
        }
        AnswerEvent::End(Err(error)) => vec![error.body()],
    }
}

/// How long a streamed answer waits for its first piece: a question that is refused meanwhile is an HTTP error.
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The stream of an answer's pieces.
///
/// # Errors
/// If the question is refused before the stream begins.
async fn streamed(
    mut waiting: WaitingQuestion,
    header: CompletionHeader,
    usage: bool,
) -> Result<impl IntoResponse + use<>, ApiError> {
    let first = match timeout(FIRST_EVENT_TIMEOUT, waiting.events.recv()).await {
        Ok(Some(AnswerEvent::End(Err(error)))) => return Err(error),
        Ok(first) => first,
        Err(_) => None,
    };
    let begin = header.chunk(json!({"role": "assistant", "content": ""}), None);
    let rest = stream::unfold(waiting, |mut waiting: WaitingQuestion| async move {
        let event = waiting.events.recv().await?;
        Some((event, waiting))
    });
    let answer_events = stream::iter(first).chain(rest);
    let answer = answer_events.flat_map(move |event| stream::iter(events(&header, usage, event)));
    let values = stream::iter([begin]).chain(answer);
    let texts = values.map(|value| value.to_string());
    let events = texts.chain(stream::iter(["[DONE]".to_owned()]));
    let events = events.map(|data| Ok::<_, Infallible>(Event::default().data(data)));
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}
