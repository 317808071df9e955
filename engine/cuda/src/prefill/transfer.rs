//! Transfers between host and GPU during prefill: rows of a vault in both directions, and downloads of all
//! rows of a layer. `kept.rs` has the kept rows.

use std::collections::VecDeque;

use kept_cuda::{Device, DeviceError, DownloadStaging};
use kept_engine::backend::{Chunk, head_shape};
use kept_kernels::{HeadShape, PackedRows};
use kept_models::Model;
use kept_vault::{RowsOf, Run, VaultRows};

use super::CudaPrefill;

/// Bytes of vault rows per upload.
pub(super) const UPLOAD_BYTES: usize = 4 << 20;

/// Bytes of `rows` keys and values in the vault's packed form.
fn packed_bytes(kind: PackedRows, heads: HeadShape, rows: usize) -> usize {
    2 * heads.kv_heads * rows * kind.row_bytes(heads.head_dim)
}

/// Bytes of pinned host memory for vault transfers in chunks of `chunk` tokens.
pub(crate) fn transfer_bytes(model: &Model, kind: PackedRows, chunk: usize) -> u64 {
    (2 * UPLOAD_BYTES + 2 * packed_bytes(kind, head_shape(model), chunk)) as u64
}

/// Downloads chunks' keys and values for a vault: one chunk is written while the GPU computes the next.
pub(super) struct VaultWriteback {
    kind: PackedRows,
    heads: HeadShape,
    /// `[2, kv_heads, count, row_bytes]` each
    halves: [DownloadStaging; 2],
    /// First tokens of the chunks that are packed but not yet returned by [`CudaPrefill::packed`], oldest
    /// first; at most one per half.
    packed: VecDeque<usize>,
    /// The half for the next chunk.
    turn: usize,
}

impl VaultWriteback {
    pub(super) fn new(
        device: &Device,
        kind: PackedRows,
        heads: HeadShape,
        chunk: usize,
    ) -> Result<Self, DeviceError> {
        let half = || DownloadStaging::new(device, packed_bytes(kind, heads, chunk));
        Ok(Self {
            kind,
            heads,
            halves: [half()?, half()?],
            packed: VecDeque::with_capacity(2),
            turn: 0,
        })
    }
}

/// Uploads rows from a vault until the first error.
pub(super) struct KnownRows<'r, 'a> {
    reading: &'r mut CudaPrefill<'a>,
    pub(super) outcome: Result<(), DeviceError>,
}

impl KnownRows<'_, '_> {
    fn upload(&mut self, kind: PackedRows, runs: &[Run]) -> Result<(), DeviceError> {
        let device = self.reading.device();
        let CudaPrefill {
            keys,
            values,
            staging,
            ..
        } = &mut *self.reading;
        let staging = staging.as_mut().expect("a reading with a vault");
        let bytes = runs.iter().map(|run| run.at.end).max().unwrap_or(0);
        let uploaded = staging.send(bytes)?;
        for run in runs {
            let rows = match run.side {
                RowsOf::Keys => &mut *keys,
                RowsOf::Values => &mut *values,
            };
            let packed = uploaded.share(run.at.clone());
            device.unpack(rows, run.head, run.first, kind, &packed)?;
        }
        Ok(())
    }
}

impl VaultRows for KnownRows<'_, '_> {
    fn space(&mut self) -> Option<&mut [u8]> {
        if self.outcome.is_err() {
            return None;
        }
        let staging = self.reading.staging.as_mut();
        match staging.expect("a reading with a vault").space() {
            Ok(space) => Some(space),
            Err(error) => {
                self.outcome = Err(error);
                None
            }
        }
    }

    fn take(&mut self, kind: PackedRows, runs: &[Run]) {
        if self.outcome.is_ok() {
            self.outcome = self.upload(kind, runs);
        }
    }
}

impl<'a> CudaPrefill<'a> {
    /// Receives rows from a vault.
    pub(super) fn known_rows(&mut self) -> KnownRows<'_, 'a> {
        KnownRows {
            reading: self,
            outcome: Ok(()),
        }
    }

    /// Packs a chunk's keys and values in the vault's form and starts their download, concurrently with later
    /// work on the GPU.
    ///
    /// # Panics
    /// If two packed chunks are pending.
    pub(super) fn pack(&mut self, chunk: &Chunk<'_>) -> Result<(), DeviceError> {
        let device = self.device();
        let Some(writeback) = &mut self.writeback else {
            return Ok(());
        };
        assert!(writeback.packed.len() < 2, "space for a chunk");
        writeback.packed.push_back(chunk.first);
        let (kind, rows) = (&writeback.kind, &mut writeback.halves[writeback.turn]);
        writeback.turn = 1 - writeback.turn;
        let all = packed_bytes(*kind, writeback.heads, chunk.count);
        let which = chunk.first..chunk.first + chunk.count;
        let space = rows.space()?;
        for (from, part) in [(&self.keys, 0..all / 2), (&self.values, all / 2..all)] {
            device.pack(from, which.clone(), *kind, &mut space.share(part))?;
        }
        rows.fetch(all)
    }

    /// First token and rows of the oldest pending chunk, if more than `later` chunks are pending.
    pub(super) fn packed(&mut self, later: usize) -> Result<Option<(usize, &[u8])>, DeviceError> {
        let writeback = self.writeback.as_mut();
        let Some(writeback) = writeback.filter(|writeback| writeback.packed.len() > later) else {
            return Ok(None);
        };
        let half = (writeback.turn + writeback.packed.len()) % 2;
        let first = writeback.packed.pop_front().expect("more than that");
        Ok(Some((first, writeback.halves[half].arrived()?)))
    }

    /// Downloads the first `rows` keys and values of every head.
    pub(super) fn download_rows(&mut self, rows: usize) -> Result<(), DeviceError> {
        let elements = rows * self.heads.head_dim;
        let (readback, buffers) = (&mut self.row_readback, &mut self.buffers);
        for head in 0..self.heads.kv_heads {
            for (device, host) in [
                (&self.keys, &mut buffers.keys),
                (&self.values, &mut buffers.values),
            ] {
                device.download_head(head, readback, &mut host.head_mut(head)[..elements])?;
            }
        }
        Ok(())
    }
}
