//! Asynchronous copies: run as late as they may, or at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::DeviceError;
use crate::driver::{Address, Copying};

/// Submitted copies.
#[derive(Default)]
pub(super) struct AsyncCopies {
    /// Whether copies run when they are submitted instead of when they are waited for.
    at_once: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Number of copies submitted so far.
    asked: u64,
    /// (to, from, bytes) of copies that have not run, oldest first.
    copies: VecDeque<(Address, Address, usize)>,
}

impl AsyncCopies {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panic while locked")
    }

    /// Later copies run when they are submitted.
    pub(super) fn run_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// Submits a copy.
    ///
    /// # Safety
    /// As [`crate::driver::Driver::copy_async`].
    pub(super) unsafe fn copy(self: &Arc<Self>, to: Address, from: Address, bytes: usize) -> Later {
        let mut waiting = self.waiting();
        waiting.asked += 1;
        waiting.copies.push_back((to, from, bytes));
        let number = waiting.asked;
        if self.at_once.load(Ordering::Relaxed) {
            waiting.run(number);
        }
        Later {
            number,
            async_copy: self.clone(),
        }
    }

    /// Whether the source or the destination of a pending copy begins in this memory.
    pub(super) fn touches(&self, memory: &Range<Address>) -> bool {
        let waiting = self.waiting();
        let mut copies = waiting.copies.iter();
        copies.any(|(to, from, _)| memory.contains(to) || memory.contains(from))
    }
}

impl Waiting {
    /// Runs all copies up to `number`.
    fn run(&mut self, number: u64) {
        while self.asked - (self.copies.len() as u64) < number {
            let (to, from, bytes) = self.copies.pop_front().expect("one at least");
            // SAFETY: promised when the copy was submitted.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        }
    }
}

/// A copy that may be pending.
pub(super) struct Later {
    number: u64,
    async_copy: Arc<AsyncCopies>,
}

impl Copying for Later {
    fn order_before_later_work(&self) -> Result<(), DeviceError> {
        self.wait()
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.async_copy.waiting().run(self.number);
        Ok(())
    }
}
