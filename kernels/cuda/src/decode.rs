//! Decode attention of one new token over the rows of a compact KV cache: `device/decode_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::attention::{stages, tile_keys};
use crate::driver::{Address, Geometry};
use crate::kept_rows::RowsParameters;
use crate::step::InputsParameters;
use crate::{
    Buffer, Device, DeviceError, Indices, KeptRows, RopeTables, RowInputs, ScaleParameters,
    supported,
};

/// Query heads that a block computes in one pass over the rows.
const HEADS_OF_BLOCK: usize = 16;
/// The fewest rows of a split: with fewer, combining the parts costs more than the extra block saves.
const ROWS_EACH: usize = 128;
/// Target number of blocks per multiprocessor.
const BLOCKS_EACH: usize = 2;
/// The most splits: the block that combines them has their weights in shared memory.
const MAX_SPLITS: usize = 128;

/// Ranks of keys that are stored before RoPE.
pub struct Ranks<'a> {
    /// `[slots]`; positions within the angle tables.
    pub ranks: &'a Buffer<u32>,
    /// Angles by rank.
    pub angles: RopeTables<'a>,
}

/// Decode attention of one row over `rows[h]` rows of each KV head.
pub struct DecodeAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale<'a>,
    /// `[q_heads, head_dim]`, rotated.
    pub queries: &'a Buffer<f16>,
    /// Kept keys.
    pub keys: &'a KeptRows,
    /// Kept values, of the same type.
    pub values: &'a KeptRows,
    /// `[kv_heads]`: first slot of each head.
    pub first_rows: &'a Buffer<u32>,
    /// `[kv_heads]`: filled slots of each head. These device values cannot be checked on the host: the caller answers
    /// for them.
    pub rows: &'a Buffer<u32>,
    /// `[slots]`: the row of each slot, narrow rows before wide ones; `None`: slot i is row i, and no row is wide.
    pub physical_rows: Option<&'a Indices>,
    /// Set if the keys are stored before RoPE.
    pub ranks: Option<Ranks<'a>>,
}

/// Output of decode attention.
pub struct DecodeOutput<'a> {
    /// `[q_heads, head_dim]`, quantised.
    pub out: &'a mut RowInputs,
    /// `[q_heads, 2]`: each query head's largest probability as bits, and its row or entry as the bits of an f32.
    pub best: &'a mut Buffer<u32>,
    /// `[q_heads, stride]`: probability of each row or entry, if they are needed; those after the last one are stale.
    pub probabilities: Option<&'a mut Buffer<f32>>,
}

impl DecodeOutput<'_> {
    /// Panics unless there is space for `heads` heads of `dim` elements.
    pub(crate) fn check(&self, heads: usize, dim: usize) {
        assert!(
            self.out.width() >= heads * dim && self.best.len() >= 2 * heads,
            "out is [q_heads {heads}, head_dim {dim}], best [q_heads, 2]"
        );
    }

    /// Row stride of the probabilities; 0 if they are not needed.
    pub(crate) fn stride(&self, heads: usize) -> usize {
        (self.probabilities.as_ref()).map_or(0, |probabilities| probabilities.len() / heads)
    }

    /// Address of the probabilities; 0 if they are not needed.
    pub(crate) fn probabilities(&self) -> Address {
        (self.probabilities.as_ref()).map_or(0, |probabilities| probabilities.address())
    }
}

/// Scratch of [`Device::decode_attention`].
pub struct DecodeScratch {
    /// `[splits, q_heads, head_dim]`
    parts: Buffer<f32>,
    /// `[splits, q_heads]`
    sums: Buffer<f32>,
    /// `[q_heads]`
    log_sum_exp: Buffer<f32>,
    /// `[splits, q_heads, 2]`: largest logit of each part, and its slot.
    best: Buffer<f32>,
    /// `[kv_heads, blocks of a group]`: number of finished blocks; 0 between two calls.
    arrived: Buffer<u32>,
    shape: HeadShape,
    max_rows: usize,
    splits: usize,
}

impl DecodeScratch {
    /// For up to `max_rows` rows per KV head.
    pub fn new(device: &Device, shape: HeadShape, max_rows: usize) -> Result<Self, DeviceError> {
        let blocks = shape.kv_heads * shape.group().div_ceil(HEADS_OF_BLOCK);
        let wanted = (BLOCKS_EACH * device.properties().multiprocessors as usize).div_ceil(blocks);
        let splits = wanted
            .min(max_rows.div_ceil(ROWS_EACH))
            .clamp(1, MAX_SPLITS);
        let heads = shape.q_heads;
        Ok(Self {
            parts: device.alloc_uninit(splits * heads * shape.head_dim)?,
            sums: device.alloc_uninit(splits * heads)?,
            log_sum_exp: device.alloc_uninit(heads)?,
            best: device.alloc_uninit(splits * heads * 2)?,
            arrived: device.zeros(blocks)?,
            shape,
            max_rows,
            splits,
        })
    }

    /// The most rows of a head.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    fn geometry(&self, shared_bytes: usize) -> Geometry {
        let shape = &self.shape;
        let blocks_of_group = shape.group().div_ceil(HEADS_OF_BLOCK);
        // A warp for every 16 keys of a tile.
        Geometry::new(
            [self.splits, shape.kv_heads, blocks_of_group],
            tile_keys(shape.head_dim) / 16 * 32,
            shared_bytes,
        )
    }
}

/// Parameters of kernels `decode_attention_*`; same layout as `DecodeAttention` in `device/decode_attention.cu`.
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
    angles: [Address; 2],
    parts: Address,
    part_sums: Address,
    logits: Address,
    log_sum_exp: Address,
    q_heads: u32,
    kv_heads: u32,
    narrow: u32,
    stride: u32,
    pairs: [u32; 2],
    stages: u32,
    scale: ScaleParameters,
    arrived: Address,
    part_best: Address,
    best: Address,
    out: InputsParameters,
}

/// Parameters of kernel `probabilities`; same layout as `Probabilities` in `device/decode_attention.cu`.
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
    /// Attention in one launch, and a second one for probabilities. Heads whose size is not a multiple of 32 take one
    /// more, which quantises the output.
    ///
    /// # Panics
    /// When shapes do not match.
    ///
    /// # Safety
    /// On the device, each of `rows` is between 1 and the scratch's `max_rows`, its slots lie within the kept rows, and
    /// every rank is a position of the angle tables; in a captured step at every replay.
    pub unsafe fn decode_attention(
        &self,
        task: &DecodeAttention<'_>,
        scratch: &mut DecodeScratch,
        output: DecodeOutput<'_>,
    ) -> Result<(), DeviceError> {
        task.check(scratch)?;
        let (heads, dim) = (task.shape.q_heads, task.shape.head_dim);
        output.check(heads, dim);
        output.out.lacks_norm = None;
        let stride = output.stride(heads);
        assert!(
            output.probabilities.is_none() || stride >= scratch.max_rows,
            "probabilities are [q_heads {heads}, max_rows {}]",
            scratch.max_rows
        );
        let (stages, shared_bytes) = stages(self, dim);
        let parameters = Parameters {
            stages,
            ..task.parameters(scratch, &output)
        };
        // SAFETY: lengths were checked; the caller answers for device values.
        unsafe {
            self.launch(&task.kernel(), scratch.geometry(shared_bytes), &parameters)?;
            if output.probabilities.is_some() {
                let geometry = Geometry::new([scratch.max_rows.div_ceil(256), heads, 1], 256, 0);
                let parameters = ProbabilitiesParameters {
                    logits: parameters.logits,
                    log_sum_exp: parameters.log_sum_exp,
                    rows: parameters.rows,
                    q_heads: parameters.q_heads,
                    kv_heads: parameters.kv_heads,
                    stride: parameters.stride,
                };
                self.launch("probabilities", geometry, &parameters)?;
            }
        }
        if dim.is_multiple_of(32) {
            Ok(())
        } else {
            self.step_inputs(output.out)
        }
    }
}

impl DecodeAttention<'_> {
    /// Panics unless shapes match those of the scratch.
    fn check(&self, scratch: &DecodeScratch) -> Result<(), DeviceError> {
        let shape = &self.shape;
        let (dim, heads) = (supported(shape.head_dim)?, shape.q_heads);
        assert_eq!(*shape, scratch.shape, "the scratch is for other heads");
        assert!(
            self.queries.len() >= heads * dim,
            "queries are [q_heads {heads}, head_dim {dim}]"
        );
        assert_eq!(
            self.keys.kind, self.values.kind,
            "keys and values are of one kind"
        );
        assert_eq!(
            (self.keys.head_dim(), self.values.head_dim()),
            (dim, dim),
            "kept rows of other heads"
        );
        assert_eq!(
            (self.keys.narrow, self.keys.wide_rows()),
            (self.values.narrow, self.values.wide_rows()),
            "as many keys as values"
        );
        let slots = self.physical_rows.map_or(self.keys.narrow, Indices::len);
        assert!(
            self.physical_rows
                .is_none_or(|rows| rows.end() <= self.keys.rows()),
            "physical rows are below {}",
            self.keys.rows()
        );
        assert!(
            self.first_rows.len() >= shape.kv_heads && self.rows.len() >= shape.kv_heads,
            "first_rows and rows are [kv_heads]"
        );
        if let Some(ranks) = &self.ranks {
            ranks.angles.check(0, dim);
            assert!(ranks.ranks.len() >= slots, "ranks are [slots]");
        }
        Ok(())
    }

    fn parameters(&self, scratch: &DecodeScratch, output: &DecodeOutput<'_>) -> Parameters {
        let rope = self.ranks.as_ref();
        let (angles, pairs) = RopeTables::parameters(rope.map(|ranks| &ranks.angles));
        let heads = self.shape.q_heads;
        Parameters {
            queries: self.queries.address(),
            keys: self.keys.parameters(),
            values: self.values.parameters(),
            first_rows: self.first_rows.address(),
            rows: self.rows.address(),
            places: self.physical_rows.map_or(0, Indices::address),
            ranks: rope.map_or(0, |r| r.ranks.address()),
            angles,
            parts: scratch.parts.address(),
            part_sums: scratch.sums.address(),
            logits: output.probabilities(),
            log_sum_exp: scratch.log_sum_exp.address(),
            q_heads: heads as u32,
            kv_heads: self.shape.kv_heads as u32,
            narrow: self.keys.narrow as u32,
            stride: output.stride(heads) as u32,
            pairs,
            stages: 1,
            scale: self.scale.into(),
            arrived: scratch.arrived.address(),
            part_best: scratch.best.address(),
            best: output.best.address(),
            out: output.out.parameters(),
        }
    }

    /// Name of the kernel.
    fn kernel(&self) -> String {
        let (kind, dim) = (self.keys.kind.name(), self.shape.head_dim);
        format!("decode_attention_{kind}_{dim}")
    }
}
