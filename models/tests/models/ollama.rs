//! Files as Ollama's library has them open and give the logits of the same model from llama.cpp's converters.

use crate::support::{batched, row_wise};
use kept_models::gguf::Header;
use kept_models::testing::{GgufWriter, MetaValue, TinyLlama};
use kept_models::{Model, ModelError};

fn tiny(arch: &'static str) -> GgufWriter {
    of_layers(arch, 6)
}

fn of_layers(arch: &'static str, layers: usize) -> GgufWriter {
    let tiny = TinyLlama {
        arch,
        layers,
        width: 32,
        ffn: 32,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 16,
        ..Default::default()
    };
    tiny.writer()
}

fn text(value: &str) -> MetaValue {
    MetaValue::Text(value.to_owned())
}

/// Opens a file; a list of models says of one that opens that it is supported.
fn open(writer: &GgufWriter) -> Result<Model, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    writer.write(&path).unwrap();
    let opened = Model::open(&path);
    let listed = Header::read(&path).unwrap().supported;
    assert!(listed.is_ok() || opened.is_err(), "{listed:?}");
    opened
}

/// Asserts that both files give the same logits and tokens; returns the first.
#[track_caller]
fn same(ollamas: &GgufWriter, plain: &GgufWriter) -> Model {
    let [ollamas, plain] = [ollamas, plain].map(|writer| open(writer).expect("it opens"));
    let ids: Vec<u32> = (0..24).map(|i| i * 13 % 280).collect();
    for logits in [batched, row_wise] {
        assert_eq!(logits(&ollamas, &ids), logits(&plain, &ids));
    }
    assert_eq!(ollamas.config(), plain.config());
    assert_eq!(ollamas.parameters(), plain.parameters());
    assert_eq!(ollamas.step_bytes(), plain.step_bytes());
    let tokens = |model: &Model| model.tokenizer().unwrap().encode("Hello, world").ids;
    assert_eq!(tokens(&ollamas), tokens(&plain));
    ollamas
}

/// Adds an image encoder, a sound encoder, and layers that predict several tokens.
fn add_encoders(w: &mut GgufWriter) -> &mut GgufWriter {
    for name in [
        "v.patch_embd.weight",
        "v.blk.0.attn_q.weight",
        "a.conv1d.0.weight",
        "mm.0.weight",
        "mtp.layers.0.input_layernorm.weight",
        "model.vision_tower.std_bias",
    ] {
        w.tensor(name, &[2, 32], "F32", &[0.5; 64]);
    }
    w
}

#[test]
fn encoders_in_the_file_are_left_out() {
    for arch in ["gemma3", "gemma4", "mistral3", "qwen3vl", "qwen35", "llama"] {
        let plain = tiny(arch);
        let model = same(add_encoders(&mut plain.clone()), &plain);
        assert_eq!(model.gguf().unused_bytes(), 6 * 64 * 4, "{arch}");
        let before = open(&plain).unwrap();
        let beside = |model: &Model| model.gguf().bytes_besides_tensors();
        assert!(beside(&model) < beside(&before) + 1024, "{arch}");
    }
    let mut other = tiny("gemma3");
    other.tensor("w.0.weight", &[2, 32], "F32", &[0.5; 64]);
    let name = "w.0.weight".to_owned();
    assert_eq!(
        open(&other).unwrap_err(),
        ModelError::UnknownTensor { name }
    );
}

#[test]
fn gemma_3_without_its_constants_has_the_published_ones() {
    const EPS: &str = "gemma3.attention.layer_norm_rms_epsilon";
    for (context, factor) in [(32_768, None), (131_072, Some(8.0))] {
        let mut plain = tiny("gemma3");
        plain.set("gemma3.context_length", MetaValue::Whole(context));
        plain.set(EPS, MetaValue::Number(1e-6));
        plain.set("gemma3.rope.freq_base", MetaValue::Number(1e6));
        plain.set("gemma3.rope.freq_base_swa", MetaValue::Number(5e3));
        let mut ollamas = plain.clone();
        if let Some(factor) = factor {
            plain.set("gemma3.rope.scaling.type", text("linear"));
            plain.set("gemma3.rope.scaling.factor", MetaValue::Number(factor));
        }
        ollamas
            .remove(EPS)
            .rename("gemma3.rope.freq_base_swa", "gemma3.rope.local.freq_base");
        let named = ollamas
            .clone()
            .rename("gemma3.rope.freq_base", "gemma3.rope.global.freq_base")
            .clone();
        same(&named, &plain);
        same(ollamas.remove("gemma3.rope.freq_base"), &plain);
    }
    // That of 1B, of 26 layers, is one for conversations, and has no cap on logits.
    let of = |layers: usize, name: Option<&str>| {
        let mut small = of_layers("gemma3", layers);
        small.set("gemma3.rope.local.freq_base", MetaValue::Number(5e3));
        small.set("gemma3.final_logit_softcapping", MetaValue::Number(30.0));
        small.remove("general.name");
        if let Some(name) = name {
            small.set("general.name", text(name));
        }
        let model = open(&small).unwrap();
        let has_template = model.chat_template().unwrap().note().is_none();
        (has_template, model.config().logit_cap)
    };
    assert_eq!(of(26, None), (true, None));
    assert_eq!(of(6, Some("a base model")), (false, Some(30.0)));
    // With the epsilon the file is one of another converter, and says all.
    let mut says_all = tiny("gemma3");
    says_all.set("gemma3.context_length", MetaValue::Whole(131_072));
    let rope = open(&says_all).unwrap().config().rope.clone();
    assert_eq!(rope.scaling, kept_models::RopeScaling::None);
}

/// More tokens than rows of the embedding, as in Gemma 3: those without a row are left out.
#[test]
fn tokens_for_images_are_left_out() {
    let mut plain = tiny("gemma3");
    plain.set(
        "gemma3.attention.layer_norm_rms_epsilon",
        MetaValue::Number(1e-6),
    );
    plain.set("gemma3.rope.freq_base", MetaValue::Number(1e6));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    plain.write(&path).unwrap();
    let gguf = kept_models::gguf::Gguf::open(&path).unwrap();
    let tokens = gguf.texts("tokenizer.ggml.tokens").unwrap().unwrap();
    let mut tokens: Vec<String> = tokens.into_iter().map(str::to_owned).collect();
    tokens.push("<image_soft_token>".to_owned());
    let mut more = plain.clone();
    more.set("tokenizer.ggml.tokens", MetaValue::Texts(tokens));
    let refused = open(&more).unwrap().tokenizer().map(drop).unwrap_err();
    assert!(
        matches!(refused, ModelError::BadVocabulary { .. }),
        "{refused}"
    );
    more.remove("gemma3.attention.layer_norm_rms_epsilon");
    let model = same(&more, &plain);
    let id = model.tokenizer().unwrap().token_id("<image_soft_token>");
    assert_eq!(id, None);
}

#[test]
fn gpt_oss_has_other_names() {
    let plain = tiny("gpt-oss");
    let mut ollamas = plain.clone();
    ollamas
        .rename_architecture("gpt-oss", "gptoss")
        .remove("gptoss.expert_feed_forward_length")
        .remove("tokenizer.ggml.pre")
        .rename_tensor("attn_output.weight", "attn_out.weight")
        .rename_tensor("attn_output.bias", "attn_out.bias")
        .rename_tensor("attn_sinks.weight", "attn_sinks")
        .rename_tensor("post_attention_norm.weight", "ffn_norm.weight");
    let mut plain = plain;
    plain.set("gpt-oss.rope.scaling.type", text("yarn"));
    plain.set("tokenizer.ggml.pre", text("gpt-4o"));
    same(&ollamas, &plain);
}

#[test]
fn architectures_have_other_names() {
    for (plain, ollamas) in [("olmo2", "olmo3"), ("qwen2vl", "qwen25vl")] {
        let mut renamed = tiny(plain);
        renamed.rename_architecture(plain, ollamas);
        same(add_encoders(&mut renamed), &tiny(plain));
    }
}

#[test]
fn ministral_has_other_keys() {
    let mut plain = tiny("mistral3");
    let numbers = [
        ("rope.scaling.factor", "rope.scaling.factor", 4.0),
        (
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.beta_fast",
            16.0,
        ),
        ("rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow", 2.0),
        (
            "rope.scaling.yarn_log_multiplier",
            "rope.scaling.mscale_all_dim",
            0.5,
        ),
        ("attention.temperature_scale", "rope.scaling_beta", 0.3),
    ];
    plain.set("mistral3.rope.scaling.type", text("yarn"));
    let mut ollamas = plain.clone();
    ollamas.remove("mistral3.attention.temperature_scale");
    for (key, theirs, number) in numbers {
        plain.set(&format!("mistral3.{key}"), MetaValue::Number(number));
        ollamas.set(&format!("mistral3.{theirs}"), MetaValue::Number(number));
    }
    same(&ollamas, &plain);
    // Mistral Small 3: no scaling.
    for kind in ["", "default"] {
        let mut none = tiny("mistral3");
        none.set("mistral3.rope.scaling.type", text(kind));
        none.set("mistral3.rope.scaling.factor", MetaValue::Number(0.0));
        same(&none, &tiny("mistral3"));
    }
}

#[test]
fn recurrent_models_have_other_names() {
    for arch in ["qwen35", "qwen35moe"] {
        let mut ollamas = tiny(arch);
        ollamas.rename_tensor("ssm_dt.bias", "ssm_dt");
        same(add_encoders(&mut ollamas), &tiny(arch));
    }
    let mut lfm2 = tiny("lfm2");
    lfm2.rename_tensor("token_embd_norm.weight", "output_norm.weight");
    lfm2.set("lfm2.feed_forward_length", MetaValue::Whole(48));
    same(&lfm2, &tiny("lfm2"));
}

#[test]
fn scales_of_gemma_4s_experts_have_another_name() {
    let mut plain = tiny("gemma4");
    let experts = 4;
    plain.set("gemma4.expert_count", MetaValue::Whole(experts));
    plain.set("gemma4.expert_used_count", MetaValue::Whole(2));
    plain.set("gemma4.expert_feed_forward_length", MetaValue::Whole(32));
    let experts = experts as usize;
    for layer in 0..6 {
        let mut add = |part: &str, shape: &[usize]| {
            let count: usize = shape.iter().product();
            let numbers: Vec<f32> = (0..count).map(|i| 0.5 + (i % 7) as f32 / 9.0).collect();
            plain.tensor(&format!("blk.{layer}.{part}"), shape, "F32", &numbers);
        };
        add("ffn_gate_inp.weight", &[experts, 32]);
        add("ffn_gate_inp.scale", &[32]);
        add("ffn_gate_up_exps.weight", &[experts, 64, 32]);
        add("ffn_down_exps.weight", &[experts, 32, 32]);
        add("ffn_down_exps.scale", &[experts]);
        for norm in ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"] {
            add(&format!("{norm}.weight"), &[32]);
        }
    }
    let mut ollamas = plain.clone();
    ollamas.rename_tensor("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale");
    same(add_encoders(&mut ollamas), &plain);
}

/// Old files of Llama 3 name no pre-tokenizer; one token tells the vocabulary.
#[test]
fn llama_3_is_known_by_its_vocabulary() {
    let listed = |eot: &str| {
        let mut w = tiny("llama");
        let tokens = (0..128_256).map(|id| match id {
            128_009 => eot.to_owned(),
            id => format!("t{id}"),
        });
        w.set("tokenizer.ggml.model", text("gpt2"));
        w.remove("tokenizer.ggml.pre");
        w.set("tokenizer.ggml.tokens", MetaValue::Texts(tokens.collect()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        w.write(&path).unwrap();
        Header::read(&path).unwrap().supported
    };
    assert_eq!(listed("<|eot_id|>"), Ok(()));
    let refused = listed("<|other|>").unwrap_err();
    assert!(
        matches!(refused, ModelError::UnsupportedPreTokenizer { .. }),
        "{refused}"
    );
}
