//! Prefetch of the next layer's vault rows to the GPU while the current layer is computed. A question on a
//! long stored document is then bound by the bus, not by the host's selection between two layers.
//!
//! ```text
//! host, a thread   read 1, check | read 2, check | ..
//! bus              1             | 2             | ..
//! GPU              unpack 0, attend, score | unpack 1, attend, score | ..
//! host             select 0                | select 1                | ..
//! ```
//!
//! Rows are uploaded packed, as in the file, into a separate buffer and unpacked when their layer begins.

use std::panic::resume_unwind;
use std::thread::JoinHandle;

use kept_cuda::{Buffer, Device, DeviceError, LayerRows, UploadStaging};
use kept_kernels::PackedRows;

use crate::EngineError;
use kept_vault::{LayerNumbers, RowsOf, Run, Vault, VaultError, VaultRows};

/// Device buffer for one layer's packed rows.
pub(super) struct PrefetchBuffer {
    rows: Buffer<u8>,
    /// Bytes uploaded so far.
    sent: usize,
    /// Offsets of the rows, head by head.
    runs: Vec<(PackedRows, Run)>,
}

/// State moved to the thread that uploads a layer.
struct LayerUpload {
    staging: UploadStaging,
    prefetch: PrefetchBuffer,
    outcome: Result<(), DeviceError>,
}

impl VaultRows for LayerUpload {
    fn space(&mut self) -> Option<&mut [u8]> {
        self.outcome.as_ref().ok()?;
        match self.staging.space() {
            Ok(space) => Some(space),
            Err(error) => {
                self.outcome = Err(error);
                None
            }
        }
    }

    fn take(&mut self, kind: PackedRows, runs: &[Run]) {
        if self.outcome.is_err() {
            return;
        }
        let PrefetchBuffer {
            rows,
            sent,
            runs: all,
        } = &mut self.prefetch;
        let bytes = runs.iter().map(|run| run.at.end).max().unwrap_or(0);
        self.outcome = self.staging.send_to(rows, *sent, bytes);
        all.extend(runs.iter().map(|run| {
            let at = run.at.start + *sent..run.at.end + *sent;
            (kind, Run { at, ..run.clone() })
        }));
        *sent += bytes;
    }
}

/// Result of the thread: the vault, the state, and the vault's other numbers for the layer.
type PrefetchResult = (Vault, LayerUpload, Result<LayerNumbers, VaultError>);

/// Owner of the buffer.
enum State {
    /// No prefetch is running.
    Idle(PrefetchBuffer),
    /// A thread uploads a layer.
    Uploading(JoinHandle<PrefetchResult>),
    /// A prefetch failed.
    Lost,
}

/// Prefetches layers, one at a time.
pub(super) struct LayerPrefetcher {
    state: State,
    bytes: u64,
}

impl LayerPrefetcher {
    /// Allocates a buffer for layers of up to `bytes` bytes.
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let rows: Buffer<u8> = device.alloc_uninit(bytes)?;
        Ok(Self {
            bytes: rows.bytes(),
            state: State::Idle(PrefetchBuffer {
                rows,
                sent: 0,
                runs: Vec::new(),
            }),
        })
    }

    /// Bytes on the GPU.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts to upload the rows of the first `tokens` tokens of `layer`, concurrently with later work on the
    /// device.
    ///
    /// # Errors
    /// [`EngineError::Vault`] if no thread can be created, [`EngineError::Gpu`].
    ///
    /// # Panics
    /// If a prefetch is running.
    pub(super) fn start(
        &mut self,
        mut vault: Vault,
        layer: usize,
        tokens: usize,
        staging: UploadStaging,
    ) -> Result<(), EngineError> {
        // The previous layer's unpacking was submitted; the upload begins after it.
        staging.order_prefetches()?;
        let State::Idle(mut prefetch) = std::mem::replace(&mut self.state, State::Lost) else {
            panic!("one layer is prefetched at a time");
        };
        (prefetch.sent, prefetch.runs) = (0, Vec::new());
        let mut upload = LayerUpload {
            staging,
            prefetch,
            outcome: Ok(()),
        };
        let path = vault.path().to_owned();
        let thread = std::thread::Builder::new().name("kept-vault".to_owned());
        let thread = thread.spawn(move || {
            let numbers = vault.layer(layer, tokens, &mut upload);
            (vault, upload, numbers)
        });
        self.state = State::Uploading(thread.map_err(VaultError::io(&path))?);
        Ok(())
    }

    /// Waits for the running prefetch and unpacks its rows. Returns the vault, its other numbers for the
    /// layer, and the staging buffers; `None` if no prefetch is running.
    ///
    /// # Errors
    /// [`EngineError::Vault`], [`EngineError::Gpu`].
    pub(super) fn finish(
        &mut self,
        device: &Device,
        keys: &mut LayerRows,
        values: &mut LayerRows,
    ) -> Result<Option<(Vault, LayerNumbers, UploadStaging)>, EngineError> {
        let thread = match std::mem::replace(&mut self.state, State::Lost) {
            State::Uploading(thread) => thread,
            other => {
                self.state = other;
                return Ok(None);
            }
        };
        let joined = thread.join();
        let (vault, upload, numbers) = joined.unwrap_or_else(|panic| resume_unwind(panic));
        upload.outcome?;
        let numbers = numbers?;
        upload.staging.before_the_rest()?;
        for (kind, run) in &upload.prefetch.runs {
            let to = match run.of {
                RowsOf::Keys => &mut *keys,
                RowsOf::Values => &mut *values,
            };
            let packed = upload.prefetch.rows.share(run.at.clone());
            device.unpack(to, run.head, run.first, *kind, &packed)?;
        }
        self.state = State::Idle(upload.prefetch);
        Ok(Some((vault, numbers, upload.staging)))
    }
}

impl Drop for LayerPrefetcher {
    /// Joins the thread of a stopped or failed prefill.
    fn drop(&mut self) {
        if let State::Uploading(thread) = std::mem::replace(&mut self.state, State::Lost)
            && thread.join().is_err()
        {
            tracing::error!("the prefetch thread panicked");
        }
    }
}
