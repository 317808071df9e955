//! Decode attention of one new token over classes (rows that several tokens share): `device/class_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::driver::{Address, Geometry};
use crate::{Buffer, DecodeOutput, Device, DeviceError, KeptRows, RopeTables, RowKind};

/// Decode attention of one row over the entries of each KV head.
pub struct ClassAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale<'a>,
    /// `[q_heads, head_dim]`, rotated.
    pub queries: &'a Buffer<f16>,
    /// Directions of the classes' keys, f16.
    pub keys: &'a KeptRows,
    /// Values of the classes, f16.
    pub values: &'a KeptRows,
    /// `[kv_heads]`: first slot of each head.
    pub first_rows: &'a Buffer<u32>,
    /// `[kv_heads]`: classes of each head.
    pub rows: &'a Buffer<u32>,
    /// `[kv_heads, capacity]`: the class of each entry.
    pub classes: &'a Buffer<u32>,
    /// `[kv_heads, capacity]`: each entry's factor on its class's key.
    pub norms: &'a Buffer<f32>,
    /// `[kv_heads]`: entries of each head.
    pub entries: &'a Buffer<u32>,
    /// Row stride of the tables.
    pub capacity: usize,
    /// Set if the keys are stored before RoPE; the rank of an entry is its index.
    pub angles: Option<RopeTables<'a>>,
}

/// Scratch of [`Device::class_attention`].
pub struct ClassScratch {
    /// `[q_heads, max_rows]`
    mass: Buffer<u64>,
    /// `[splits, q_heads, head_dim]`
    parts: Buffer<f32>,
    shape: HeadShape,
    max_rows: usize,
    max_entries: usize,
    splits: usize,
}

/// The fewest classes of a split.
const ROWS_EACH: usize = 64;

impl ClassScratch {
    /// For up to `max_rows` classes and `max_entries` entries per KV head.
    pub fn new(
        device: &Device,
        shape: HeadShape,
        max_rows: usize,
        max_entries: usize,
    ) -> Result<Self, DeviceError> {
        let wanted = 2 * device.properties().multiprocessors as usize;
        let splits = wanted
            .div_ceil(shape.q_heads)
            .min(max_rows.div_ceil(ROWS_EACH))
            .max(1);
        Ok(Self {
            mass: device.alloc_uninit(shape.q_heads * max_rows)?,
            parts: device.alloc_uninit(splits * shape.q_heads * shape.head_dim)?,
            shape,
            max_rows,
            max_entries,
            splits,
        })
    }
}

/// Parameters of kernels `class_logits`, `class_mass`, `class_values` and `class_sum`; same layout as `ClassAttention`
/// in `device/class_attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    queries: Address,
    keys: Address,
    values: Address,
    first_rows: Address,
    rows: Address,
    classes: Address,
    lengths: Address,
    entries: Address,
    angles: [Address; 2],
    logits: Address,
    mass: Address,
    parts: Address,
    out: Address,
    best: Address,
    q_heads: u32,
    kv_heads: u32,
    dim: u32,
    capacity: u32,
    stride: u32,
    max_rows: u32,
    pairs: [u32; 2],
    splits: u32,
    factor: f32,
    cap: f32,
}

impl Device {
    /// Attention in five launches. The output must have probabilities.
    ///
    /// # Panics
    /// When shapes do not match.
    ///
    /// # Safety
    /// On the device, rows and entries are at least 1 and within the capacities of the scratch and the tables, slots
    /// lie within the kept rows, the class of each entry belongs to the entry's head, and its index is a position of
    /// the angle tables.
    pub unsafe fn class_attention(
        &self,
        task: &ClassAttention<'_>,
        scratch: &mut ClassScratch,
        output: DecodeOutput<'_>,
    ) -> Result<(), DeviceError> {
        task.check(scratch);
        let (shape, capacity) = (&task.shape, task.capacity);
        let (heads, dim) = (shape.q_heads, shape.head_dim);
        output.check(heads, dim);
        assert!(
            output.stride(heads) >= capacity,
            "probabilities are [q_heads {heads}, capacity {capacity}]"
        );
        let parameters = task.parameters(scratch, &output);
        let logits = Geometry::new([capacity.div_ceil(4), shape.kv_heads, 1], 128, 0);
        let mass = Geometry::new([heads, 1, 1], 256, 3 * 256 / 32 * 4);
        let threads = dim.next_multiple_of(32);
        let values = Geometry::new([scratch.splits, heads, 1], threads, 0);
        let sum = Geometry::new([heads, 1, 1], threads, 0);
        // SAFETY: lengths were checked; the caller answers for device values.
        unsafe {
            self.launch("class_logits", logits, &parameters)?;
            self.launch("class_mass", mass, &parameters)?;
            self.launch("class_values", values, &parameters)?;
            self.launch("class_sum", sum, &parameters)?;
        }
        self.step_inputs(output.out)
    }
}

impl ClassAttention<'_> {
    /// Panics unless shapes match those of the scratch.
    fn check(&self, scratch: &ClassScratch) {
        let shape = &self.shape;
        let (heads, dim, capacity) = (shape.q_heads, shape.head_dim, self.capacity);
        assert_eq!(*shape, scratch.shape, "the scratch is for other heads");
        assert_eq!(
            (capacity, self.keys.kind, self.values.kind),
            (scratch.max_entries, RowKind::F16, RowKind::F16),
            "tables as large as the scratch, and classes in f16"
        );
        assert_eq!((self.keys.head_dim(), self.values.head_dim()), (dim, dim));
        assert!(
            self.queries.len() >= heads * dim,
            "queries are [q_heads {heads}, head_dim {dim}]"
        );
        let per_head = [self.first_rows, self.rows, self.entries];
        assert!(
            per_head.iter().all(|b| b.len() >= shape.kv_heads),
            "first_rows, rows and entries are [kv_heads]"
        );
        assert!(
            self.classes.len() >= shape.kv_heads * capacity
                && self.norms.len() >= shape.kv_heads * capacity,
            "classes and norms are [kv_heads, capacity {capacity}]"
        );
        if let Some(angles) = &self.angles {
            angles.check(0, dim);
        }
    }

    fn parameters(&self, scratch: &ClassScratch, output: &DecodeOutput<'_>) -> Parameters {
        let heads = self.shape.q_heads;
        let (angles, pairs) = RopeTables::parameters(self.angles.as_ref());
        Parameters {
            queries: self.queries.address(),
            keys: self.keys.elements().address(),
            values: self.values.elements().address(),
            first_rows: self.first_rows.address(),
            rows: self.rows.address(),
            classes: self.classes.address(),
            lengths: self.norms.address(),
            entries: self.entries.address(),
            angles,
            logits: output.probabilities(),
            mass: scratch.mass.address(),
            parts: scratch.parts.address(),
            out: output.out.values().address(),
            best: output.best.address(),
            q_heads: heads as u32,
            kv_heads: self.shape.kv_heads as u32,
            dim: self.shape.head_dim as u32,
            capacity: self.capacity as u32,
            stride: output.stride(heads) as u32,
            max_rows: scratch.max_rows as u32,
            pairs,
            splits: scratch.splits as u32,
            factor: self.scale.factor,
            cap: self.scale.cap.unwrap_or(0.0),
        }
    }
}
