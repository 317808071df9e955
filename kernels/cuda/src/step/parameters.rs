//! Parameters of the kernels of a step.

use candle_core::quantized::GgmlDType;

use super::InputsParameters;
use crate::Weights;
use crate::driver::Address;
use crate::kept_rows::RowsParameters;

/// A part of kernels' parameters; same layout as `Matrix` in `device/step_products.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct MatrixParameters {
    pub(super) blocks: Address,
    pub(super) bias: Address,
    pub(super) out: Address,
    pub(super) row_bytes: u64,
    pub(super) rows: u32,
    pub(super) kind: u32,
}

impl MatrixParameters {
    pub(super) fn new(weights: &Weights, bias: Address, out: Address) -> Self {
        let (kind, _) = kernel_kind(weights);
        Self {
            blocks: weights.data().address(),
            bias,
            out,
            row_bytes: weights.row_bytes() as u64,
            rows: weights.rows() as u32,
            kind,
        }
    }
}

/// Number of a type of weights in kernels, and its suffix in kernel names.
pub(super) fn kernel_kind(weights: &Weights) -> (u32, &'static str) {
    match weights.kind() {
        GgmlDType::F32 => (0, "f32"),
        GgmlDType::F16 => (1, "f16"),
        GgmlDType::BF16 => (2, "bf16"),
        GgmlDType::Q4_0 => (3, "q4_0"),
        GgmlDType::Q4_1 => (4, "q4_1"),
        GgmlDType::Q5_0 => (5, "q5_0"),
        GgmlDType::Q5_1 => (6, "q5_1"),
        GgmlDType::Q8_0 => (7, "q8_0"),
        GgmlDType::Q2K => (8, "q2_k"),
        GgmlDType::Q3K => (9, "q3_k"),
        GgmlDType::Q4K => (10, "q4_k"),
        GgmlDType::Q5K => (11, "q5_k"),
        GgmlDType::Q6K => (12, "q6_k"),
        other => unreachable!("weights of kind {other:?} are refused when they come"),
    }
}

/// The kernel of `name` for weights of one type, or the generic kernel if their types differ.
pub(super) fn kernel_name<'w>(
    name: &str,
    mut weights: impl Iterator<Item = &'w Weights>,
) -> String {
    let first = weights.next().map(kernel_kind);
    match first.filter(|first| weights.all(|other| kernel_kind(other) == *first)) {
        Some((_, kind)) => format!("{name}_{kind}"),
        None => name.to_owned(),
    }
}

/// Parameters of kernels `step_products*`; same layout as `StepProducts` in `device/step_products.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ProductsParameters {
    pub(super) matrices: [MatrixParameters; 3],
    pub(super) inputs: InputsParameters,
    pub(super) cols: u32,
    pub(super) added: u32,
    pub(super) cap: f32,
}

/// Parameters of kernels `step_gated*`; same layout as `StepGated` in `device/step_products.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GatedParameters {
    pub(super) gate: MatrixParameters,
    pub(super) up: MatrixParameters,
    pub(super) inputs: InputsParameters,
    pub(super) out: InputsParameters,
    pub(super) cols: u32,
    pub(super) gelu: u32,
}

/// Parameters of kernels `step_added_*`; same layout as `StepAdded` in `device/step_products.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddedParameters {
    pub(super) matrix: MatrixParameters,
    pub(super) weight: Address,
    pub(super) squares: Address,
    pub(super) inputs: InputsParameters,
    pub(super) out: InputsParameters,
    pub(super) cols: u32,
}

/// Parameters of kernel `step_norm`; same layout as `StepNorm` in `device/step.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NormParameters {
    pub(super) residual: Address,
    pub(super) added: Address,
    pub(super) post: Address,
    pub(super) weight: Address,
    pub(super) out: InputsParameters,
    pub(super) width: u32,
    pub(super) eps: f32,
}

/// Parameters of kernel `step_inputs`; same layout as `StepInputs` in `device/step.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RoundParameters {
    pub(super) of: InputsParameters,
    pub(super) width: u32,
}

/// Parameters of kernel `step_heads`; same layout as `StepHeads` in `device/step.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HeadsParameters {
    pub(super) q: Address,
    pub(super) k: Address,
    pub(super) v: Address,
    pub(super) q_norm: Address,
    pub(super) k_norm: Address,
    pub(super) angles: [Address; 2],
    pub(super) position: Address,
    pub(super) ranks: Address,
    pub(super) targets: Address,
    pub(super) queries: Address,
    pub(super) copies: Address,
    pub(super) keys: RowsParameters,
    pub(super) values: RowsParameters,
    pub(super) q_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) pairs: [u32; 2],
    pub(super) narrow: u32,
    pub(super) kind: u32,
    pub(super) eps: f32,
}

/// Parameters of kernel `largest`; same layout as `Largest` in `device/step.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LargestParameters {
    pub(super) x: Address,
    pub(super) ids: Address,
    pub(super) values: Address,
    pub(super) places: Address,
    pub(super) count: u32,
    pub(super) each: u32,
    pub(super) most: u32,
}
