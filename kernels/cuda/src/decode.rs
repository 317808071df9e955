//! One new token over the rows that a compact cache holds: `device/decode_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::attention::{CombineParameters, stages, tile_keys};
use crate::driver::{Address, Geometry};
use crate::kept::RowsParameters;
use crate::step::InputsParameters;
use crate::{
    Angles, Buffer, Device, DeviceError, Indices, KeptRows, RowInputs, ScaleParameters, supported,
};

/// Query heads that pass over a row together.
const HEADS_OF_BLOCK: usize = 16;
/// Shortest share of the rows that a block takes: below, combining the parts costs more than the block saves.
const ROWS_EACH: usize = 256;
/// Blocks wanted for each multiprocessor.
const BLOCKS_EACH: usize = 2;

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
    /// `[slots]`: the row of each slot, from the narrow ones on the wide ones; `None`: slot i is row i, and no row is wide.
    pub places: Option<&'a Indices>,
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
    /// `[splits, q_heads, 2]`: of each part the largest logit and its slot.
    best: Buffer<f32>,
    /// `[kv_heads, blocks of a group]`: blocks that have ended; 0 between two calls.
    arrived: Buffer<u32>,
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
            parts: device.alloc_uninit(splits * heads * shape.head_dim)?,
            sums: device.alloc_uninit(splits * heads)?,
            log_sum_exp: device.alloc_uninit(heads)?,
            best: device.alloc_uninit(splits * heads * 2)?,
            arrived: device.zeros(blocks)?,
            probabilities: device.alloc_uninit(if probabilities { heads * max_rows } else { 0 })?,
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
        let sums = sums + self.best.bytes() + self.arrived.bytes();
        self.parts.bytes() + sums + self.probabilities.bytes()
    }
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
    places: Address,
    ranks: Address,
    cos: Address,
    sin: Address,
    parts: Address,
    part_sums: Address,
    logits: Address,
    q_heads: u32,
    kv_heads: u32,
    narrow: u32,
    first_split: u32,
    stride: u32,
    rope_dim: u32,
    neighbours: u32,
    stages: u32,
    scale: ScaleParameters,
    arrived: Address,
    part_best: Address,
    best: Address,
    out: InputsParameters,
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
        let (heads, dim) = (task.shape.q_heads, task.shape.head_dim);
        let (parameters, geometry) = self.prepare(task, scratch, out.len())?;
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
        let kernel = kernel(task);
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
                kv_heads: task.shape.kv_heads as u32,
                stride: scratch.max_rows as u32,
            };
            self.launch("probabilities", geometry, &parameters)
        }
    }

    /// The same in one launch, of a token that is recorded: writes `out [q_heads, head_dim]`, and to `best [q_heads, 2]`, as bits, the largest
    /// probability of each query head and its slot as a number. `out` still has to be rounded if heads are not made of 32s.
    ///
    /// # Panics
    /// When shapes do not fit, or keys are stored before RoPE.
    ///
    /// # Safety
    /// As [`Device::decode_attention`], whenever it runs.
    pub(crate) unsafe fn step_attention(
        &self,
        task: &DecodeAttention<'_>,
        scratch: &mut DecodeScratch,
        out: &mut RowInputs,
        best: &mut Buffer<u32>,
    ) -> Result<(), DeviceError> {
        let heads = task.shape.q_heads;
        assert!(task.ranks.is_none(), "keys stand where they are");
        assert!(best.len() >= 2 * heads, "best is [q_heads {heads}, 2]");
        let (parameters, geometry) = self.prepare(task, scratch, out.width())?;
        let parameters = Parameters {
            logits: 0,
            arrived: scratch.arrived.address(),
            part_best: scratch.best.address(),
            best: best.address(),
            out: out.parameters(),
            ..parameters
        };
        // SAFETY: lengths were checked; for what lies on the device the caller answers.
        unsafe { self.launch(&kernel(task), geometry, &parameters) }
    }

    /// Checks shapes, `out` numbers of what is written among them.
    fn prepare(
        &self,
        task: &DecodeAttention<'_>,
        scratch: &DecodeScratch,
        out: usize,
    ) -> Result<(Parameters, Geometry), DeviceError> {
        let shape = &task.shape;
        let (dim, heads) = (supported(shape.head_dim)?, shape.q_heads);
        assert_eq!(*shape, scratch.shape, "the scratch is for other heads");
        assert!(
            task.queries.len() >= heads * dim && out >= heads * dim,
            "queries and out are [q_heads {heads}, head_dim {dim}]"
        );
        assert_eq!(
            task.keys.kind, task.values.kind,
            "keys and values are of one kind"
        );
        assert_eq!(
            (task.keys.head_dim(), task.values.head_dim()),
            (dim, dim),
            "kept rows of other heads"
        );
        assert_eq!(
            (task.keys.narrow, task.keys.wide_rows()),
            (task.values.narrow, task.values.wide_rows()),
            "as many keys as values"
        );
        let slots = task.places.map_or(task.keys.narrow, Indices::len);
        assert!(
            task.places
                .is_none_or(|places| places.end() <= task.keys.rows()),
            "places are below {}",
            task.keys.rows()
        );
        assert!(
            task.first_rows.len() >= shape.kv_heads && task.rows.len() >= shape.kv_heads,
            "first_rows and rows are [kv_heads]"
        );
        if let Some(ranks) = &task.ranks {
            ranks.angles.check(0, dim);
            assert!(ranks.ranks.len() >= slots, "ranks are [slots]");
        }
        let (stages, shared_bytes) = stages(self, dim);
        let turned = task.ranks.as_ref();
        let parameters = Parameters {
            queries: task.queries.address(),
            keys: task.keys.parameters(),
            values: task.values.parameters(),
            first_rows: task.first_rows.address(),
            rows: task.rows.address(),
            places: task.places.map_or(0, Indices::address),
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
            narrow: task.keys.narrow as u32,
            first_split: 0,
            stride: scratch.max_rows as u32,
            rope_dim: turned.map_or(0, |r| r.angles.rope_dim as u32),
            neighbours: turned.map_or(0, |r| r.angles.neighbours()),
            stages,
            scale: task.scale.into(),
            arrived: 0,
            part_best: 0,
            best: 0,
            out: InputsParameters::NONE,
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
        Ok((parameters, geometry))
    }
}

/// The kernel's name.
fn kernel(task: &DecodeAttention<'_>) -> String {
    let (kind, dim) = (task.keys.kind.name(), task.shape.head_dim);
    format!("decode_attention_{kind}_{dim}")
}
