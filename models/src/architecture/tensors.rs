//! The tensors that files of an architecture contain.

use super::{Architecture, QkNorm, Recurrence, Router, Shared};

/// Layer tensors of attention. `attn_rot_embd` holds the angles that old converters stored; Kept computes them.
const ATTENTION: [&str; 6] = [
    "attn_output.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_qkv.weight",
    "attn_rot_embd.weight",
];
/// Layer tensors of latent attention.
const LATENT: [&str; 10] = [
    "attn_output.weight",
    "attn_q.weight",
    "attn_q_a.weight",
    "attn_q_a_norm.weight",
    "attn_q_b.weight",
    "attn_kv_a_mqa.weight",
    "attn_kv_a_norm.weight",
    "attn_kv_b.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];
/// Layer tensors of experts.
const ROUTED: [&str; 3] = [
    "ffn_gate_inp.weight",
    "ffn_up_exps.weight",
    "ffn_down_exps.weight",
];
const ROUTED_GATES: [&str; 2] = ["ffn_gate_exps.weight", "ffn_gate_up_exps.weight"];
/// Further ones where experts stand beside a dense feed-forward.
const ROUTED_BESIDE_DENSE: [&str; 5] = [
    "ffn_gate_inp.scale",
    "ffn_down_exps.scale",
    "pre_ffw_norm_2.weight",
    "post_ffw_norm_1.weight",
    "post_ffw_norm_2.weight",
];
const ROUTED_BIAS: [&str; 4] = [
    "ffn_gate_inp.bias",
    "ffn_gate_exps.bias",
    "ffn_up_exps.bias",
    "ffn_down_exps.bias",
];
/// Layer tensors of an expert that computes every token.
const SHARED: [&str; 2] = ["ffn_up_shexp.weight", "ffn_down_shexp.weight"];
/// Layer tensors of gated delta nets.
const DELTA: [&str; 7] = [
    "attn_qkv.weight",
    "attn_gate.weight",
    "ssm_conv1d.weight",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_norm.weight",
    "ssm_out.weight",
];
/// Its inputs of decay and beta, as two tensors or as one.
const DECAY_AND_BETA: [&str; 2] = ["ssm_alpha.weight", "ssm_beta.weight"];
const DECAY_WITH_BETA: [&str; 1] = ["ssm_ba.weight"];
/// Layer tensors of state spaces.
const STATE_SPACE: [&str; 8] = [
    "ssm_in.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d.bias",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_d",
    "ssm_norm.weight",
    "ssm_out.weight",
];
/// Layer tensors of gated short convolutions.
const CONVOLUTION: [&str; 3] = [
    "shortconv.in_proj.weight",
    "shortconv.conv.weight",
    "shortconv.out_proj.weight",
];

/// Whether a block's mixer is recurrent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IsRecurrent(pub bool);

/// Whether a block's feed-forward has experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HasExperts(pub bool);

impl Architecture {
    /// A tensor that every layer of every file has.
    pub(crate) fn first_tensor(&self) -> &'static str {
        if self.pre_norm {
            "attn_norm.weight"
        } else {
            "post_attention_norm.weight"
        }
    }

    /// Whether `exp_probs_b` may be added to the scores of experts.
    pub(crate) fn has_choice_bias(&self) -> bool {
        !matches!(self.router, Router::Softmax | Router::SoftmaxOfAll)
    }

    /// Names of the tensors that a block of this architecture may have, such as `attn_q.weight`: its mixer, which may be
    /// recurrent, and its feed-forward, which may have experts, if it has them. Any other tensor would be missing from the
    /// computation.
    pub(crate) fn block_tensors(
        &self,
        mixer: Option<IsRecurrent>,
        feed_forward: Option<HasExperts>,
    ) -> Vec<&'static str> {
        let attention = mixer == Some(IsRecurrent(false));
        let recurrent = mixer == Some(IsRecurrent(true));
        let experts = feed_forward == Some(HasExperts(true));
        let dense = feed_forward == Some(HasExperts(false)) || experts && self.dense_and_experts;
        let gated = self.activation.is_gated();
        let recurrent: &[&'static str] = match self.recurrence {
            Recurrence::Delta(_) if recurrent => &DELTA,
            Recurrence::Convolution if recurrent => &CONVOLUTION,
            Recurrence::StateSpace if recurrent => &STATE_SPACE,
            _ => &[],
        };
        let is_delta =
            mixer == Some(IsRecurrent(true)) && matches!(self.recurrence, Recurrence::Delta(_));
        let groups: [(bool, &[&'static str]); 23] = [
            (is_delta && !self.value_groups, &DECAY_AND_BETA),
            (is_delta && self.value_groups, &DECAY_WITH_BETA),
            (attention && !self.latent, &ATTENTION),
            (attention && self.latent, &LATENT),
            (self.pre_norm, &["attn_norm.weight", self.ffn_norm]),
            (dense, &["ffn_up.weight", "ffn_down.weight"]),
            (dense && gated && !self.fused, &["ffn_gate.weight"]),
            (experts, &ROUTED),
            (experts && gated, &ROUTED_GATES),
            (experts && self.has_choice_bias(), &["exp_probs_b.bias"]),
            (experts && self.dense_and_experts, &ROUTED_BESIDE_DENSE),
            (
                self.per_layer,
                &["inp_gate.weight", "proj.weight", "post_norm.weight"],
            ),
            (self.output_scale, &["layer_output_scale.weight"]),
            (experts && self.shared_expert != Shared::None, &SHARED),
            (
                experts && gated && self.shared_expert != Shared::None,
                &["ffn_gate_shexp.weight"],
            ),
            (
                experts && self.shared_expert == Shared::Gated,
                &["ffn_gate_inp_shexp.weight"],
            ),
            (experts && self.expert_bias, &ROUTED_BIAS),
            (
                attention && self.qkv_bias.is_allowed(),
                &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
            ),
            (
                attention && self.output_bias.is_allowed(),
                &["attn_output.bias"],
            ),
            (
                attention && self.qk_norm != QkNorm::None,
                &["attn_q_norm.weight", "attn_k_norm.weight"],
            ),
            (true, recurrent),
            (attention && self.sinks, &["attn_sinks.weight"]),
            (
                self.sandwich,
                &["post_attention_norm.weight", "post_ffw_norm.weight"],
            ),
        ];
        let present = groups.into_iter().filter(|(present, _)| *present);
        present
            .flat_map(|(_, names)| names.iter().copied())
            .collect()
    }

    /// Names of the tensors outside layers that a file of this architecture may contain.
    pub(crate) fn model_tensors(&self) -> Vec<&'static str> {
        let mut names = vec!["token_embd.weight", "output.weight", self.output_norm];
        if self.per_layer {
            names.extend([
                "per_layer_token_embd.weight",
                "per_layer_model_proj.weight",
                "per_layer_proj_norm.weight",
            ]);
        }
        if self.rope_freqs {
            names.push("rope_freqs.weight");
        }
        if self.rope_factors {
            names.extend(["rope_factors_long.weight", "rope_factors_short.weight"]);
        }
        names
    }
}
