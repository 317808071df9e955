//! Decode step of one token in few launches: `device/step.cu`, `device/step_products.cu` and the end of
//! `device/decode_attention.cu`. Values that differ between tokens are on the device, so that a step can be captured
//! once and replayed ([`crate::CapturedGraph`]).

mod inputs;
mod parameters;

use half::f16;

use crate::driver::Geometry;
pub(crate) use inputs::InputsParameters;
use inputs::RUN;
pub use inputs::RowInputs;
use parameters::*;

use crate::{Activation, Buffer, Device, DeviceError, RmsNorm, RopeTables, StepLayer, Weights};

/// The most numbers that [`Device::largest`] returns.
pub const MAX_CANDIDATES: usize = 64;
/// The widest row of a norm: what the threads of a block hold (`HELD` in `device/step.cu`).
pub(crate) const MAX_WIDTH: usize = 16 * 1024;
/// Numbers per block of `largest`.
const EACH: usize = 2048;

/// Output of a product of one row: the matrix, an optional bias and the result, `[rows]` both.
pub type RowProduct<'a> = (&'a Weights, Option<&'a Buffer<f32>>, &'a mut Buffer<f32>);

/// Projected heads of one row, before norm and RoPE: queries for attention, keys and values for the cache.
pub struct StepHeads<'a> {
    /// `[q_heads, dim]`, bias included.
    pub q: &'a Buffer<f32>,
    /// `[kv_heads, dim]`, bias included.
    pub k: &'a Buffer<f32>,
    /// `[kv_heads, dim]`, bias included.
    pub v: &'a Buffer<f32>,
    /// `[dim]`: weights of an RMSNorm of each query.
    pub q_norm: Option<&'a Buffer<f32>>,
    /// `[dim]`: weights of an RMSNorm of each key.
    pub k_norm: Option<&'a Buffer<f32>>,
    /// Epsilon of these norms.
    pub eps: f32,
    /// RoPE, if the layer has it.
    pub angles: Option<RopeTables<'a>>,
}

/// Scratch of [`Device::largest`].
pub struct Candidates {
    /// `[blocks, MAX_CANDIDATES]`: numbers as bits.
    values: Buffer<u32>,
    /// `[blocks, MAX_CANDIDATES]`
    places: Buffer<u32>,
    count: usize,
}

impl Candidates {
    /// For `count` numbers.
    pub fn new(device: &Device, count: usize) -> Result<Self, DeviceError> {
        let capacity = count.div_ceil(EACH) * MAX_CANDIDATES;
        Ok(Self {
            values: device.alloc_uninit(capacity)?,
            places: device.alloc_uninit(capacity)?,
            count,
        })
    }
}

impl Device {
    /// Adds a pending output to `residual [width]` (after an RMSNorm, if `added` has weights), then writes the `norm`
    /// of `residual` to `out`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn step_norm(
        &self,
        residual: &mut Buffer<f32>,
        added: Option<(&Buffer<f32>, Option<&Buffer<f32>>)>,
        norm: RmsNorm<'_>,
        out: &mut RowInputs,
    ) -> Result<(), DeviceError> {
        let width = norm.weight.len();
        let post = added.and_then(|(_, post)| post);
        assert!(
            residual.len() >= width
                && out.width() >= width
                && added.is_none_or(|(added, _)| added.len() >= width)
                && post.is_none_or(|post| post.len() == width),
            "residual, added, post and out are [width {width}]"
        );
        assert!(width <= MAX_WIDTH, "a norm takes rows of up to {MAX_WIDTH}");
        out.lacks_norm = None;
        let parameters = NormParameters {
            residual: residual.address(),
            added: added.map_or(0, |(added, _)| added.address()),
            post: post.map_or(0, Buffer::address),
            weight: norm.weight.address(),
            out: out.parameters(),
            width: width as u32,
            eps: norm.eps,
        };
        let geometry = Geometry::new([1, 1, 1], 1024, 2 * 32 * 4);
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe { self.launch("step_norm", geometry, &parameters) }
    }

    /// Quantises the values of `row`.
    pub fn step_inputs(&self, row: &mut RowInputs) -> Result<(), DeviceError> {
        let width = row.width();
        row.lacks_norm = None;
        let parameters = RoundParameters {
            of: row.parameters(),
            width: width as u32,
        };
        let geometry = Geometry::new([width.div_ceil(256), 1, 1], 256, 0);
        // SAFETY: all buffers belong to the row.
        unsafe { self.launch("step_inputs", geometry, &parameters) }
    }

    /// Multiplies `inputs` with up to three matrices in one launch. With `added` the products are added to the outputs,
    /// otherwise they replace them. With a cap they become `cap * tanh(x / cap)`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn step_products(
        &self,
        products: &mut [RowProduct<'_>],
        inputs: &RowInputs,
        added: bool,
        cap: Option<f32>,
    ) -> Result<(), DeviceError> {
        let cols = products.first().map_or(0, |(weights, ..)| weights.cols());
        let mut matrices = [MatrixParameters::default(); 3];
        assert!(
            products.len() <= matrices.len() && inputs.width() >= cols,
            "up to three matrices of [.., cols {cols}]"
        );
        let kernel = kernel_name(
            "step_products",
            products.iter().map(|(weights, ..)| *weights),
        );
        let mut rows = 0;
        for (matrix, (weights, bias, out)) in matrices.iter_mut().zip(products) {
            assert!(
                weights.cols() == cols
                    && out.len() >= weights.rows()
                    && bias.is_none_or(|bias| bias.len() == weights.rows()),
                "out and bias are [rows {}]",
                weights.rows()
            );
            let bias = bias.map_or(0, Buffer::address);
            *matrix = MatrixParameters::new(weights, bias, out.address());
            rows += weights.rows();
        }
        let parameters = ProductsParameters {
            matrices,
            inputs: inputs.parameters(),
            cols: cols as u32,
            added: u32::from(added),
            cap: cap.unwrap_or(0.0),
        };
        let geometry = Geometry::new([rows.div_ceil(8), 1, 1], 256, 0);
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe { self.launch(&kernel, geometry, &parameters) }
    }

    /// Adds `inputs * weights^T` to `residual [rows]` and writes the `norm` of `residual` to `out`, all but its factor:
    /// products that read `out` apply it. So a norm needs no launch, in which one block would wait for all others.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn step_added(
        &self,
        (weights, bias, residual): RowProduct<'_>,
        inputs: &RowInputs,
        norm: RmsNorm<'_>,
        out: &mut RowInputs,
    ) -> Result<(), DeviceError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        assert!(
            inputs.width() >= cols
                && residual.len() >= rows
                && out.width() == rows
                && norm.weight.len() == rows
                && bias.is_none_or(|bias| bias.len() == rows),
            "residual, bias, norm and out are [rows {rows}], inputs are [cols {cols}]"
        );
        out.lacks_norm = Some(norm.eps);
        let bias = bias.map_or(0, Buffer::address);
        let parameters = AddedParameters {
            matrix: MatrixParameters::new(weights, bias, residual.address()),
            weight: norm.weight.address(),
            squares: out.squares.address(),
            inputs: inputs.parameters(),
            out: out.parameters(),
            cols: cols as u32,
        };
        let geometry = Geometry::new([rows.div_ceil(RUN), 1, 1], 1024, RUN * 4);
        let kernel = kernel_name("step_added", [weights].into_iter());
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe { self.launch(&kernel, geometry, &parameters) }
    }

    /// `out = activation(inputs * gate^T) * (inputs * up^T)`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn step_gated(
        &self,
        activation: Activation,
        gate: &Weights,
        up: &Weights,
        inputs: &RowInputs,
        out: &mut RowInputs,
    ) -> Result<(), DeviceError> {
        let (rows, cols) = (gate.rows(), gate.cols());
        assert!(
            (up.rows(), up.cols()) == (rows, cols) && inputs.width() >= cols && out.width() >= rows,
            "gate and up are [rows {rows}, cols {cols}]"
        );
        out.lacks_norm = None;
        let parameters = GatedParameters {
            gate: MatrixParameters::new(gate, 0, 0),
            up: MatrixParameters::new(up, 0, 0),
            inputs: inputs.parameters(),
            out: out.parameters(),
            cols: cols as u32,
            gelu: u32::from(activation == Activation::Gelu),
        };
        let geometry = Geometry::new([rows.div_ceil(RUN), 1, 1], 256, 2 * RUN * 4);
        let kernel = kernel_name("step_gated", [gate, up].into_iter());
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe { self.launch(&kernel, geometry, &parameters) }
    }

    /// # Safety
    /// On the device, targets are rows of the cache, and position and ranks are below `position_limit`.
    pub(crate) unsafe fn step_heads(
        &self,
        heads: &StepHeads<'_>,
        layer: &StepLayer,
        queries: &mut Buffer<f16>,
    ) -> Result<(), DeviceError> {
        let target = &layer.buffers;
        let dim = target.keys.head_dim();
        let (q_heads, kv_heads) = (heads.q.len() / dim, heads.k.len() / dim);
        let norms = [heads.q_norm, heads.k_norm];
        assert!(
            heads.q.len() == q_heads * dim
                && heads.k.len() == kv_heads * dim
                && heads.v.len() == kv_heads * dim
                && queries.len() >= q_heads * dim
                && target.values.head_dim() == dim
                && target.targets.len() >= kv_heads
                && target.query_positions.len() >= kv_heads
                && !layer.position.is_empty()
                && (layer.copies.as_ref()).is_none_or(|copies| copies.len() >= 2 * kv_heads * dim)
                && norms.iter().flatten().all(|norm| norm.len() == dim),
            "q and queries are [q_heads, dim {dim}], k and v [kv_heads, dim]"
        );
        assert_eq!(
            (target.keys.kind, target.keys.narrow),
            (target.values.kind, target.values.narrow),
            "keys and values are of one kind"
        );
        if let Some(angles) = &heads.angles {
            angles.check(layer.position_limit, dim);
        }
        let angles = heads.angles.as_ref();
        let (tables, pairs) = RopeTables::parameters(angles);
        let parameters = HeadsParameters {
            q: heads.q.address(),
            k: heads.k.address(),
            v: heads.v.address(),
            q_norm: heads.q_norm.map_or(0, Buffer::address),
            k_norm: heads.k_norm.map_or(0, Buffer::address),
            angles: tables,
            position: layer.position.address(),
            // Without RoPE, keys are the same before and after it.
            ranks: match (&target.ranks, angles) {
                (Some(_), Some(_)) => target.query_positions.address(),
                _ => 0,
            },
            targets: target.targets.address(),
            queries: queries.address(),
            copies: layer.copies.as_ref().map_or(0, Buffer::address),
            keys: target.keys.parameters(),
            values: target.values.parameters(),
            q_heads: q_heads as u32,
            kv_heads: kv_heads as u32,
            dim: dim as u32,
            pairs,
            narrow: target.keys.narrow as u32,
            kind: target.keys.kind.number(),
            eps: heads.eps,
        };
        let geometry = Geometry::warp_per_row(q_heads + 2 * kv_heads, dim);
        // SAFETY: lengths were checked; the caller answers for device values.
        unsafe { self.launch("step_heads", geometry, &parameters) }
    }

    /// Finds the `most` largest elements of `x`, in descending order: their bits in `values [most]`, their indices in
    /// `places [most]`; on ties the lower index first. NaN sorts before all numbers. If `x` has fewer elements, the
    /// remaining numbers are minus infinity.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn largest(
        &self,
        x: &Buffer<f32>,
        most: usize,
        scratch: &mut Candidates,
        values: &mut Buffer<u32>,
        places: &mut Buffer<u32>,
    ) -> Result<(), DeviceError> {
        let count = x.len();
        assert!(
            (1..=MAX_CANDIDATES).contains(&most)
                && count == scratch.count
                && values.len() >= most
                && places.len() >= most,
            "values and places are [most {most}]"
        );
        let blocks = count.div_ceil(EACH);
        let first = LargestParameters {
            x: x.address(),
            ids: 0,
            values: scratch.values.address(),
            places: scratch.places.address(),
            count: count as u32,
            each: EACH as u32,
            most: most as u32,
        };
        let left = blocks * most;
        let last = LargestParameters {
            x: scratch.values.address(),
            ids: scratch.places.address(),
            values: values.address(),
            places: places.address(),
            count: left as u32,
            each: left as u32,
            ..first
        };
        let geometry =
            |blocks: usize, each: usize| Geometry::new([blocks, 1, 1], 256, (2 * 8 + each) * 4);
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe {
            self.launch("largest", geometry(blocks, EACH.min(count)), &first)?;
            self.launch("largest", geometry(1, left), &last)
        }
    }
}
