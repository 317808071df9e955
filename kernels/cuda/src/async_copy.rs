//! Copies between the host and a device beside what it computes: [`PendingCopy`], and [`UploadStaging`], [`DownloadStaging`] and [`Readback`] for what the host
//! fills or looks at.
//!
//! ```text
//! host     fill a | fill b | fill a ..          launch .. launch | look
//! bus             | a      | b                  pack ->| bring   |
//! device                   | take a | take b    compute ..................
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::device::Memory;
use crate::driver::{Address, Copying, Driver};
use crate::{Buffer, Device, DeviceError, MemorySpace, Number};

/// A copy that goes on beside what is asked of the device afterwards. Whoever drops it waits for it.
pub struct PendingCopy {
    // Given back before the device.
    copying: Box<dyn Copying>,
    /// What it is copied from and to.
    _memory: [Arc<Memory>; 2],
}

impl PendingCopy {
    /// What is asked of the device from here on begins after the copy.
    pub fn before_the_rest(&self) -> Result<(), DeviceError> {
        self.copying.before_the_rest()
    }

    /// Waits for it.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.copying.wait()
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        // After an error of the device nothing is under way any more, and everything that is asked of it says so.
        let _ = self.copying.wait();
    }
}

impl<T: Number> Buffer<T> {
    /// Copies `range` of `from` to `first..` of this, beside what is asked of the device later: it begins after everything that was asked for
    /// before, and it is for the caller to see that nobody writes what it reads, or touches what it writes, before it has ended.
    ///
    /// # Panics
    /// When it does not fit, or both are parts of one buffer.
    pub fn copy_async(
        &mut self,
        first: usize,
        from: &Buffer<T>,
        range: Range<usize>,
    ) -> Result<PendingCopy, DeviceError> {
        self.carry((first, from, range), |driver, to, from, bytes| {
            // SAFETY: `carry` promises it.
            unsafe { driver.copy_async(to, from, bytes) }
        })
    }

    /// As [`Buffer::copy_async`], but it does not wait for what was asked for since [`UploadStaging::order_prefetches`].
    fn prefetch_copy(
        &mut self,
        first: usize,
        from: &Buffer<T>,
        range: Range<usize>,
    ) -> Result<PendingCopy, DeviceError> {
        self.carry((first, from, range), |driver, to, from, bytes| {
            // SAFETY: `carry` promises it.
            unsafe { driver.prefetch_copy(to, from, bytes) }
        })
    }

    /// Has `copy` copy between ranges that were checked and do not overlap, and holds both memories until it has ended.
    fn carry(
        &mut self,
        (first, from, range): (usize, &Buffer<T>, Range<usize>),
        copy: impl FnOnce(&dyn Driver, Address, Address, usize) -> Result<Box<dyn Copying>, DeviceError>,
    ) -> Result<PendingCopy, DeviceError> {
        let memory = [self.memory(), from.memory()];
        assert!(
            !Arc::ptr_eq(&memory[0], &memory[1]),
            "parts of one buffer are not copied beside other work"
        );
        let to = self.part(&(first..first + range.len()));
        let bytes = range.len() * size_of::<T>();
        let copying = copy(self.driver(), to, from.part(&range), bytes)?;
        Ok(PendingCopy {
            copying,
            _memory: memory,
        })
    }
}

/// Bytes that the host fills and a device takes: while one half of them is under way, the other is filled.
pub struct UploadStaging {
    halves: [Half; 2],
    /// The half that is filled now, or next.
    filling: usize,
}

struct Half {
    here: Buffer<u8>,
    there: Buffer<u8>,
    under_way: Option<PendingCopy>,
}

impl UploadStaging {
    /// Two halves of `bytes` bytes, here and there.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let half = || {
            Ok::<_, DeviceError>(Half {
                here: device.alloc_uninit_in(MemorySpace::Host, bytes)?,
                there: device.alloc_uninit(bytes)?,
                under_way: None,
            })
        };
        Ok(Self {
            halves: [half()?, half()?],
            filling: 0,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.halves.iter().map(|half| half.there.bytes()).sum()
    }

    /// The half to be filled; waits until what it held before has arrived.
    pub fn space(&mut self) -> Result<&mut [u8], DeviceError> {
        let Half {
            here, under_way, ..
        } = &mut self.halves[self.filling];
        if let Some(pending) = under_way.take() {
            pending.wait()?;
        }
        if here.is_empty() {
            return Ok(&mut []);
        }
        let start = here.driver().reach(here.address())?;
        // SAFETY: memory of this object's that no copy looks at any more, borrowed with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, here.len()) })
    }

    /// Sends the first `bytes` bytes of the half that was filled. What is asked of the device from here on finds them in what is given,
    /// until the next but one is sent.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn send(&mut self, bytes: usize) -> Result<Buffer<u8>, DeviceError> {
        let Half {
            here,
            there,
            under_way,
        } = &mut self.halves[self.filling];
        self.filling = 1 - self.filling;
        let pending = there.copy_async(0, here, 0..bytes)?;
        pending.before_the_rest()?;
        *under_way = Some(pending);
        Ok(there.share(0..bytes))
    }

    /// What [`UploadStaging::send_to`] sends from here on waits for what was asked of the device so far, and for nothing that is asked later: work
    /// that looks at what is there now is to be asked for before.
    pub fn order_prefetches(&self) -> Result<(), DeviceError> {
        self.halves[0].there.driver().order_prefetches()
    }

    /// Sends the first `bytes` bytes of the half that was filled to `first..` of `to`, where nobody looks for them before
    /// [`UploadStaging::before_the_rest`]; ahead of what was asked for since [`UploadStaging::order_prefetches`].
    ///
    /// # Panics
    /// When there are not as many, or no room for them.
    pub fn send_to(
        &mut self,
        to: &mut Buffer<u8>,
        first: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let Half {
            here, under_way, ..
        } = &mut self.halves[self.filling];
        self.filling = 1 - self.filling;
        *under_way = Some(to.prefetch_copy(first, here, 0..bytes)?);
        Ok(())
    }

    /// What is asked of the device from here on begins after all that was sent has arrived.
    pub fn before_the_rest(&self) -> Result<(), DeviceError> {
        let mut pending = self
            .halves
            .iter()
            .filter_map(|half| half.under_way.as_ref());
        pending.try_for_each(PendingCopy::before_the_rest)
    }
}

/// Bytes that a device fills and the host looks at, while the device goes on.
pub struct DownloadStaging {
    there: Buffer<u8>,
    here: Buffer<u8>,
    /// How many are under way or have arrived.
    count: usize,
    under_way: Option<PendingCopy>,
}

impl DownloadStaging {
    /// Room for `bytes` bytes, here and there.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            there: device.alloc_uninit(bytes)?,
            here: device.alloc_uninit_in(MemorySpace::Host, bytes)?,
            count: 0,
            under_way: None,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.there.bytes()
    }

    /// What the device is to fill: after what was in it has been fetched.
    pub fn space(&mut self) -> Result<&mut Buffer<u8>, DeviceError> {
        if let Some(pending) = &self.under_way {
            pending.before_the_rest()?;
        }
        Ok(&mut self.there)
    }

    /// Fetches the first `bytes` of them, beside what is asked of the device later.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn fetch(&mut self, bytes: usize) -> Result<(), DeviceError> {
        // Waited for: nobody may be looking at what arrives.
        self.under_way = None;
        self.under_way = Some(self.here.copy_async(0, &self.there, 0..bytes)?);
        self.count = bytes;
        Ok(())
    }

    /// What was fetched last; waits until it has arrived.
    pub fn arrived(&mut self) -> Result<&[u8], DeviceError> {
        if let Some(pending) = self.under_way.take() {
            pending.wait()?;
        }
        if self.count == 0 {
            return Ok(&[]);
        }
        let start = self.here.driver().reach(self.here.address())?;
        // SAFETY: memory of this object's that no copy writes any more, borrowed with it.
        Ok(unsafe { std::slice::from_raw_parts(start, self.count) })
    }
}

/// Numbers on their way to the host piece by piece, through memory that a driver copies to without a detour: while one piece is taken, the
/// next one travels.
pub struct Readback<T: Number> {
    halves: [Buffer<T>; 2],
}

impl<T: Number> Readback<T> {
    /// Pieces need not be larger, to be worth their asking.
    pub const PIECE: usize = 1 << 18;

    /// Pieces of `numbers` numbers.
    pub fn new(device: &Device, numbers: usize) -> Result<Self, DeviceError> {
        let half = || device.alloc_uninit_in(MemorySpace::Host, numbers);
        Ok(Self {
            halves: [half()?, half()?],
        })
    }

    /// Reads from `first` on as many of `from` as there are in `numbers`, after everything that was asked for before.
    ///
    /// # Panics
    /// When there are not as many, or pieces are of nothing.
    pub fn read(
        &mut self,
        from: &Buffer<T>,
        first: usize,
        numbers: &mut [T],
    ) -> Result<(), DeviceError> {
        let range = first..first + numbers.len();
        let mut rest = numbers;
        self.pieces(from, range, |piece| {
            let (here, others) = std::mem::take(&mut rest).split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = others;
        })
    }

    /// Shows `range` of `from` piece by piece, in order, after everything that was asked for before.
    ///
    /// # Panics
    /// When there are not as many, or pieces are of nothing.
    pub fn pieces(
        &mut self,
        from: &Buffer<T>,
        range: Range<usize>,
        mut look: impl FnMut(&[T]),
    ) -> Result<(), DeviceError> {
        let [mut half, mut other] = self.halves.each_mut();
        let most = half.len();
        assert!(most > 0 || range.is_empty(), "pieces of nothing");
        let piece = |at: usize| at..range.end.min(at + most);
        let ask = |half: &mut Buffer<T>, at: usize| match at < range.end {
            true => half.copy_async(0, from, piece(at)).map(Some),
            false => Ok(None),
        };
        let mut at = range.start;
        let mut coming = ask(half, at)?;
        while at < range.end {
            let count = piece(at).len();
            at += count;
            let next = ask(other, at)?;
            if let Some(pending) = coming {
                pending.wait()?;
            }
            let start = half.driver().reach(half.address())?.cast::<T>();
            // SAFETY: as many numbers of this object's as were copied there, which no copy writes any more; numbers of any bits are numbers.
            look(unsafe { std::slice::from_raw_parts(start, count) });
            coming = next;
            std::mem::swap(&mut half, &mut other);
        }
        Ok(())
    }
}
