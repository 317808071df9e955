//! Mixture of experts: a token passes through the few feed-forwards that its router scores highest.
//!
//! ```text
//! scores = router * x [+ bias]        S = the highest `used` scores, w = softmax over S
//!                                     LFM2: p = sigmoid(scores), S = the highest `used` p + bias, w = p / sum of S
//!                                     ERNIE 4.5: the same with p = softmax(scores)
//!                                     DeepSeek: either of these; the file says whether w is divided by the sum, and
//!                                     from how many groups of experts S is: those whose two highest p + bias sum to most
//!                                     OLMoE: p = softmax(scores), S = the highest `used` p, w = p
//! residual += [shared expert(x)], or [sigmoid(shared router * x) * shared expert(x)]
//! residual += sum over e in S:  w[e] * (down[e] * (activation(gate[e] * x [+ bias]) * (up[e] * x [+ bias])) [+ bias])
//! ```
//!
//! Gemma 4 has both: the sum of a dense feed-forward and of experts, each with its norms (`feed_forward.rs`).
//!
//! Rows are grouped by expert, so that each expert's weights are read once for all rows that chose it. The weight of an
//! expert is applied before its down projection, which is linear. A softmax over all scores that is renormalised over
//! the chosen ones (Qwen 3) is this softmax.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{QuantisedRows, Stop, Stopped, add_assign, softmax};

use crate::ModelError;
use crate::architecture::{Router, Shared};
use crate::arithmetic::{activate, hidden_layer, multiply, scale, sigmoid};
use crate::config::{Config, ExpertCounts, ExpertGroups};
use crate::gguf::Gguf;
use crate::weights::{self, Floats};

/// The experts of one layer.
pub(crate) struct Experts {
    /// `[experts, width]`
    pub(crate) router: MappedMatrix,
    /// `[experts]`: added to the scores; to sigmoids and to a softmax, for the choice only.
    router_bias: Option<Vec<f32>>,
    weighting: Router,
    /// Whether the weights of a token's experts sum to one before the factor.
    normalised: bool,
    /// The groups that a token's experts are chosen from.
    groups: Option<ExpertGroups>,
    /// `[experts]` of `[ffn, width]`; empty if the activation has no gate.
    gate: Vec<MappedMatrix>,
    up: Vec<MappedMatrix>,
    /// `[experts]` of `[width, ffn]`
    down: Vec<MappedMatrix>,
    /// `[experts, ffn]`
    gate_bias: Option<Vec<f32>>,
    up_bias: Option<Vec<f32>>,
    /// `[experts, width]`
    down_bias: Option<Vec<f32>>,
    /// `[experts]`: factors on the outputs.
    scale: Option<Vec<f32>>,
    /// Experts per token.
    used: usize,
    /// Factor on their weights.
    weights_scale: f32,
    /// The expert that every token passes through.
    shared: Option<SharedExpert>,
}

/// An expert that every token passes through.
struct SharedExpert {
    /// `[width]`: its output is multiplied by `sigmoid(router * x)`.
    router: Option<Vec<f32>>,
    /// `[shared_ffn, width]`; `None` if the activation has no gate.
    gate: Option<MappedMatrix>,
    up: MappedMatrix,
    /// `[width, shared_ffn]`
    down: MappedMatrix,
}

/// A row's choice of an expert.
#[derive(Clone, Copy)]
struct Routing {
    expert: usize,
    row: usize,
    /// Selection score; `routing_weights` replaces it by the routing weight.
    weight: f32,
}

/// Buffers for a number of rows.
pub(crate) struct ExpertScratch {
    /// `[rows, experts]`
    scores: Vec<f32>,
    /// `[rows * used]`
    choices: Vec<Routing>,
    /// `[rows, width]`: inputs of the rows that chose an expert; then its outputs.
    gathered: Vec<f32>,
    /// `[rows, ffn]`
    hidden: Vec<f32>,
    /// `[rows, ffn]`
    up: Vec<f32>,
    rounded: QuantisedRows,
}

impl ExpertScratch {
    pub(crate) fn new(config: &Config, counts: ExpertCounts, rows: usize) -> Self {
        Self {
            scores: vec![0.0; rows * counts.all],
            choices: Vec::with_capacity(rows * counts.used + 1),
            gathered: vec![0.0; rows * config.width],
            hidden: vec![0.0; rows * counts.widest()],
            up: vec![0.0; rows * counts.widest()],
            rounded: QuantisedRows::new(rows * config.width.max(counts.widest())),
        }
    }

    /// Bytes of buffers for `rows` rows.
    pub(crate) fn bytes(config: &Config, counts: ExpertCounts, rows: usize) -> u64 {
        let widest = counts.widest();
        let elements = rows * (counts.all + config.width + 2 * widest);
        let choices = (rows * counts.used + 1) * size_of::<Routing>();
        let rounded = QuantisedRows::bytes_for(rows * config.width.max(widest));
        (elements * size_of::<f32>() + choices) as u64 + rounded
    }
}

impl Experts {
    pub(crate) fn read(
        gguf: &Gguf,
        config: &Config,
        counts: ExpertCounts,
        block: usize,
    ) -> Result<Self, ModelError> {
        let (width, ffn, all) = (config.width, counts.ffn, counts.all);
        let gated = config.activation.is_gated();
        let name = |part: &str| format!("blk.{block}.{part}");
        let bias = |part, len| match config.architecture.expert_bias {
            true => weights::vector_of(gguf, &name(part), &[all, len]).map(Some),
            false => Ok(None),
        };
        let expert_matrix = |part: &str, rows, cols| {
            let [expert_matrix] = weights::expert_matrices(gguf, &name(part), all, [rows], cols)?;
            Ok::<_, ModelError>(expert_matrix)
        };
        // Some converters write gate and up as one tensor.
        let both = name("ffn_gate_up_exps.weight");
        let [gate, up] = if gguf.tensor(&both).is_some() {
            weights::expert_matrices(gguf, &both, all, [ffn, ffn], width)?
        } else {
            let gate = gated.then(|| expert_matrix("ffn_gate_exps.weight", ffn, width));
            [
                gate.transpose()?.unwrap_or_default(),
                expert_matrix("ffn_up_exps.weight", ffn, width)?,
            ]
        };
        let down = expert_matrix("ffn_down_exps.weight", width, ffn)?;
        Ok(Self {
            router: weights::matrix(gguf, &name("ffn_gate_inp.weight"), all, width)?,
            router_bias: match (config.architecture.router, config.architecture.expert_bias) {
                (Router::Declared, _) => {
                    weights::optional_vector(gguf, &name("exp_probs_b.bias"), all)?
                }
                (Router::Sigmoid | Router::BiasedSoftmax, _) => {
                    Some(weights::vector(gguf, &name("exp_probs_b.bias"), all)?)
                }
                (Router::Softmax, true) => {
                    Some(weights::vector(gguf, &name("ffn_gate_inp.bias"), all)?)
                }
                (Router::Softmax, false) | (Router::SoftmaxOfAll, _) => None,
            },
            weighting: counts.router,
            normalised: counts.normalised,
            groups: counts.groups,
            gate,
            up,
            down,
            gate_bias: bias("ffn_gate_exps.bias", ffn)?,
            up_bias: bias("ffn_up_exps.bias", ffn)?,
            down_bias: bias("ffn_down_exps.bias", width)?,
            scale: match config.architecture.dense_and_experts {
                true => weights::optional_vector(gguf, &name("ffn_down_exps.scale"), all)?,
                false => None,
            },
            used: counts.used,
            weights_scale: counts.weights_scale,
            shared: match counts.shared_ffn {
                Some(ffn) => Some(SharedExpert {
                    router: match config.architecture.shared_expert {
                        Shared::Gated => Some(weights::vector(
                            gguf,
                            &name("ffn_gate_inp_shexp.weight"),
                            width,
                        )?),
                        _ => None,
                    },
                    gate: gated
                        .then(|| weights::matrix(gguf, &name("ffn_gate_shexp.weight"), ffn, width))
                        .transpose()?,
                    up: weights::matrix(gguf, &name("ffn_up_shexp.weight"), ffn, width)?,
                    down: weights::matrix(gguf, &name("ffn_down_shexp.weight"), width, ffn)?,
                }),
                None => None,
            },
        })
    }

    /// Adds the feed-forward of `normed [rows, width]` to `residual [rows, width]`. `router` is [`Self::router`], which
    /// sees `routed [rows, width]`. Allocates nothing.
    ///
    /// # Errors
    /// [`Stopped`]; the residual is then partly written.
    pub(crate) fn add(
        &self,
        config: &Config,
        router: &Floats<'_>,
        [normed, routed]: [&[f32]; 2],
        residual: &mut [f32],
        scratch: &mut ExpertScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        if let Some(expert) = &self.shared {
            expert.add(config, normed, residual, scratch, stop)?;
        }
        let (width, ffn) = (config.width, self.up[0].rows());
        let rows = normed.len() / width;
        let ExpertScratch {
            scores,
            choices,
            gathered,
            hidden,
            up,
            rounded,
        } = scratch;
        let scores = &mut scores[..rows * self.up.len()];
        multiply(routed, rounded, [(router, &mut *scores)], stop)?;
        self.route(scores, choices);
        // What a layer adds is linear in the weights.
        let factor = config.residual_scale * self.weights_scale;
        (choices.iter_mut()).for_each(|choice| choice.weight *= factor);
        for chosen in choices.chunk_by(|a, b| a.expert == b.expert) {
            let expert = chosen[0].expert;
            let gathered = &mut gathered[..chosen.len() * width];
            let hidden = &mut hidden[..chosen.len() * ffn];
            let up = &mut up[..chosen.len() * ffn];
            for (choice, out) in chosen.iter().zip(gathered.chunks_exact_mut(width)) {
                out.copy_from_slice(&normed[choice.row * width..][..width]);
            }
            let [ups, down] = [&self.up, &self.down].map(|all| Floats::mapped(&all[expert]));
            match self.gate.get(expert).map(Floats::mapped) {
                Some(gate) => {
                    let products = [(&gate, &mut *hidden), (&ups, &mut *up)];
                    multiply(gathered, rounded, products, stop)?;
                }
                None => multiply(gathered, rounded, [(&ups, &mut *hidden)], stop)?,
            }
            add_bias(hidden, &self.gate_bias, expert, ffn);
            add_bias(up, &self.up_bias, expert, ffn);
            activate(config.activation, hidden, up);
            for (choice, hidden) in chosen.iter().zip(hidden.chunks_exact_mut(ffn)) {
                hidden.iter_mut().for_each(|x| *x *= choice.weight);
            }
            multiply(hidden, rounded, [(&down, &mut *gathered)], stop)?;
            for (choice, added) in chosen.iter().zip(gathered.chunks_exact(width)) {
                let residual = &mut residual[choice.row * width..][..width];
                add_assign(residual, added);
                if let Some(bias) = &self.down_bias {
                    let bias = &bias[expert * width..][..width];
                    for (x, bias) in residual.iter_mut().zip(bias) {
                        *x += choice.weight * bias;
                    }
                }
            }
        }
        Ok(())
    }

    /// The choices of all rows with `scores [rows, experts]`, by expert. Of equal scores the first experts are chosen.
    fn route(&self, scores: &mut [f32], choices: &mut Vec<Routing>) {
        choices.clear();
        let bias = |expert: usize| (self.router_bias.as_ref()).map_or(0.0, |bias| bias[expert]);
        for (row, scores) in scores.chunks_exact_mut(self.up.len()).enumerate() {
            match self.weighting {
                Router::Softmax => {}
                Router::SoftmaxOfAll | Router::BiasedSoftmax | Router::Declared => softmax(scores),
                Router::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
            }
            let first = choices.len();
            let chosen = (self.groups).map(|groups| chosen_groups(groups, scores, bias));
            for (expert, &score) in scores.iter().enumerate() {
                if chosen.is_some_and(|chosen| !chosen.contains(expert)) {
                    continue;
                }
                let weight = score + bias(expert);
                let better = |choice: &Routing| weight > choice.weight;
                let place = choices[first..].iter().position(better);
                let place = place.unwrap_or(choices.len() - first);
                if place < self.used {
                    let choice = Routing {
                        expert,
                        row,
                        weight,
                    };
                    choices.insert(first + place, choice);
                    choices.truncate(first + self.used);
                }
            }
            self.routing_weights(scores, &mut choices[first..]);
        }
        choices.sort_unstable_by_key(|choice| (choice.expert, choice.row));
    }

    /// The weights of a row's choices, the best first. `scores [experts]` are probabilities unless a softmax over the
    /// chosen ones follows.
    fn routing_weights(&self, scores: &[f32], chosen: &mut [Routing]) {
        let highest = chosen[0].weight;
        // As the model's own code.
        let mut sum = match self.weighting {
            Router::Sigmoid => 1e-6,
            _ => 0.0,
        };
        for choice in chosen.iter_mut() {
            choice.weight = match self.weighting {
                Router::Softmax => (choice.weight - highest).exp(),
                _ => scores[choice.expert],
            };
            sum += choice.weight;
        }
        if !self.normalised {
            sum = 1.0;
        }
        for choice in chosen {
            choice.weight /= sum;
            if let Some(scale) = &self.scale {
                choice.weight *= scale[choice.expert];
            }
        }
    }
}

impl SharedExpert {
    /// Adds the expert's output for `normed [rows, width]` to `residual [rows, width]`.
    fn add(
        &self,
        config: &Config,
        normed: &[f32],
        residual: &mut [f32],
        scratch: &mut ExpertScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (rows, ffn) = (normed.len() / config.width, self.up.rows());
        let ExpertScratch {
            gathered,
            hidden,
            up,
            rounded,
            ..
        } = scratch;
        let (hidden, up) = (&mut hidden[..rows * ffn], &mut up[..rows * ffn]);
        let added = &mut gathered[..normed.len()];
        let gate = self.gate.as_ref().map(Floats::mapped);
        let [ups, down] = [&self.up, &self.down].map(Floats::mapped);
        let weights = (gate.as_ref(), &ups);
        let out = [&mut *hidden, up];
        hidden_layer(config.activation, normed, rounded, weights, out, stop)?;
        for (x, hidden) in normed
            .chunks_exact(config.width)
            .zip(hidden.chunks_exact_mut(ffn))
        {
            let share = self.router.as_ref().map_or(1.0, |router| {
                let score: f32 = x.iter().zip(router).map(|(x, weight)| x * weight).sum();
                sigmoid(score)
            });
            scale(hidden, share * config.residual_scale);
        }
        multiply(hidden, rounded, [(&down, &mut *added)], stop)?;
        add_assign(residual, added);
        Ok(())
    }
}

/// Groups that a row's experts are chosen from.
#[derive(Clone, Copy)]
struct ChosenGroups {
    /// Experts of a group.
    each: usize,
    /// Bit `n` is that of group `n`.
    bits: u64,
}

impl ChosenGroups {
    /// Whether an expert is in one of them.
    fn contains(self, expert: usize) -> bool {
        self.bits >> (expert / self.each) & 1 == 1
    }
}

/// The groups whose two highest `scores + bias` have the highest sums. Of equal sums the first groups are chosen.
fn chosen_groups(
    groups: ExpertGroups,
    scores: &[f32],
    bias: impl Fn(usize) -> f32,
) -> ChosenGroups {
    let each = scores.len() / groups.all;
    let mut sums = [0.0; ExpertGroups::MOST];
    let sums = &mut sums[..groups.all];
    for (group, sum) in sums.iter_mut().enumerate() {
        let [mut highest, mut second] = [f32::NEG_INFINITY; 2];
        for (expert, score) in scores.iter().enumerate().skip(group * each).take(each) {
            let score = score + bias(expert);
            if score > highest {
                (highest, second) = (score, highest);
            } else if score > second {
                second = score;
            }
        }
        *sum = highest + second;
    }
    let mut chosen = ChosenGroups { each, bits: 0 };
    for _ in 0..groups.used {
        let left = (0..groups.all).filter(|group| chosen.bits >> group & 1 == 0);
        let better = |best: usize, group: usize| {
            if sums[group] > sums[best] {
                group
            } else {
                best
            }
        };
        let best = left.reduce(better).expect("fewer are used than there are");
        chosen.bits |= 1 << best;
    }
    chosen
}

/// Adds the bias of `expert`, `[len]`, to each row of `x [rows, len]`.
fn add_bias(x: &mut [f32], biases: &Option<Vec<f32>>, expert: usize, len: usize) {
    if let Some(biases) = biases {
        let bias = &biases[expert * len..][..len];
        x.chunks_exact_mut(len)
            .for_each(|row| add_assign(row, bias));
    }
}
