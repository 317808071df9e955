//! Files of Ollama's library, which differ from those of llama.cpp's converters in names, in missing values, and in that
//! they hold the model's image encoder too. They are translated as they are opened; no weight is changed.
//!
//! Other modules read what such files have besides: several end tokens (`tokenizer.ggml.eos_token_ids`), and an empty
//! type of RoPE scaling.
//!
//! Source: the table by which Ollama opens these files with llama.cpp (`llama/compat` in its repository).

use super::{Gguf, Value};

const ARCHITECTURE: &str = "general.architecture";
const PRE: &str = "tokenizer.ggml.pre";

/// The format of Gemma 2 and 3.
pub(crate) const GEMMA: &str = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\n' + message['content'] + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

/// First parts of the names of tensors that a text model does not use: encoders of images (`v.`) and of sound (`a.`),
/// their projections (`mm.`), and layers that predict several tokens (`mtp.`).
const UNUSED: [&str; 5] = ["v.", "a.", "mm.", "mtp.", "model.vision_tower."];

/// Names of one architecture.
struct Dialect {
    /// In Ollama's files.
    architecture: &'static str,
    /// In llama.cpp's files.
    translated: &'static str,
    /// Metadata keys without the architecture, Ollama's first.
    keys: &'static [(&'static str, &'static str)],
    /// Tensors, Ollama's name first; those of a layer without `blk.0.`.
    tensors: &'static [(&'static str, &'static str)],
    /// The pre-tokenizer of files that name none.
    pre: Option<&'static str>,
}

const PLAIN: Dialect = Dialect {
    architecture: "",
    translated: "",
    keys: &[],
    tensors: &[],
    pre: None,
};

const DIALECTS: &[Dialect] = &[
    Dialect {
        architecture: "gemma3",
        translated: "gemma3",
        keys: &[
            ("rope.global.freq_base", "rope.freq_base"),
            ("rope.local.freq_base", "rope.freq_base_swa"),
            ("rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
            ("rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
        ],
        ..PLAIN
    },
    Dialect {
        architecture: "gemma4",
        translated: "gemma4",
        tensors: &[("ffn_gate_inp.per_expert_scale", "ffn_down_exps.scale")],
        ..PLAIN
    },
    Dialect {
        architecture: "gptoss",
        translated: "gpt-oss",
        tensors: &[
            ("attn_out.weight", "attn_output.weight"),
            ("attn_out.bias", "attn_output.bias"),
            ("attn_sinks", "attn_sinks.weight"),
            ("ffn_norm.weight", "post_attention_norm.weight"),
        ],
        pre: Some("gpt-4o"),
        ..PLAIN
    },
    Dialect {
        architecture: "lfm2",
        translated: "lfm2",
        tensors: &[("output_norm.weight", "token_embd_norm.weight")],
        pre: Some("lfm2"),
        ..PLAIN
    },
    Dialect {
        architecture: "mistral3",
        translated: "mistral3",
        keys: &[
            ("rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
            ("rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
            (
                "rope.scaling.mscale_all_dim",
                "rope.scaling.yarn_log_multiplier",
            ),
            ("rope.scaling_beta", "attention.temperature_scale"),
        ],
        pre: Some("tekken"),
        ..PLAIN
    },
    Dialect {
        architecture: "olmo3",
        translated: "olmo2",
        ..PLAIN
    },
    Dialect {
        architecture: "qwen25vl",
        translated: "qwen2vl",
        ..PLAIN
    },
    Dialect {
        architecture: "qwen35",
        translated: "qwen35",
        tensors: &[("ssm_dt", "ssm_dt.bias")],
        ..PLAIN
    },
    Dialect {
        architecture: "qwen35moe",
        translated: "qwen35moe",
        tensors: &[("ssm_dt", "ssm_dt.bias")],
        ..PLAIN
    },
];

/// Gives a file of Ollama's the names and values that one of llama.cpp's converters would have.
pub(super) fn translate(mut gguf: Gguf) -> Gguf {
    gguf.set_unused_aside();
    let Ok(Some(name)) = gguf.text(ARCHITECTURE).map(|name| name.map(str::to_owned)) else {
        return gguf;
    };
    // Keys that only Ollama's converter writes.
    let mut marks = ["mm.tokens_per_image", "rope.local.freq_base"].into_iter();
    let is_ollamas = marks.any(|key| gguf.metadata.contains_key(&format!("{name}.{key}")));
    let mut dialects = DIALECTS.iter();
    if let Some(dialect) = dialects.find(|dialect| dialect.architecture == name) {
        gguf.rename(dialect);
    }
    match name.as_str() {
        "gemma3" => gguf.complete_gemma3(is_ollamas),
        "gemma4" => gguf.name_gemma4s_vocabulary(),
        "gptoss" => gguf.complete_gpt_oss(),
        "lfm2" => gguf.correct_lfm2(),
        "llama" => gguf.name_llama3s_rules(),
        _ => {}
    }
    gguf
}

impl Gguf {
    /// Removes the tensors that a text model does not use.
    fn set_unused_aside(&mut self) {
        let unused = |name: &str| UNUSED.iter().any(|start| name.starts_with(start));
        let found = self.tensors.extract_if(|name, _| unused(name));
        self.unused_bytes += found.map(|(_, tensor)| tensor.bytes as u64).sum::<u64>();
    }

    fn rename(&mut self, dialect: &Dialect) {
        let (from, to) = (dialect.architecture, dialect.translated);
        if from != to {
            let keys: Vec<String> = self.metadata.keys().cloned().collect();
            for (key, rest) in keys.iter().filter_map(|key| {
                let rest = key.strip_prefix(from)?.strip_prefix('.')?;
                Some((key, rest))
            }) {
                self.rename_key(key, &format!("{to}.{rest}"));
            }
            self.metadata
                .insert(ARCHITECTURE.to_owned(), Value::Given(to));
        }
        for (old, new) in dialect.keys {
            self.rename_key(&format!("{to}.{old}"), &format!("{to}.{new}"));
        }
        for (old, new) in dialect.tensors {
            self.rename_tensors(old, new);
        }
        if let Some(pre) = dialect.pre
            && matches!(self.text(PRE), Ok(None | Some("" | "default")))
        {
            self.metadata.insert(PRE.to_owned(), Value::Given(pre));
        }
    }

    /// Renames a key, unless the new one exists.
    fn rename_key(&mut self, old: &str, new: &str) {
        if let Some(value) = self.metadata.remove(old) {
            self.metadata.entry(new.to_owned()).or_insert(value);
        }
    }

    /// Renames a tensor, in every layer if it is one of a layer, unless the new name exists.
    fn rename_tensors(&mut self, old: &str, new: &str) {
        let names = self.tensors.keys().filter(|name| {
            let rest = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'));
            rest.map_or(name.as_str(), |(_, part)| part) == old
        });
        for name in names.cloned().collect::<Vec<_>>() {
            let renamed = format!("{}{new}", &name[..name.len() - old.len()]);
            if !self.tensors.contains_key(&renamed)
                && let Some(mut tensor) = self.tensors.remove(&name)
            {
                tensor.name.clone_from(&renamed);
                self.tensors.insert(renamed, tensor);
            }
        }
    }

    fn set_if_missing(&mut self, key: &str, value: Value) {
        self.metadata.entry(key.to_owned()).or_insert(value);
    }

    /// Rows of a matrix.
    fn rows_of(&self, name: &str) -> Option<u64> {
        let shape = &self.tensor(name)?.shape;
        Some(*shape.get(shape.len().checked_sub(2)?)? as u64)
    }

    /// Gemma 3. The files of Ollama's library, which have no name, are of models for conversations, without the template;
    /// those of 1B, of 26 layers, have a cap on logits that the model has not. A file without the epsilon of the norms
    /// lacks the other values of the published models too, and its vocabulary may have tokens for images that the
    /// embedding lacks. Models with a context of 128K tokens divide angles by 8.
    fn complete_gemma3(&mut self, is_ollamas: bool) {
        const EPS: &str = "gemma3.attention.layer_norm_rms_epsilon";
        let lacks_eps = !self.metadata.contains_key(EPS);
        if !(is_ollamas || lacks_eps) {
            return;
        }
        if !self.metadata.contains_key("general.name") {
            let template = Value::Given(GEMMA);
            self.set_if_missing("tokenizer.chat_template", template);
        }
        if matches!(self.whole("gemma3.block_count"), Ok(Some(26))) {
            self.metadata.remove("gemma3.final_logit_softcapping");
        }
        if !lacks_eps {
            return;
        }
        self.set_if_missing(EPS, Value::Float(1e-6));
        self.set_if_missing("gemma3.rope.freq_base", Value::Float(1e6));
        let context = self.whole("gemma3.context_length");
        if matches!(context, Ok(Some(131_072..))) {
            self.set_if_missing("gemma3.rope.scaling.type", Value::Given("linear"));
            self.set_if_missing("gemma3.rope.scaling.factor", Value::Float(8.0));
        }
        if let Some(rows) = self.rows_of("token_embd.weight")
            && let Some(Value::Array(tokens)) = self.metadata.get_mut("tokenizer.ggml.tokens")
        {
            tokens.len = tokens.len.min(rows as usize);
        }
    }

    /// Gemma 4's vocabulary, if it is called that of Llama, although it has merges.
    fn name_gemma4s_vocabulary(&mut self) {
        const MODEL: &str = "tokenizer.ggml.model";
        if self.metadata.contains_key("tokenizer.ggml.merges")
            && matches!(self.text(MODEL), Ok(Some("llama")))
        {
            let gemma4 = Value::Given("gemma4");
            self.metadata.insert(MODEL.to_owned(), gemma4);
        }
    }

    fn complete_gpt_oss(&mut self) {
        if let Some(rows) = self.rows_of("blk.0.ffn_gate_exps.weight") {
            let key = "gpt-oss.expert_feed_forward_length";
            self.set_if_missing(key, Value::Unsigned(rows));
        }
        self.set_if_missing("gpt-oss.rope.scaling.type", Value::Given("yarn"));
    }

    /// Some files give the width of the feed-forward before it is rounded.
    fn correct_lfm2(&mut self) {
        if let Some(rows) = self.rows_of("blk.0.ffn_gate.weight") {
            let key = "lfm2.feed_forward_length".to_owned();
            self.metadata.insert(key, Value::Unsigned(rows));
        }
    }

    /// Names the pre-tokenizer of Llama 3 in files that name none; its vocabulary is known by one token.
    fn name_llama3s_rules(&mut self) {
        let unnamed = matches!(self.text(PRE), Ok(None | Some("" | "default")));
        let is_llama3 = |tokens: Vec<&str>| tokens.get(128_009) == Some(&"<|eot_id|>");
        if unnamed
            && let Ok(Some(tokens)) = self.texts("tokenizer.ggml.tokens")
            && is_llama3(tokens)
        {
            let llama3 = Value::Given("llama-bpe");
            self.metadata.insert(PRE.to_owned(), llama3);
        }
    }
}
