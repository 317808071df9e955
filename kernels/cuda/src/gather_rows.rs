//! Gathers rows into the compact KV cache: `device/keep.cu`.

use crate::driver::{Address, Geometry};
use crate::kept_rows::RowsParameters;
use crate::{Device, DeviceError, Indices, KeptRows, LayerRows, RopeTables};

/// The rows to gather, in slot order, head after head.
pub struct GatherIndices<'a> {
    /// `[slots]`: source row of each slot.
    pub positions: &'a Indices,
    /// `[slots]`: KV head of each slot.
    pub heads: &'a Indices,
    /// `[slots]`: target row of each slot; `None`: slot i is row i.
    pub targets: Option<&'a Indices>,
    /// Number of slots.
    pub slots: usize,
}

/// Parameters of kernel `keep`; same layout as `Keep` in `device/keep.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KeepParameters {
    source: Address,
    positions: Address,
    targets: Address,
    heads: Address,
    angles: [Address; 2],
    numbers: Address,
    scales: Address,
    wide: Address,
    slots: u32,
    capacity: u32,
    dim: u32,
    pairs: [u32; 2],
    narrow: u32,
    turned: u32,
    kind: u32,
}

impl KeepParameters {
    /// For `slots` rows of `target`; the source is still to be set.
    fn for_target(target: &KeptRows, slots: usize) -> Self {
        let RowsParameters { data, scales, wide } = target.parameters();
        Self {
            numbers: data,
            scales,
            wide,
            slots: slots as u32,
            dim: target.head_dim() as u32,
            narrow: target.narrow as u32,
            kind: target.kind.number(),
            ..Self::default()
        }
    }
}

impl Device {
    /// Copies rows of `source` to `target` in the target's type. With `unrotated`, RoPE is undone first.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn gather_rows(
        &self,
        source: &LayerRows,
        indices: &GatherIndices<'_>,
        unrotated: Option<RopeTables<'_>>,
        target: &mut KeptRows,
    ) -> Result<(), DeviceError> {
        let (heads, dim) = source.heads();
        assert_eq!(dim, target.head_dim(), "kept rows of other heads");
        let slots = indices.slots;
        assert!(
            indices.positions.len() >= slots
                && indices.heads.len() >= slots
                && indices.targets.is_none_or(|targets| targets.len() >= slots)
                && (indices.targets.is_some() || target.rows() >= slots),
            "positions, heads and targets are [slots {slots}]"
        );
        assert!(
            indices.positions.end() <= source.capacity()
                && indices.heads.end() <= heads
                && indices
                    .targets
                    .is_none_or(|targets| targets.end() <= target.rows()),
            "positions are below {}, heads below {heads}, targets below {}",
            source.capacity(),
            target.rows()
        );
        if let Some(angles) = &unrotated {
            angles.check(indices.positions.end(), dim);
        }
        let (angles, pairs) = RopeTables::parameters(unrotated.as_ref());
        let parameters = KeepParameters {
            source: source.data.address(),
            positions: indices.positions.address(),
            targets: indices.targets.map_or(0, Indices::address),
            heads: indices.heads.address(),
            angles,
            capacity: source.capacity() as u32,
            pairs,
            ..KeepParameters::for_target(target, slots)
        };
        // SAFETY: lengths and the largest indices were checked.
        unsafe { self.launch_keep(&parameters) }
    }

    /// Quantises wide rows of `rows` into narrow ones: for each of the first `count` pairs, wide row `from` overwrites
    /// narrow row `to`.
    ///
    /// # Panics
    /// When a row does not exist.
    pub fn narrow(
        &self,
        rows: &mut KeptRows,
        from: &Indices,
        to: &Indices,
        count: usize,
    ) -> Result<(), DeviceError> {
        assert!(
            from.len() >= count && to.len() >= count,
            "rows are [count {count}]"
        );
        assert!(
            from.end() <= rows.wide_rows() && to.end() <= rows.narrow,
            "wide rows are below {}, narrow ones below {}",
            rows.wide_rows(),
            rows.narrow
        );
        let parameters = KeepParameters {
            source: rows.wide().address(),
            positions: from.address(),
            targets: to.address(),
            turned: 1,
            ..KeepParameters::for_target(rows, count)
        };
        // SAFETY: lengths and the largest indices were checked.
        unsafe { self.launch_keep(&parameters) }
    }

    /// # Safety
    /// As [`Device::launch`].
    unsafe fn launch_keep(&self, parameters: &KeepParameters) -> Result<(), DeviceError> {
        let geometry = Geometry::warp_per_row(parameters.slots as usize, parameters.dim as usize);
        // SAFETY: the caller's promise.
        unsafe { self.launch("keep", geometry, parameters) }
    }
}
