//! What travels between the host and a reading on a card: rows of a vault there, rows that are kept back, the residual stream both ways.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{DeviceError, Kept};
use kept_kernels::{PackedRows, RowStore};
use kept_policies::Pos;

use super::{AT_ONCE, CardReading};
use crate::vault::{RowsOf, VaultRows};

/// A reading that takes rows from a vault, as long as nothing fails.
pub(in crate::prefill) struct KnownRows<'r, 'a> {
    reading: &'r mut CardReading<'a>,
    pub(in crate::prefill) outcome: Result<(), DeviceError>,
}

impl VaultRows for KnownRows<'_, '_> {
    fn take(&mut self, of: RowsOf, head: usize, first: usize, packed: (PackedRows, &[u8])) {
        if self.outcome.is_err() {
            return;
        }
        let device = self.reading.device();
        let CardReading {
            keys,
            values,
            packed: room,
            ..
        } = &mut *self.reading;
        let rows = match of {
            RowsOf::Keys => keys,
            RowsOf::Values => values,
        };
        self.outcome = device.write_packed(rows, (head, first), packed, room);
    }
}

impl<'a> CardReading<'a> {
    /// Takes rows that come from a vault.
    pub(in crate::prefill) fn known_rows(&mut self) -> KnownRows<'_, 'a> {
        KnownRows {
            reading: self,
            outcome: Ok(()),
        }
    }

    /// The first `rows` keys and values of every head, on the host.
    pub(in crate::prefill) fn bring_rows(
        &self,
        rows: usize,
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), DeviceError> {
        let numbers = rows * self.heads.head_dim;
        for head in 0..self.heads.kv_heads {
            self.keys
                .read_head(head, &mut keys.head_mut(head)[..numbers])?;
            self.values
                .read_head(head, &mut values.head_mut(head)[..numbers])?;
        }
        Ok(())
    }

    /// Of every head the rows `kept`, on the host, each at its own number.
    pub(in crate::prefill) fn bring_kept(
        &mut self,
        kept: &[Vec<Pos>],
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), DeviceError> {
        let (device, dim) = (self.device(), self.heads.head_dim);
        let heads = kept.iter().enumerate();
        let all: Vec<(usize, Pos)> = heads
            .flat_map(|(head, kept)| kept.iter().map(move |&pos| (head, pos)))
            .collect();
        let row_bytes = dim * size_of::<f16>();
        let (mut bytes, mut row) = (vec![0; AT_ONCE * row_bytes], vec![f16::ZERO; dim]);
        for some in all.chunks(AT_ONCE) {
            let heads: Vec<u32> = some.iter().map(|&(head, _)| head as u32).collect();
            let rows: Vec<u32> = some.iter().map(|(_, pos)| pos.0).collect();
            self.kept_heads.write(0, &heads)?;
            self.kept_at.write(0, &rows)?;
            let kept = Kept {
                positions: &self.kept_at,
                heads: &self.kept_heads,
                targets: None,
                slots: some.len(),
            };
            let bytes = &mut bytes[..some.len() * row_bytes];
            for (there, here) in [(&self.keys, &mut *keys), (&self.values, &mut *values)] {
                device.keep(there, &kept, None, &mut self.kept)?;
                self.kept.numbers().read(0, bytes)?;
                for (&(head, pos), found) in some.iter().zip(bytes.chunks_exact(row_bytes)) {
                    for (half, bytes) in row.iter_mut().zip(found.as_chunks::<2>().0) {
                        *half = f16::from_le_bytes(*bytes);
                    }
                    row.convert_to_f32_slice(here.row_mut(head, pos.0 as usize));
                }
            }
        }
        Ok(())
    }

    /// The column sums so far, `[q_heads, n]`, on the host.
    pub(in crate::prefill) fn bring_column_sums(
        &self,
        sums: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.column_sums.read(0, sums)
    }

    /// The residual stream `[rows, width]`, on the host.
    pub(in crate::prefill) fn bring_residual(
        &self,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, DeviceError> {
        let mut out = vec![0.0; rows.len() * self.width];
        self.residual.read(rows.start * self.width, &mut out)?;
        Ok(out)
    }

    /// Replaces the first rows of the residual stream.
    pub(in crate::prefill) fn write_residual(&mut self, rows: &[f32]) -> Result<(), DeviceError> {
        self.residual.write(0, rows)
    }
}
