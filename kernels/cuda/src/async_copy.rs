//! Asynchronous copies between host and device: [`PendingCopy`], and the staging buffers [`UploadStaging`],
//! [`DownloadStaging`] and [`Readback`].
//!
//! ```text
//! host     fill a | fill b | fill a ..          launch .. launch | read
//! bus             | a      | b                  pack ->| download|
//! device                   | use a  | use b     compute ..................
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::device::Memory;
use crate::driver::Copying;
use crate::{Buffer, Device, DeviceElement, DeviceError, MemorySpace};

/// An asynchronous copy. Dropping it waits for it.
pub struct PendingCopy {
    // Dropped before the device.
    copying: Box<dyn Copying>,
    /// Source and destination, kept alive until the copy has ended.
    _memory: [Arc<Memory>; 2],
}

impl PendingCopy {
    /// Later work on the device begins after this copy.
    pub fn order_before_later_work(&self) -> Result<(), DeviceError> {
        self.copying.order_before_later_work()
    }

    /// Waits until the copy has ended.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.copying.wait()
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        // After a device error no copy is running any more, and every later operation reports the error.
        let _ = self.copying.wait();
    }
}

impl<T: DeviceElement> Buffer<T> {
    /// Copies `range` of `from` to `first..` of this buffer, concurrently with later work on the device. The copy
    /// begins after all work submitted before. Until it has ended, the caller must not write the source or access the
    /// destination.
    ///
    /// # Panics
    /// When a range exceeds its buffer, or both buffers share one allocation.
    pub fn copy_async(
        &mut self,
        first: usize,
        from: &Buffer<T>,
        range: Range<usize>,
    ) -> Result<PendingCopy, DeviceError> {
        let memory = [self.memory(), from.memory()];
        assert!(
            !Arc::ptr_eq(&memory[0], &memory[1]),
            "parts of one buffer are not copied beside other work"
        );
        let to = self.part(&(first..first + range.len()));
        let bytes = range.len() * size_of::<T>();
        // SAFETY: both ranges lie in allocations that are kept alive until the copy has ended.
        let copying = unsafe { self.driver().copy_async(to, from.part(&range), bytes) }?;
        Ok(PendingCopy {
            copying,
            _memory: memory,
        })
    }
}

/// A buffer on the host and one on the device, as long, and the last copy between them.
struct Staged {
    host: Buffer<u8>,
    device: Buffer<u8>,
    pending: Option<PendingCopy>,
}

impl Staged {
    fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            host: device.alloc_uninit_in(MemorySpace::Host, bytes)?,
            device: device.alloc_uninit(bytes)?,
            pending: None,
        })
    }

    /// The first `bytes` bytes on the host. Waits until the last copy has ended.
    fn on_host(&mut self, bytes: usize) -> Result<&mut [u8], DeviceError> {
        if let Some(pending) = self.pending.take() {
            pending.wait()?;
        }
        assert!(bytes <= self.host.len(), "{bytes} of {}", self.host.len());
        if bytes == 0 {
            return Ok(&mut []);
        }
        let start = self.host.driver().host_pointer(self.host.address())?;
        // SAFETY: memory of this object that no copy uses any more, borrowed with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }
}

/// Double-buffered uploads: the host fills one half while the other is copied.
pub struct UploadStaging {
    halves: [Staged; 2],
    /// The half that the host fills now or next.
    filling: usize,
}

impl UploadStaging {
    /// Allocates two halves of `bytes` bytes, on the host and on the device.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            halves: [Staged::new(device, bytes)?, Staged::new(device, bytes)?],
            filling: 0,
        })
    }

    /// The half to fill. Waits until its previous upload has ended.
    pub fn space(&mut self) -> Result<&mut [u8], DeviceError> {
        let half = &mut self.halves[self.filling];
        half.on_host(half.host.len())
    }

    /// Uploads the first `bytes` bytes of the filled half and returns their device buffer. Later work on the device
    /// sees them, until the upload after the next.
    ///
    /// # Panics
    /// When the half has fewer bytes.
    pub fn send(&mut self, bytes: usize) -> Result<Buffer<u8>, DeviceError> {
        let half = &mut self.halves[self.filling];
        self.filling = 1 - self.filling;
        let upload = half.device.copy_async(0, &half.host, 0..bytes)?;
        upload.order_before_later_work()?;
        half.pending = Some(upload);
        Ok(half.device.share(0..bytes))
    }
}

/// Downloads that overlap with computation: the device fills a buffer, and the host reads a copy of it.
pub struct DownloadStaging {
    staged: Staged,
    /// Bytes of the last download.
    count: usize,
}

impl DownloadStaging {
    /// Allocates `bytes` bytes, on the host and on the device.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let staged = Staged::new(device, bytes)?;
        Ok(Self { staged, count: 0 })
    }

    /// The buffer for the device to fill. Later work begins after the last download has ended.
    pub fn space(&mut self) -> Result<&mut Buffer<u8>, DeviceError> {
        if let Some(pending) = &self.staged.pending {
            pending.order_before_later_work()?;
        }
        Ok(&mut self.staged.device)
    }

    /// Downloads the first `bytes` bytes, concurrently with later work on the device.
    ///
    /// # Panics
    /// When the buffer has fewer bytes.
    pub fn fetch(&mut self, bytes: usize) -> Result<(), DeviceError> {
        let staged = &mut self.staged;
        // Wait for the previous download, so that no two copies write the host buffer at once.
        staged.pending = None;
        staged.pending = Some(staged.host.copy_async(0, &staged.device, 0..bytes)?);
        self.count = bytes;
        Ok(())
    }

    /// The last download. Waits until it has ended.
    pub fn arrived(&mut self) -> Result<&[u8], DeviceError> {
        self.staged.on_host(self.count).map(|bytes| &*bytes)
    }
}

/// Double-buffered downloads through pinned memory, piece by piece: the host reads one piece while the next is copied.
pub struct Readback<T: DeviceElement> {
    halves: [Buffer<T>; 2],
}

impl<T: DeviceElement> Readback<T> {
    /// Piece size that is large enough to amortise the cost of a copy.
    pub const PIECE: usize = 1 << 18;

    /// Allocates two pieces of `elements` elements.
    pub fn new(device: &Device, elements: usize) -> Result<Self, DeviceError> {
        let half = || device.alloc_uninit_in(MemorySpace::Host, elements);
        Ok(Self {
            halves: [half()?, half()?],
        })
    }

    /// Downloads `first..first + elements.len()` of `from`, after all work submitted before.
    ///
    /// # Panics
    /// When `from` has fewer elements, or pieces are empty.
    pub fn read(
        &mut self,
        from: &Buffer<T>,
        first: usize,
        elements: &mut [T],
    ) -> Result<(), DeviceError> {
        let range = first..first + elements.len();
        let mut rest = elements;
        self.pieces(from, range, |piece| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(piece.len());
            own.copy_from_slice(piece);
            rest = others;
        })
    }

    /// Passes `range` of `from` to `visit` piece by piece, in order, after all work submitted before.
    ///
    /// # Panics
    /// When `from` has fewer elements, or pieces are empty.
    pub fn pieces(
        &mut self,
        from: &Buffer<T>,
        range: Range<usize>,
        mut visit: impl FnMut(&[T]),
    ) -> Result<(), DeviceError> {
        let [mut half, mut other] = self.halves.each_mut();
        let most = half.len();
        assert!(most > 0 || range.is_empty(), "pieces of nothing");
        let piece = |at: usize| at..range.end.min(at + most);
        let download = |half: &mut Buffer<T>, at: usize| {
            if at < range.end {
                half.copy_async(0, from, piece(at)).map(Some)
            } else {
                Ok(None)
            }
        };
        let mut at = range.start;
        let mut pending = download(half, at)?;
        while at < range.end {
            let count = piece(at).len();
            at += count;
            let next = download(other, at)?;
            if let Some(pending) = pending {
                pending.wait()?;
            }
            let start = half.driver().host_pointer(half.address())?.cast::<T>();
            // SAFETY: `count` elements of this object were copied to `start` and no copy writes them any more; any bits
            // are a valid `T`.
            visit(unsafe { std::slice::from_raw_parts(start, count) });
            pending = next;
            std::mem::swap(&mut half, &mut other);
        }
        Ok(())
    }
}
