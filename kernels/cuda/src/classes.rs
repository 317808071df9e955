//! Decode attention of one new token over classes (rows that several tokens share): `device/class_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::driver::{Address, Geometry};
use crate::{Angles, Buffer, Device, DeviceError, KeptRows, RowKind};

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
    pub lengths: &'a Buffer<f32>,
    /// `[kv_heads]`: entries of each head.
    pub entries: &'a Buffer<u32>,
    /// Row stride of the tables.
    pub capacity: usize,
    /// Set if the keys are stored before RoPE; the rank of an entry is its index.
    pub angles: Option<Angles<'a>>,
}

/// Scratch of [`Device::class_attention`].
pub struct ClassScratch {
    /// `[q_heads, max_entries]`
    probabilities: Buffer<f32>,
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
        let wanted = 2 * device.facts().multiprocessors as usize;
        let splits = wanted
            .div_ceil(shape.q_heads)
            .min(max_rows.div_ceil(ROWS_EACH))
            .max(1);
        Ok(Self {
            probabilities: device.alloc_uninit(shape.q_heads * max_entries)?,
            mass: device.alloc_uninit(shape.q_heads * max_rows)?,
            parts: device.alloc_uninit(splits * shape.q_heads * shape.head_dim)?,
            shape,
            max_rows,
            max_entries,
            splits,
        })
    }

    /// `[q_heads, stride]`: probability of each entry in the last call. Elements after a head's entries are stale.
    pub fn probabilities(&self) -> &Buffer<f32> {
        &self.probabilities
    }

    /// Row stride of [`ClassScratch::probabilities`].
    pub fn stride(&self) -> usize {
        self.max_entries
    }

    /// The most classes of a head.
    pub fn rows(&self) -> usize {
        self.max_rows
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> u64 {
        self.probabilities.bytes() + self.mass.bytes() + self.parts.bytes()
    }
}

/// `device/class_attention.cu`.
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
    cos: Address,
    sin: Address,
    logits: Address,
    mass: Address,
    parts: Address,
    out: Address,
    q_heads: u32,
    kv_heads: u32,
    dim: u32,
    capacity: u32,
    max_rows: u32,
    rope_dim: u32,
    neighbours: u32,
    splits: u32,
    factor: f32,
    cap: f32,
}

impl Device {
    /// Writes `out [q_heads, head_dim]`, and the probabilities to `scratch`.
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
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let shape = &task.shape;
        let (heads, dim, capacity) = (shape.q_heads, shape.head_dim, task.capacity);
        assert_eq!(*shape, scratch.shape, "the scratch is for other heads");
        assert_eq!(
            (capacity, task.keys.kind, task.values.kind),
            (scratch.max_entries, RowKind::F16, RowKind::F16),
            "tables as large as the scratch, and classes in f16"
        );
        assert_eq!((task.keys.head_dim(), task.values.head_dim()), (dim, dim));
        assert!(
            task.queries.len() >= heads * dim && out.len() >= heads * dim,
            "queries and out are [q_heads {heads}, head_dim {dim}]"
        );
        let per_head = [task.first_rows, task.rows, task.entries];
        assert!(
            per_head.iter().all(|b| b.len() >= shape.kv_heads),
            "first_rows, rows and entries are [kv_heads]"
        );
        assert!(
            task.classes.len() >= shape.kv_heads * capacity
                && task.lengths.len() >= shape.kv_heads * capacity,
            "classes and lengths are [kv_heads, capacity {capacity}]"
        );
        if let Some(angles) = &task.angles {
            angles.check(0, dim);
        }
        let parameters = Parameters {
            queries: task.queries.address(),
            keys: task.keys.numbers().address(),
            values: task.values.numbers().address(),
            first_rows: task.first_rows.address(),
            rows: task.rows.address(),
            classes: task.classes.address(),
            lengths: task.lengths.address(),
            entries: task.entries.address(),
            cos: task.angles.map_or(0, |a| a.cos.address()),
            sin: task.angles.map_or(0, |a| a.sin.address()),
            logits: scratch.probabilities.address(),
            mass: scratch.mass.address(),
            parts: scratch.parts.address(),
            out: out.address(),
            q_heads: heads as u32,
            kv_heads: shape.kv_heads as u32,
            dim: dim as u32,
            capacity: capacity as u32,
            max_rows: scratch.max_rows as u32,
            rope_dim: task.angles.map_or(0, |a| a.rope_dim as u32),
            neighbours: task.angles.map_or(0, |a| a.neighbours()),
            splits: scratch.splits as u32,
            factor: task.scale.factor,
            cap: task.scale.cap.unwrap_or(0.0),
        };
        let geometry = |grid: [usize; 3], threads: u32, shared_bytes: u32| Geometry {
            grid: grid.map(|blocks| blocks as u32),
            block: [threads, 1, 1],
            shared_bytes,
        };
        let logits = geometry([capacity.div_ceil(4), shape.kv_heads, 1], 128, 0);
        let mass = geometry([heads, 1, 1], 256, 2 * 256 / 32 * 4);
        let threads = (dim as u32).next_multiple_of(32);
        let values = geometry([scratch.splits, heads, 1], threads, 0);
        let sum = geometry([heads, 1, 1], threads, 0);
        // SAFETY: lengths were checked; the caller answers for device values.
        unsafe {
            self.launch("class_logits", logits, &parameters)?;
            self.launch("class_mass", mass, &parameters)?;
            self.launch("class_values", values, &parameters)?;
            self.launch("class_sum", sum, &parameters)
        }
    }
}
