//! Kept over HTTP: the chat API that OpenAI's clients speak, with documents, methods and budgets.
//!
//! ```text
//! client -> guard.rs (token, Host, Origin) -> chat.rs -> messages.rs -> queue.rs -> one engine thread
//!                                             files.rs (documents in memory)
//! ```
//!
//! One question runs at a time; others wait in a queue. A client that goes away ends its question. The server keeps no
//! state but the uploaded documents: each request carries its conversation, and the vault knows the rows of its turns.

mod chat;
mod error;
mod files;
mod guard;
mod messages;
mod queue;
mod request;
mod response;
mod stop_text;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::policies::Budget;
use kept_engine::vault::VaultFolder;
use kept_engine::{Engine, Limits, MethodSpec};
use serde_json::{Value, json};
use tokio::time::sleep;

use files::Files;
use guard::Guard;
use queue::Queue;

/// Bytes of a request with messages.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// How long answers may take to end after the server was stopped.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What the server does when a request does not say it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the model for clients.
    pub model: String,
    /// What every request must send as its bearer token.
    pub token: String,
    /// Web pages that may ask, such as `https://chat.example`; pages of this computer always may.
    pub origins: Vec<String>,
    /// The method.
    pub method: MethodSpec,
    /// The budget; `None` is the engine's default.
    pub budget: Option<Budget>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// Limits of prefill and memory.
    pub limits: Limits,
    /// The folder of the vaults and the type of their rows, if vaults are used.
    pub vault: Option<(VaultFolder, PackedRows)>,
}

/// What every handler needs.
struct Server {
    settings: Settings,
    files: Files,
    queue: Queue,
    /// Seconds since 1970 when the server started.
    started: u64,
}

/// Answers requests on `listener` until `stop` is requested. The answer that is being written then ends with its text so
/// far.
///
/// # Errors
/// If the listener cannot be used, or a GPU was lost: the engine then answers nothing.
pub fn serve(
    engine: Engine,
    listener: TcpListener,
    settings: Settings,
    stop: &Stop,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = Arc::new(Server {
            queue: Queue::start(engine, stop.clone()),
            files: Files::default(),
            started: response::now(),
            settings,
        });
        let router = router(&server, address);
        let ending = ended(server.clone(), stop.clone());
        let serving = axum::serve(listener, router).with_graceful_shutdown(ending);
        tokio::select! {
            served = async { serving.await } => served?,
            () = async { requested(stop).await; sleep(LAST_WORDS).await } => {}
        }
        server
            .queue
            .lost()
            .map_or(Ok(()), |lost| Err(io::Error::other(lost)))
    })
}

/// Waits until `stop` is requested, and then ends all questions.
async fn ended(server: Arc<Server>, stop: Stop) {
    requested(&stop).await;
    server.queue.end();
}

/// Waits until `stop` is requested.
async fn requested(stop: &Stop) {
    while !stop.is_requested() {
        sleep(Duration::from_millis(50)).await;
    }
}

fn router(server: &Arc<Server>, address: SocketAddr) -> Router {
    let guard = Guard::new(&server.settings, address);
    let files = post(files::upload)
        .layer(DefaultBodyLimit::disable())
        .get(files::list);
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/files", files)
        .route("/v1/files/{id}", get(files::show).delete(files::remove))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .layer(middleware::from_fn_with_state(
            Arc::new(guard),
            guard::check,
        ))
        .with_state(server.clone())
}

fn model_object(server: &Server) -> Value {
    json!({
        "id": server.settings.model,
        "object": "model",
        "created": server.started,
        "owned_by": "kept",
    })
}

async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model_object(&server)]}))
}

async fn model(
    State(server): State<Arc<Server>>,
    axum::extract::Path(name): axum::extract::Path<String>,
) -> Result<Json<Value>, error::ApiError> {
    server.check_model(Some(&name))?;
    Ok(Json(model_object(&server)))
}

impl Server {
    /// # Errors
    /// If `named` is another model than the one that is open.
    fn check_model(&self, named: Option<&str>) -> Result<(), error::ApiError> {
        let known = [self.settings.model.as_str(), "kept"];
        let is_known = |named: &&str| known.iter().any(|name| name.eq_ignore_ascii_case(named));
        match named.filter(|named| !is_known(named)) {
            None => Ok(()),
            Some(named) => Err(error::ApiError::NoModel {
                named: named.to_owned(),
                open: self.settings.model.clone(),
            }),
        }
    }
}
