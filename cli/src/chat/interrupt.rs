//! Ctrl-C in a conversation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kept_engine::kernels::Stop;

/// What Ctrl-C stops: the answer that is being written, if any.
#[derive(Clone, Default)]
pub(super) struct Interrupt(Arc<Mutex<Option<Stop>>>);

impl Interrupt {
    /// From now on Ctrl-C stops an answer. While none is written it ends the program, unless `interactive`.
    pub(super) fn install(&self, interactive: bool) {
        let running = self.clone();
        let installed = ctrlc::set_handler(move || match &*running.lock() {
            Some(stop) => stop.request(),
            None if interactive => {}
            None => std::process::exit(i32::from(crate::STOPPED)),
        });
        if let Err(error) = installed {
            tracing::warn!(%error, "Ctrl-C ends the program");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `answer` with a flag that Ctrl-C requests.
    pub(super) fn while_answering<T>(&self, answer: impl FnOnce(&Stop) -> T) -> T {
        let stop = Stop::new();
        *self.lock() = Some(stop.clone());
        let answered = answer(&stop);
        *self.lock() = None;
        answered
    }
}
