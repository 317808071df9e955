//! What the app asks of the supervisor.

use std::sync::Arc;

use kept_worker::protocol::Request;
use tokio::sync::oneshot;

/// A command to the supervisor.
pub enum Order {
    /// A request to the worker of this generation; dropped if another worker runs by then.
    Send {
        /// As passed to [`AppState::worker_hello`](crate::state::AppState::worker_hello).
        generation: u64,
        /// The request.
        request: Box<Request>,
        /// Bytes that follow it.
        bytes: Option<Arc<str>>,
    },
    /// End the worker, if it runs, and start a new one.
    Restart,
    /// End the worker for good, and send a message when it has ended.
    End(oneshot::Sender<()>),
}
