//! The next layer's rows of a vault, brought to a GPU while this one's are looked at: what a question behind a long document waits for is
//! then the bus, and not the host's choice between two layers.
//!
//! ```text
//! host, a thread   read 1, check | read 2, check | ..
//! bus              1             | 2             | ..
//! GPU             take 0, attend, score | take 1, attend, score | ..
//! host             choose of 0           | choose of 1           | ..
//! ```
//!
//! Rows come packed, as the file has them, into room of their own, and are taken apart when their layer begins.

use std::panic::resume_unwind;
use std::thread::JoinHandle;

use kept_cuda::{Buffer, Device, DeviceError, LayerRows, UploadStaging};
use kept_kernels::PackedRows;

use crate::EngineError;
use crate::vault::{LayerNumbers, RowsOf, Run, Vault, VaultError, VaultRows};

/// Room on the GPU for a layer's packed rows, and what is in it.
pub(super) struct Ahead {
    there: Buffer<u8>,
    /// Bytes that were sent there.
    sent: usize,
    /// Where they are, head by head.
    runs: Vec<(PackedRows, Run)>,
}

/// What a thread takes along to bring a layer.
struct Rows {
    staging: UploadStaging,
    prefetch: Ahead,
    outcome: Result<(), DeviceError>,
}

impl VaultRows for Rows {
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
        let Ahead {
            there,
            sent,
            runs: all,
        } = &mut self.prefetch;
        let bytes = runs.iter().map(|run| run.at.end).max().unwrap_or(0);
        self.outcome = self.staging.send_to(there, *sent, bytes);
        all.extend(runs.iter().map(|run| {
            let at = run.at.start + *sent..run.at.end + *sent;
            (kind, Run { at, ..run.clone() })
        }));
        *sent += bytes;
    }
}

/// What comes back: the vault, and what it holds of the layer besides its rows.
type Brought = (Vault, Rows, Result<LayerNumbers, VaultError>);

/// Who has the room.
enum State {
    /// Nothing is brought.
    Idle(Ahead),
    /// A thread brings a layer.
    Readback(JoinHandle<Brought>),
    /// Something failed.
    Lost,
}

/// Brings layers, one at a time.
pub(super) struct LayerPrefetcher {
    state: State,
    bytes: u64,
}

impl LayerPrefetcher {
    /// With room for layers of `bytes` bytes.
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let there = device.alloc_uninit(bytes)?;
        Ok(Self {
            bytes: there.bytes(),
            state: State::Idle(Ahead {
                there,
                sent: 0,
                runs: Vec::new(),
            }),
        })
    }

    /// Bytes on the GPU.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins to bring the rows of the first `tokens` tokens of `layer`, beside all that is asked of the device from here on.
    ///
    /// # Errors
    /// [`EngineError::Vault`] where the system gives no thread for it, [`EngineError::Gpu`].
    ///
    /// # Panics
    /// When another layer is being brought.
    pub(super) fn bring(
        &mut self,
        (mut vault, layer, tokens): (Vault, usize, usize),
        staging: UploadStaging,
    ) -> Result<(), EngineError> {
        // What was there has been taken apart, as far as the device is concerned: it was asked for.
        staging.order_prefetches()?;
        let State::Idle(mut prefetch) = std::mem::replace(&mut self.state, State::Lost) else {
            panic!("one layer is brought at a time");
        };
        (prefetch.sent, prefetch.runs) = (0, Vec::new());
        let mut rows = Rows {
            staging,
            prefetch,
            outcome: Ok(()),
        };
        let path = vault.path().to_owned();
        let thread = std::thread::Builder::new().name("kept-vault".to_owned());
        let thread = thread.spawn(move || {
            let numbers = vault.layer(layer, tokens, &mut rows);
            (vault, rows, numbers)
        });
        self.state = State::Readback(thread.map_err(VaultError::io(&path))?);
        Ok(())
    }

    /// Waits for a layer that is being brought and takes its rows apart; gives the vault, what it holds of the layer besides, and what sent
    /// them. `None` where none is.
    ///
    /// # Errors
    /// [`EngineError::Vault`], [`EngineError::Gpu`].
    pub(super) fn arrived(
        &mut self,
        device: &Device,
        keys: &mut LayerRows,
        values: &mut LayerRows,
    ) -> Result<Option<(Vault, LayerNumbers, UploadStaging)>, EngineError> {
        let thread = match std::mem::replace(&mut self.state, State::Lost) {
            State::Readback(thread) => thread,
            other => {
                self.state = other;
                return Ok(None);
            }
        };
        let joined = thread.join();
        let (vault, rows, numbers) = joined.unwrap_or_else(|panic| resume_unwind(panic));
        rows.outcome?;
        let numbers = numbers?;
        rows.staging.before_the_rest()?;
        for (kind, run) in &rows.prefetch.runs {
            let to = match run.of {
                RowsOf::Keys => &mut *keys,
                RowsOf::Values => &mut *values,
            };
            let packed = rows.prefetch.there.share(run.at.clone());
            device.unpack(to, (run.head, run.first), *kind, &packed)?;
        }
        self.state = State::Idle(rows.prefetch);
        Ok(Some((vault, numbers, rows.staging)))
    }
}

impl Drop for LayerPrefetcher {
    /// A reading that was given up or failed leaves no thread behind.
    fn drop(&mut self) {
        if let State::Readback(thread) = std::mem::replace(&mut self.state, State::Lost)
            && thread.join().is_err()
        {
            tracing::error!("what brought a vault's rows ahead panicked");
        }
    }
}
