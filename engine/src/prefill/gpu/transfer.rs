//! What travels between the host and a reading on a GPU: rows of a vault there and back, and all rows of a layer where the host has to have
//! each. Those that are kept: `kept.rs`.

use std::collections::VecDeque;
use std::ops::Range;

use kept_cuda::{Device, DeviceError, DownloadStaging};
use kept_kernels::{HeadShape, PackedRows, RowStore};
use kept_models::Model;

use super::{GpuChunk, GpuReading};
use crate::shape::head_shape;
use crate::vault::{RowsOf, Run, VaultRows};

/// Bytes of a vault's rows that go to a GPU at a time.
pub(super) const SENT_AT_ONCE: usize = 4 << 20;

/// Bytes of `rows` rows of keys and of values as a vault has them.
fn packed_bytes(kind: PackedRows, heads: HeadShape, rows: usize) -> usize {
    2 * heads.kv_heads * rows * kind.row_bytes(heads.head_dim)
}

/// Bytes of the host's memory, pinned, by which a vault's rows travel between it and a GPU, in chunks of `chunk` tokens.
pub(crate) fn transfer_bytes(model: &Model, kind: PackedRows, chunk: usize) -> u64 {
    match model.gpu() {
        Some(_) => (2 * SENT_AT_ONCE + 2 * packed_bytes(kind, head_shape(model), chunk)) as u64,
        None => 0,
    }
}

/// Chunks' keys and values on their way to a vault: one is written while the GPU computes the next.
pub(super) struct VaultWriteback {
    kind: PackedRows,
    heads: HeadShape,
    /// `[2, kv_heads, count, row_bytes]` each
    halves: [DownloadStaging; 2],
    /// First tokens of what was packed and not given yet, the older one first, each in the half that its turn was.
    packed: VecDeque<usize>,
    /// Which half is filled next.
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

    /// Bytes on the GPU.
    pub(super) fn bytes(&self) -> u64 {
        self.halves.iter().map(DownloadStaging::bytes).sum()
    }
}

/// A reading that takes rows from a vault, as long as nothing fails.
pub(in crate::prefill) struct KnownRows<'r, 'a> {
    reading: &'r mut GpuReading<'a>,
    pub(in crate::prefill) outcome: Result<(), DeviceError>,
}

impl KnownRows<'_, '_> {
    fn send(&mut self, kind: PackedRows, runs: &[Run]) -> Result<(), DeviceError> {
        let device = self.reading.device();
        let GpuReading {
            keys,
            values,
            staging,
            ..
        } = &mut *self.reading;
        let staging = staging.as_mut().expect("a reading with a vault");
        let bytes = runs.iter().map(|run| run.at.end).max().unwrap_or(0);
        let there = staging.send(bytes)?;
        for run in runs {
            let rows = match run.of {
                RowsOf::Keys => &mut *keys,
                RowsOf::Values => &mut *values,
            };
            let packed = there.share(run.at.clone());
            device.unpack(rows, (run.head, run.first), kind, &packed)?;
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
            self.outcome = self.send(kind, runs);
        }
    }
}

impl<'a> GpuReading<'a> {
    /// Takes rows that come from a vault.
    pub(in crate::prefill) fn known_rows(&mut self) -> KnownRows<'_, 'a> {
        KnownRows {
            reading: self,
            outcome: Ok(()),
        }
    }

    /// Packs a chunk's keys and values as the vault has them; they come to the host beside what is asked of the GPU later.
    ///
    /// # Panics
    /// When two chunks are packed already that were not given.
    pub(in crate::prefill) fn pack(&mut self, chunk: &GpuChunk<'_>) -> Result<(), DeviceError> {
        let device = self.device();
        let Some(writeback) = &mut self.writeback else {
            return Ok(());
        };
        assert!(writeback.packed.len() < 2, "room for a chunk");
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

    /// The oldest chunk that was packed and not given, its first token and its rows, where there are more than `later` of them.
    pub(in crate::prefill) fn packed(
        &mut self,
        later: usize,
    ) -> Result<Option<(usize, &[u8])>, DeviceError> {
        let writeback = self.writeback.as_mut();
        let Some(writeback) = writeback.filter(|writeback| writeback.packed.len() > later) else {
            return Ok(None);
        };
        let half = (writeback.turn + writeback.packed.len()) % 2;
        let first = writeback.packed.pop_front().expect("more than that");
        Ok(Some((first, writeback.halves[half].arrived()?)))
    }

    /// The first `rows` keys and values of every head, on the host.
    pub(in crate::prefill) fn bring_rows(
        &mut self,
        rows: usize,
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), DeviceError> {
        let numbers = rows * self.heads.head_dim;
        let bringing = &mut self.bringing_rows;
        for head in 0..self.heads.kv_heads {
            for (there, here) in [(&self.keys, &mut *keys), (&self.values, &mut *values)] {
                there.bring_head(head, bringing, &mut here.head_mut(head)[..numbers])?;
            }
        }
        Ok(())
    }

    /// The column sums so far, `[q_heads, n]`, on the host.
    pub(in crate::prefill) fn bring_column_sums(
        &mut self,
        sums: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.bringing.read(&self.column_sums, 0, sums)
    }

    /// The residual stream `[rows, width]`, on the host.
    pub(in crate::prefill) fn bring_residual(
        &mut self,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, DeviceError> {
        self.residual.read(rows)
    }

    /// Replaces the first rows of the residual stream.
    pub(in crate::prefill) fn write_residual(&mut self, rows: &[f32]) -> Result<(), DeviceError> {
        self.residual.write(rows)
    }
}
