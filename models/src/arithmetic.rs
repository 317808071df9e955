//! Arithmetic of rows that all parts of a layer share: products, norms, biases, activations.

use kept_kernels::mapped::{MappedMatrix, Product, multiply_together};
use kept_kernels::{
    QuantisedRows, Stop, Stopped, add_assign, gelu_mul, rms_norm, rms_norm_in_place, silu_mul,
    swiglu_clamped,
};

use crate::Config;
use crate::architecture::{Activation, Xielu};
use crate::weights::Floats;

/// Elements per row of each buffer of experts beside a dense feed-forward: the width, or 0 without them.
pub(crate) fn moe_scratch_width(config: &Config) -> usize {
    match config
        .experts
        .filter(|_| config.architecture.dense_and_experts)
    {
        Some(_) => config.width,
        None => 0,
    }
}

/// A product that replaces `out`.
pub(crate) fn product<'a>(matrix: &'a MappedMatrix, out: &'a mut [f32]) -> Product<'a> {
    Product {
        matrix,
        out,
        add: false,
    }
}

/// `out = inputs * matrix^T` for matrices with the same inputs; quantised matrices are multiplied together.
pub(crate) fn multiply<const N: usize>(
    inputs: &[f32],
    rounded: &mut QuantisedRows,
    products: [(&Floats<'_>, &mut [f32]); N],
    stop: &Stop,
) -> Result<(), Stopped> {
    if products.iter().all(|(of, _)| of.matrix.is_quantised()) {
        rounded.fill(inputs, products[0].0.matrix.cols());
        let products = products.map(|(of, out)| product(of.matrix, out));
        return multiply_together(products, rounded, stop);
    }
    for (of, out) in products {
        if of.matrix.is_quantised() {
            rounded.fill(inputs, of.matrix.cols());
            multiply_together([product(of.matrix, out)], rounded, stop)?;
        } else {
            of.multiply(inputs, out, stop)?;
        }
    }
    Ok(())
}

/// `out += inputs * matrix^T` for a quantised matrix.
pub(crate) fn multiply_and_add(
    inputs: &[f32],
    rounded: &mut QuantisedRows,
    matrix: &MappedMatrix,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    rounded.fill(inputs, matrix.cols());
    let add = true;
    multiply_together([Product { matrix, out, add }], rounded, stop)
}

/// Adds the output of a part of a layer to the residual stream, after its norm if there is one.
pub(crate) fn add_normed(
    config: &Config,
    norm: &Option<Vec<f32>>,
    added: &mut [f32],
    residual: &mut [f32],
) {
    if let Some(norm) = norm {
        rms_norm_in_place(added, norm, config.norm_eps);
    }
    scale(added, config.residual_scale);
    add_assign(residual, added);
}

/// `out = norm(x)` of the residual stream `x [rows, width]`; without a norm, a copy.
pub(crate) fn normalise(config: &Config, norm: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
    match norm {
        Some(norm) if config.architecture.centred_norms => {
            let rows = x.chunks_exact(norm.len());
            for (x, out) in rows.zip(out.chunks_exact_mut(norm.len())) {
                let mean = x.iter().sum::<f32>() / norm.len() as f32;
                out.iter_mut().zip(x).for_each(|(out, x)| *out = x - mean);
            }
            rms_norm_in_place(out, norm, config.norm_eps);
        }
        Some(norm) => rms_norm(x, norm, config.norm_eps, out),
        None => out.copy_from_slice(x),
    }
}

/// `x *= factor`
pub(crate) fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Adds `bias [width]` to each row of `x [rows, width]`.
pub(crate) fn add_bias(x: &mut [f32], bias: &Option<Vec<f32>>) {
    if let Some(bias) = bias {
        for row in x.chunks_exact_mut(bias.len()) {
            add_assign(row, bias);
        }
    }
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The hidden layer of a feed-forward: `hidden = activation(inputs * gate^T) * (inputs * up^T)`, or
/// `activation(inputs * up^T)` without a gate. `space` has the size of `hidden`.
pub(crate) fn hidden_layer(
    activation: Activation,
    inputs: &[f32],
    rounded: &mut QuantisedRows,
    (gate, up): (Option<&Floats<'_>>, &Floats<'_>),
    [hidden, space]: [&mut [f32]; 2],
    stop: &Stop,
) -> Result<(), Stopped> {
    match gate {
        Some(gate) => {
            let products = [(gate, &mut *hidden), (up, &mut *space)];
            multiply(inputs, rounded, products, stop)?;
        }
        None => multiply(inputs, rounded, [(up, &mut *hidden)], stop)?,
    }
    activate(activation, hidden, space);
    Ok(())
}

/// `gate = activation(gate) * up`; without a gate, `gate` is the up projection and `up` is not read.
pub(crate) fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => silu_mul(gate, up),
        Activation::GeluTanh => gelu_mul(gate, up),
        Activation::SwigluClamped => swiglu_clamped(gate, up),
        Activation::ReluSquared => gate.iter_mut().for_each(|x| *x = x.max(0.0) * x.max(0.0)),
        Activation::Xielu(numbers) => xielu(numbers, gate),
    }
}

fn xielu(numbers: Xielu, x: &mut [f32]) {
    let Xielu { beta, eps, .. } = numbers;
    let above = softplus(numbers.alpha_p);
    let below = beta + softplus(numbers.alpha_n);
    for x in x {
        *x = match *x > 0.0 {
            true => above * *x * *x + beta * *x,
            false => (x.min(eps).exp_m1() - *x) * below + beta * *x,
        };
    }
}

/// `ln(1 + exp(x))`.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
