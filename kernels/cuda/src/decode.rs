//! One new token over the rows that a compact cache holds: `device/decode_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::attention::{CombineParameters, stages, tile_keys};
use crate::driver::{Address, Geometry};
use crate::{Angles, Buffer, Device, DeviceError, ScaleParameters, supported};

/// Query heads that pass over a row together.
const HEADS_OF_BLOCK: usize = 16;
/// Shortest share of the rows that a block takes: below, combining the parts costs more than the block saves.
const ROWS_EACH: usize = 256;
/// Blocks wanted for each multiprocessor.
const BLOCKS_EACH: usize = 2;
/// Numbers that share a scale in q8_0 and q4_0.
const BLOCK: usize = 32;

/// How the numbers of a kept row are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// 16 bits each.
    F16,
    /// 8 bits each, and 16 for every 32.
    Q8_0,
    /// 4 bits each, and 16 for every 32.
    Q4_0,
}

impl RowKind {
    fn name(self) -> &'static str {
        match self {
            RowKind::F16 => "f16",
            RowKind::Q8_0 => "q8_0",
            RowKind::Q4_0 => "q4_0",
        }
    }

    /// Bytes of the numbers of a row, without scales.
    pub fn number_bytes(self, head_dim: usize) -> usize {
        match self {
            RowKind::F16 => 2 * head_dim,
            RowKind::Q8_0 => head_dim,
            RowKind::Q4_0 => head_dim / 2,
        }
    }

    /// Scales of a row.
    pub fn scales(self, head_dim: usize) -> usize {
        match self {
            RowKind::F16 => 0,
            RowKind::Q8_0 | RowKind::Q4_0 => head_dim.div_ceil(BLOCK),
        }
    }
}

/// Keys or values of a compact cache: `slots` rows of all heads together.
pub struct KeptRows {
    pub(crate) kind: RowKind,
    /// `[slots, number_bytes]`
    pub(crate) numbers: Buffer<u8>,
    /// `[slots, scales]`
    pub(crate) scales: Buffer<f16>,
    pub(crate) slots: usize,
    head_dim: usize,
}

impl KeptRows {
    /// Room for `slots` rows.
    pub fn new(
        device: &Device,
        kind: RowKind,
        slots: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            kind,
            numbers: device.room(slots * kind.number_bytes(head_dim))?,
            scales: device.room(slots * kind.scales(head_dim))?,
            slots,
            head_dim,
        })
    }

    /// Numbers of a row.
    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The numbers, `[slots, number_bytes]`.
    pub fn numbers(&self) -> &Buffer<u8> {
        &self.numbers
    }

    /// The scales, `[slots, scales]`.
    pub fn scales(&self) -> &Buffer<f16> {
        &self.scales
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.numbers.bytes() + self.scales.bytes()
    }

    /// The numbers, `[slots, number_bytes]`.
    pub fn numbers_mut(&mut self) -> &mut Buffer<u8> {
        &mut self.numbers
    }

    /// The scales, `[slots, scales]`.
    pub fn scales_mut(&mut self) -> &mut Buffer<f16> {
        &mut self.scales
    }

    fn parameters(&self) -> RowsParameters {
        RowsParameters {
            data: self.numbers.address(),
            scales: self.scales.address(),
        }
    }
}

/// Keys that are stored before RoPE, and where each stands.
pub struct Ranks<'a> {
    /// `[slots]`; positions that the angles reach.
    pub ranks: &'a Buffer<u32>,
    /// By rank.
    pub angles: Angles<'a>,
}

/// Attention of one row over `rows[h]` rows of each kv head.
pub struct DecodeAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale,
    /// `[q_heads, head_dim]`, rotated.
    pub queries: &'a Buffer<f16>,
    /// Kept keys.
    pub keys: &'a KeptRows,
    /// Kept values, of the same kind.
    pub values: &'a KeptRows,
    /// `[kv_heads]`: first slot of each head.
    pub first_rows: &'a Buffer<u32>,
    /// `[kv_heads]`: filled slots of each head. They lie on the device and cannot be checked here: the caller answers for them.
    pub rows: &'a Buffer<u32>,
    /// `Some`: the keys are stored before RoPE.
    pub ranks: Option<Ranks<'a>>,
}

/// All memory of [`Device::decode_attention`].
pub struct DecodeScratch {
    /// `[splits, q_heads, head_dim]`
    parts: Buffer<f32>,
    /// `[splits, q_heads]`
    sums: Buffer<f32>,
    /// `[q_heads]`
    log_sum_exp: Buffer<f32>,
    /// `[q_heads, max_rows]`: logits, then probabilities; empty where nobody wants them.
    probabilities: Buffer<f32>,
    shape: HeadShape,
    max_rows: usize,
    splits: usize,
}

impl DecodeScratch {
    /// For up to `max_rows` rows in a kv head; with room for their probabilities if a method wants to see them.
    pub fn new(
        device: &Device,
        shape: HeadShape,
        max_rows: usize,
        probabilities: bool,
    ) -> Result<Self, DeviceError> {
        let blocks = shape.kv_heads * shape.group().div_ceil(HEADS_OF_BLOCK);
        let wanted = (BLOCKS_EACH * device.facts().multiprocessors as usize).div_ceil(blocks);
        let splits = wanted.min(max_rows.div_ceil(ROWS_EACH)).max(1);
        let heads = shape.q_heads;
        Ok(Self {
            parts: device.room(splits * heads * shape.head_dim)?,
            sums: device.room(splits * heads)?,
            log_sum_exp: device.room(heads)?,
            probabilities: device.room(if probabilities { heads * max_rows } else { 0 })?,
            shape,
            max_rows,
            splits,
        })
    }

    /// `[q_heads, stride]`: probability of each row in the last call; what lies beyond a head's rows is left over. Empty where they
    /// were not asked for.
    pub fn probabilities(&self) -> &Buffer<f32> {
        &self.probabilities
    }

    /// Row stride of [`DecodeScratch::probabilities`].
    pub fn stride(&self) -> usize {
        self.max_rows
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let sums = self.sums.bytes() + self.log_sum_exp.bytes();
        self.parts.bytes() + sums + self.probabilities.bytes()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RowsParameters {
    data: Address,
    scales: Address,
}

/// `device/decode_attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    queries: Address,
    keys: RowsParameters,
    values: RowsParameters,
    first_rows: Address,
    rows: Address,
    ranks: Address,
    cos: Address,
    sin: Address,
    parts: Address,
    part_sums: Address,
    logits: Address,
    q_heads: u32,
    kv_heads: u32,
    first_split: u32,
    stride: u32,
    rope_dim: u32,
    neighbours: u32,
    stages: u32,
    scale: ScaleParameters,
}

/// `device/combine.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProbabilitiesParameters {
    logits: Address,
    log_sum_exp: Address,
    rows: Address,
    q_heads: u32,
    kv_heads: u32,
    stride: u32,
}

impl Device {
    /// Writes `out [q_heads, head_dim]`, and the probabilities into `scratch` if it has room for them.
    ///
    /// # Panics
    /// When shapes do not fit.
    ///
    /// # Safety
    /// On the device, each of `rows` is at least 1 and at most what the scratch was made for, its slots lie within the kept rows, and
    /// every rank is a position of the angle tables.
    pub unsafe fn decode_attention(
        &self,
        task: &DecodeAttention<'_>,
        scratch: &mut DecodeScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let shape = &task.shape;
        let (dim, heads) = (supported(shape.head_dim)?, shape.q_heads);
        assert_eq!(*shape, scratch.shape, "the scratch is for other heads");
        assert!(
            task.queries.len() >= heads * dim && out.len() >= heads * dim,
            "queries and out are [q_heads {heads}, head_dim {dim}]"
        );
        assert_eq!(
            task.keys.kind, task.values.kind,
            "keys and values are of one kind"
        );
        assert_eq!(
            (task.keys.head_dim, task.values.head_dim, task.keys.slots),
            (dim, dim, task.values.slots),
            "kept rows of other heads"
        );
        assert!(
            task.first_rows.len() >= shape.kv_heads && task.rows.len() >= shape.kv_heads,
            "first_rows and rows are [kv_heads]"
        );
        if let Some(ranks) = &task.ranks {
            ranks.angles.check(0, dim);
            assert!(ranks.ranks.len() >= task.keys.slots, "ranks are [slots]");
        }
        let (stages, shared_bytes) = stages(self, dim);
        let turned = task.ranks.as_ref();
        let parameters = Parameters {
            queries: task.queries.address(),
            keys: task.keys.parameters(),
            values: task.values.parameters(),
            first_rows: task.first_rows.address(),
            rows: task.rows.address(),
            ranks: turned.map_or(0, |r| r.ranks.address()),
            cos: turned.map_or(0, |r| r.angles.cos.address()),
            sin: turned.map_or(0, |r| r.angles.sin.address()),
            parts: scratch.parts.address(),
            part_sums: scratch.sums.address(),
            logits: match scratch.probabilities.is_empty() {
                true => 0,
                false => scratch.probabilities.address(),
            },
            q_heads: heads as u32,
            kv_heads: shape.kv_heads as u32,
            first_split: 0,
            stride: scratch.max_rows as u32,
            rope_dim: turned.map_or(0, |r| r.angles.rope_dim as u32),
            neighbours: turned.map_or(0, |r| r.angles.neighbours()),
            stages,
            scale: task.scale.into(),
        };
        let blocks_of_group = shape.group().div_ceil(HEADS_OF_BLOCK) as u32;
        let geometry = Geometry {
            grid: [
                scratch.splits as u32,
                shape.kv_heads as u32,
                blocks_of_group,
            ],
            // A warp for every 16 keys of a tile.
            block: [(tile_keys(dim) / 16 * 32) as u32, 1, 1],
            shared_bytes,
        };
        let combine = CombineParameters {
            parts: scratch.parts.address(),
            part_sums: scratch.sums.address(),
            out: out.address(),
            log_sum_exp: scratch.log_sum_exp.address(),
            splits: scratch.splits as u32,
            rows: 1,
            q_heads: heads as u32,
            dim: dim as u32,
        };
        let kernel = format!("decode_attention_{}_{dim}", task.keys.kind.name());
        // SAFETY: lengths were checked; for what lies on the device the caller answers.
        unsafe {
            self.launch(&kernel, geometry, &parameters)?;
            let geometry = Geometry {
                grid: [1, heads as u32, 1],
                block: [(dim as u32).next_multiple_of(32), 1, 1],
                shared_bytes: 0,
            };
            self.launch("combine", geometry, &combine)?;
            if scratch.probabilities.is_empty() {
                return Ok(());
            }
            let geometry = Geometry {
                grid: [scratch.max_rows.div_ceil(256) as u32, heads as u32, 1],
                block: [256, 1, 1],
                shared_bytes: 0,
            };
            let parameters = ProbabilitiesParameters {
                logits: scratch.probabilities.address(),
                log_sum_exp: scratch.log_sum_exp.address(),
                rows: task.rows.address(),
                q_heads: heads as u32,
                kv_heads: shape.kv_heads as u32,
                stride: scratch.max_rows as u32,
            };
            self.launch("probabilities", geometry, &parameters)
        }
    }
}
