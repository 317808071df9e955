//! Threads for decoders of files that can be hostile: a panic is expected there, and its message is not printed.

use std::io;
use std::panic;
use std::sync::Once;
use std::thread;

/// Name of the threads.
const THREAD: &str = "kept-documents";

/// A thread with a stack of `stack_bytes` whose panics print nothing. A panic that the thread does not catch ends it.
pub(crate) fn thread(stack_bytes: usize) -> thread::Builder {
    silence_panics();
    thread::Builder::new()
        .name(THREAD.to_owned())
        .stack_size(stack_bytes)
}

/// Runs `work` on such a thread and waits for it; `Ok(None)` if it panicked.
pub(crate) fn run<T: Send>(
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> io::Result<Option<T>> {
    thread::scope(|scope| {
        let running = thread(stack_bytes).spawn_scoped(scope, work)?;
        Ok(running.join().ok())
    })
}

/// A message on the terminal looks like a crash.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(THREAD) {
                usual(info);
            }
        }));
    });
}
