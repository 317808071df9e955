//! Attention of a new token over the rows of a cache.

use half::f16;
use kept_kernels::Scale;

use super::GpuCache;
use crate::{
    Angles, Buffer, ClassAttention, ClassScratch, DecodeAttention, DecodeScratch, DeviceError,
    Ranks, RowKind,
};

impl GpuCache {
    /// Attention of the new token's `queries [q_heads, head_dim]` over a layer's rows. In a ranked layer with RoPE,
    /// `angles` rotate the keys by their ranks. Writes `out [q_heads, head_dim]` and leaves the probabilities in the
    /// scratch. In a q4_0 cache the queries are Hadamard-rotated in place.
    ///
    /// # Panics
    /// When shapes do not match, or no token was staged.
    pub fn attend(
        &self,
        layer: usize,
        scale: Scale<'_>,
        queries: &mut Buffer<f16>,
        angles: Option<Angles<'_>>,
        scratch: &mut DecodeScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        assert!(
            (layer.told_rows.iter()).all(|rows| (1..=scratch.stride()).contains(rows)),
            "rows {:?}, the scratch is for up to {}",
            layer.told_rows,
            scratch.stride()
        );
        let ranks = match (&layer.ranks, angles) {
            (Some(ranks), Some(angles)) => {
                angles.check(ranks.end(), self.shape.head_dim);
                let ranks = ranks.numbers();
                Some(Ranks { ranks, angles })
            }
            _ => None,
        };
        // Hadamard-rotated keys need Hadamard-rotated queries. Keys that the kernel rotates by RoPE are unrotated
        // first.
        let (heads, dim) = (self.shape.q_heads, self.shape.head_dim);
        let turned = layer.keys.kind == RowKind::Q4_0;
        if turned && ranks.is_none() {
            self.device.hadamard_halves(queries, heads, dim)?;
        }
        let task = DecodeAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &layer.keys,
            values: &layer.values,
            first_rows: &layer.first_rows,
            rows: &layer.rows,
            places: layer.places.as_ref(),
            ranks,
        };
        // SAFETY: rows were checked when they were staged and above, ranks against the angles.
        unsafe { self.device.decode_attention(&task, scratch, out)? };
        if turned {
            self.device.hadamard_numbers(out, heads, dim)
        } else {
            Ok(())
        }
    }

    /// As [`GpuCache::attend`], over the entries of a layer in which tokens share rows.
    ///
    /// # Panics
    /// When shapes do not match, or no token was staged.
    pub fn attend_by_table(
        &self,
        layer: usize,
        scale: Scale<'_>,
        queries: &Buffer<f16>,
        angles: Option<Angles<'_>>,
        scratch: &mut ClassScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        let tables = layer.tables.as_ref().expect("a layer with a table");
        let told = layer.told_rows.iter().zip(&layer.told_entries);
        for ((&rows, &entries), &end) in told.zip(&tables.ends) {
            assert!(
                (1..=scratch.rows()).contains(&rows)
                    && (1..=tables.capacity).contains(&entries)
                    && end <= rows,
                "{entries} entries of {} over {rows} rows, with classes below {end}",
                tables.capacity
            );
        }
        if let Some(angles) = &angles {
            let most = layer.told_entries.iter().copied().max().unwrap_or(0);
            angles.check(most, self.shape.head_dim);
        }
        let task = ClassAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &layer.keys,
            values: &layer.values,
            first_rows: &layer.first_rows,
            rows: &layer.rows,
            classes: &tables.classes,
            lengths: &tables.lengths,
            entries: &layer.entries,
            capacity: tables.capacity,
            angles,
        };
        // SAFETY: rows, entries and classes were checked above.
        unsafe { self.device.class_attention(&task, scratch, out) }
    }

    /// Writes to `out [q_heads, 2]` the largest of `probabilities [q_heads, stride]` of each query head in a layer and
    /// its index as a number: of a row, or of an entry in a layer with tables.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn best(
        &self,
        layer: usize,
        probabilities: &Buffer<f32>,
        stride: usize,
        by_table: bool,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        let (counts, told) = if by_table {
            (&layer.entries, &layer.told_entries)
        } else {
            (&layer.rows, &layer.told_rows)
        };
        assert!(
            told.iter().all(|count| (1..=stride).contains(count)),
            "{told:?} probabilities of up to {stride}"
        );
        // SAFETY: the counts were checked.
        unsafe {
            self.device
                .best(probabilities, stride, counts, &self.shape, out)
        }
    }
}
