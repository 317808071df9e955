//! Row-wise operations of a layer: `device/elementwise.cu`.

use half::f16;
use kept_kernels::{HeadShape, Pairing};

use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError, Indices, LayerRows};

/// Cosines and sines of RoPE by position, in device memory.
#[derive(Clone, Copy)]
pub struct RopeTables<'a> {
    /// `[positions, rope_dim / 2]`
    pub cos: &'a Buffer<f32>,
    /// `[positions, rope_dim / 2]`
    pub sin: &'a Buffer<f32>,
    /// Leading elements of a row that are rotated.
    pub rope_dim: usize,
    /// Which elements form a pair.
    pub pairing: Pairing,
}

impl RopeTables<'_> {
    /// Panics unless the tables cover `positions` positions and `rope_dim` fits heads of `dim` elements.
    pub(crate) fn check(&self, positions: usize, dim: usize) {
        let rope_dim = self.rope_dim;
        assert!(
            rope_dim > 0 && rope_dim.is_multiple_of(2) && rope_dim <= dim,
            "rope_dim {rope_dim} for head_dim {dim}"
        );
        let capacity = self.cos.len().min(self.sin.len()) / (rope_dim / 2);
        assert!(
            positions <= capacity,
            "{positions} positions, the angle tables hold {capacity}"
        );
    }

    /// For the parameters of a kernel: the addresses of cosines and sines, and `rope_dim` and whether neighbours form
    /// pairs; zeros without angles.
    pub(crate) fn parameters(angles: Option<&Self>) -> ([Address; 2], [u32; 2]) {
        angles.map_or(Default::default(), |angles| {
            let neighbours = u32::from(angles.pairing == Pairing::Neighbours);
            let tables = [angles.cos.address(), angles.sin.address()];
            (tables, [angles.rope_dim as u32, neighbours])
        })
    }
}

/// Positions of projected rows.
#[derive(Clone, Copy)]
pub enum RowPositions<'a> {
    /// Consecutive positions from this one on.
    From(usize),
    /// `[rows]` positions.
    At(&'a Indices),
}

/// An RMSNorm.
#[derive(Clone, Copy)]
pub struct RmsNorm<'a> {
    /// `[width]`
    pub weight: &'a Buffer<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Projected heads, before bias, norm and RoPE.
pub struct Heads<'a> {
    /// `[rows, heads, dim]`
    pub projected: &'a Buffer<f32>,
    /// Number of rows.
    pub rows: usize,
    /// Number of heads.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// `[heads * dim]`, added first.
    pub bias: Option<&'a Buffer<f32>>,
    /// RMSNorm of each head, with weights `[dim]`.
    pub norm: Option<RmsNorm<'a>>,
    /// RoPE, if the layer has it.
    pub angles: Option<RopeTables<'a>>,
    /// Positions of the rows.
    pub positions: RowPositions<'a>,
}

/// Parameters of kernel `rms_norm`; same layout as `RmsNorm` in `device/elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RmsNormParameters {
    x: Address,
    weight: Address,
    out: Address,
    residual: Address,
    rows: u32,
    width: u32,
    eps: f32,
}

/// Parameters of kernel `heads`; same layout as `Heads` in `device/elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeadsParameters {
    x: Address,
    bias: Address,
    norm: Address,
    angles: [Address; 2],
    positions: Address,
    out: Address,
    head_stride: u64,
    row_stride: u64,
    first_row: u64,
    rows: u32,
    heads: u32,
    dim: u32,
    first: u32,
    pairs: [u32; 2],
    eps: f32,
}

/// Where heads are written: row r of head h begins at element `h * head_stride + (first_row + r) * row_stride`.
struct HeadLayout {
    head_stride: u64,
    row_stride: u64,
    first_row: u64,
}

/// Parameters of kernel `activate`; same layout as `Activate` in `device/elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ActivateParameters {
    gate: Address,
    up: Address,
    rows: u32,
    width: u32,
    gelu: u32,
}

/// Parameters of kernel `sum`; same layout as `Sum` in `device/elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SumParameters {
    x: Address,
    y: Address,
    count: u64,
    period: u64,
}

/// Threads of a block.
const THREADS: usize = 256;

/// Activation of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + exp(-x))
    Silu,
    /// GELU, tanh approximation.
    Gelu,
}

impl Device {
    /// RMSNorm of each row of `x [rows, width]`; the result is written to `out`, added to `residual`, or both.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn rms_norm(
        &self,
        x: &Buffer<f32>,
        norm: RmsNorm<'_>,
        rows: usize,
        out: Option<&mut Buffer<f32>>,
        residual: Option<&mut Buffer<f32>>,
    ) -> Result<(), DeviceError> {
        let width = norm.weight.len();
        let fits = |buffer: &Buffer<f32>| buffer.len() >= rows * width;
        assert!(
            fits(x)
                && out.as_ref().is_none_or(|out| fits(out))
                && residual.as_ref().is_none_or(|residual| fits(residual)),
            "x, out and residual are [rows {rows}, width {width}]"
        );
        let parameters = RmsNormParameters {
            x: x.address(),
            weight: norm.weight.address(),
            out: out.map_or(0, |out| out.address()),
            residual: residual.map_or(0, |residual| residual.address()),
            rows: rows as u32,
            width: width as u32,
            eps: norm.eps,
        };
        let geometry = Geometry::new([rows, 1, 1], THREADS, THREADS / 32 * 4);
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe { self.launch("rms_norm", geometry, &parameters) }
    }

    /// Applies bias, norm and RoPE, and writes queries to `out [rows, heads, dim]`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn norm_and_rotate_queries(
        &self,
        task: &Heads<'_>,
        out: &mut Buffer<f16>,
    ) -> Result<(), DeviceError> {
        let elements = task.rows * task.heads * task.dim;
        assert!(
            out.len() >= elements,
            "out is [rows {}, heads {}, dim {}]",
            task.rows,
            task.heads,
            task.dim
        );
        let layout = HeadLayout {
            head_stride: task.dim as u64,
            row_stride: (task.heads * task.dim) as u64,
            first_row: 0,
        };
        // SAFETY: the layout is the output's.
        unsafe { self.launch_heads(task, out.address(), layout) }
    }

    /// Applies bias, norm and RoPE, and writes keys or values to the rows from `first` on of every head of a layer.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn norm_and_rotate_rows(
        &self,
        task: &Heads<'_>,
        first: usize,
        out: &mut LayerRows,
    ) -> Result<(), DeviceError> {
        let shape = HeadShape::new(task.heads, task.heads, task.dim);
        out.check("out", &shape, first + task.rows);
        let layout = HeadLayout {
            head_stride: (out.capacity() * task.dim) as u64,
            row_stride: task.dim as u64,
            first_row: first as u64,
        };
        // SAFETY: the layout is the layer's.
        unsafe { self.launch_heads(task, out.data.address(), layout) }
    }

    /// # Safety
    /// `out` is large enough for this layout.
    unsafe fn launch_heads(
        &self,
        task: &Heads<'_>,
        out: Address,
        layout: HeadLayout,
    ) -> Result<(), DeviceError> {
        let &Heads {
            rows, heads, dim, ..
        } = task;
        assert!(
            task.projected.len() >= rows * heads * dim,
            "projected is [rows {rows}, heads {heads}, dim {dim}]"
        );
        if let Some(bias) = task.bias {
            assert_eq!(bias.len(), heads * dim, "bias is [heads * dim]");
        }
        if let Some(norm) = task.norm {
            assert_eq!(norm.weight.len(), dim, "norm is [dim]");
        }
        let (first, positions, position_limit) = match task.positions {
            RowPositions::From(first) => (first, 0, first + rows),
            RowPositions::At(positions) => {
                assert!(positions.len() >= rows, "positions are [rows {rows}]");
                (0, positions.address(), positions.end())
            }
        };
        if let Some(angles) = &task.angles {
            angles.check(position_limit, dim);
        }
        let (angles, pairs) = RopeTables::parameters(task.angles.as_ref());
        let parameters = HeadsParameters {
            x: task.projected.address(),
            bias: task.bias.map_or(0, Buffer::address),
            norm: task.norm.map_or(0, |norm| norm.weight.address()),
            angles,
            positions,
            out,
            head_stride: layout.head_stride,
            row_stride: layout.row_stride,
            first_row: layout.first_row,
            rows: rows as u32,
            heads: heads as u32,
            dim: dim as u32,
            first: first as u32,
            pairs,
            eps: task.norm.map_or(0.0, |norm| norm.eps),
        };
        let geometry = Geometry::new(
            [rows, heads.div_ceil(4), 1],
            128,
            4 * dim * size_of::<f32>(),
        );
        // SAFETY: lengths were checked; the caller answers for the rest.
        unsafe { self.launch("heads", geometry, &parameters) }
    }

    /// `gate [rows, width] = activation(gate) * up [rows, width]`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn activate(
        &self,
        activation: Activation,
        gate: &mut Buffer<f32>,
        up: &Buffer<f32>,
        rows: usize,
        width: usize,
    ) -> Result<(), DeviceError> {
        assert!(
            gate.len() >= rows * width && up.len() >= rows * width,
            "gate and up are [rows {rows}, width {width}]"
        );
        let parameters = ActivateParameters {
            gate: gate.address(),
            up: up.address(),
            rows: rows as u32,
            width: width as u32,
            gelu: u32::from(activation == Activation::Gelu),
        };
        let geometry = Geometry::new([width.div_ceil(THREADS), rows, 1], THREADS, 0);
        // SAFETY: lengths were checked; `gate` is borrowed mutably.
        unsafe { self.launch("activate", geometry, &parameters) }
    }

    /// `x += y`, for the first `count` elements.
    ///
    /// # Panics
    /// When either buffer has fewer elements.
    pub fn add(
        &self,
        x: &mut Buffer<f32>,
        y: &Buffer<f32>,
        count: usize,
    ) -> Result<(), DeviceError> {
        assert!(
            x.len() >= count && y.len() >= count,
            "{count} elements of {} and {}",
            x.len(),
            y.len()
        );
        self.sum(x, y, count, count)
    }

    /// Adds `bias [width]` to each of the first `rows` rows of `x [rows, width]`.
    ///
    /// # Panics
    /// When `x` has fewer rows.
    pub fn add_to_rows(
        &self,
        x: &mut Buffer<f32>,
        bias: &Buffer<f32>,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let width = bias.len();
        assert!(x.len() >= rows * width, "x is [rows {rows}, width {width}]");
        self.sum(x, bias, rows * width, width)
    }

    /// `x += y` for the first `count` elements, where `y` repeats every `period` elements.
    fn sum(
        &self,
        x: &mut Buffer<f32>,
        y: &Buffer<f32>,
        count: usize,
        period: usize,
    ) -> Result<(), DeviceError> {
        let parameters = SumParameters {
            x: x.address(),
            y: y.address(),
            count: count as u64,
            period: period as u64,
        };
        let geometry = Geometry::new([count.div_ceil(THREADS), 1, 1], THREADS, 0);
        // SAFETY: lengths were checked; `x` is borrowed mutably.
        unsafe { self.launch("sum", geometry, &parameters) }
    }
}
