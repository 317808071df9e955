//! A new token's attention over the rows of a cache.

use half::f16;
use kept_kernels::Scale;

use super::GpuCache;
use crate::{
    Angles, Buffer, ClassAttention, ClassScratch, DecodeAttention, DecodeScratch, DeviceError,
    Ranks, RowKind,
};

impl GpuCache {
    /// Attention of the new token's `queries [q_heads, head_dim]` over a layer's rows; in a ranked layer keys are turned to their
    /// ranks by `angles`, if it is rotated. Writes `out [q_heads, head_dim]`; probabilities stay in the scratch. Queries may be left turned as
    /// rows of 4 bits are.
    ///
    /// # Panics
    /// When shapes do not fit, or nothing was told.
    pub fn attend(
        &self,
        layer: usize,
        (scale, queries): (Scale, &mut Buffer<f16>),
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
        // Turned keys meet turned queries; those that are rotated as they are read are turned back before.
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
        // SAFETY: rows were checked when they were told and above, ranks against the angles.
        unsafe { self.device.decode_attention(&task, scratch, out)? };
        match turned {
            true => self.device.hadamard_numbers(out, heads, dim),
            false => Ok(()),
        }
    }

    /// The same over the entries of a layer whose rows tokens share.
    ///
    /// # Panics
    /// When shapes do not fit, or nothing was told.
    pub fn attend_by_table(
        &self,
        layer: usize,
        (scale, queries): (Scale, &Buffer<f16>),
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

    /// Writes to `out [q_heads, 2]` the largest probability of each query head in a layer, and the place of it, as a number: of the
    /// rows, or of the entries where they were attended by their table.
    ///
    /// # Panics
    /// When shapes do not fit.
    pub fn best(
        &self,
        layer: usize,
        (probabilities, stride): (&Buffer<f32>, usize),
        by_table: bool,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        let (counts, told) = match by_table {
            true => (&layer.entries, &layer.told_entries),
            false => (&layer.rows, &layer.told_rows),
        };
        assert!(
            told.iter().all(|count| (1..=stride).contains(count)),
            "{told:?} probabilities of up to {stride}"
        );
        let counts = (counts, self.shape.group());
        // SAFETY: the counts were checked.
        unsafe {
            self.device
                .best((probabilities, stride), counts, self.shape.q_heads, out)
        }
    }
}
