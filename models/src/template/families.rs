//! Formats of conversations by their control tokens, for model files that have lost their template. Each is ours, and writes what
//! models of the family were trained on in its plainest form.

use crate::gguf::Gguf;
use crate::{ModelError, Tokenizer};

/// A format and the control tokens that it writes.
struct Format {
    name: &'static str,
    marks: &'static [&'static str],
    source: &'static str,
}

/// The first whose marks a vocabulary has is taken.
const FORMATS: &[Format] = &[
    Format {
        name: "ChatML",
        marks: &["<|im_start|>", "<|im_end|>"],
        source: CHATML,
    },
    Format {
        name: "Llama 3's",
        marks: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        source: "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    },
    Format {
        name: "Gemma's",
        marks: &["<start_of_turn>", "<end_of_turn>"],
        source: "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\n' + message['content'] + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    },
    Format {
        name: "Phi's",
        marks: &["<|user|>", "<|assistant|>", "<|end|>"],
        source: "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    },
    Format {
        name: "DeepSeek's",
        marks: &["<｜User｜>", "<｜Assistant｜>"],
        source: "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% elif message['role'] == 'assistant' %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}{% else %}{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
    },
    Format {
        name: "Mistral's",
        marks: &["[INST]", "[/INST]"],
        source: "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% else %}{{ raise_exception('no system messages') }}{% endif %}{% endfor %}",
    },
];

/// What models with `<|im_start|>` and without a template of their own were trained on.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// For models that were taught no conversation: base models, and vocabularies without such control tokens.
const PLAIN: &str = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}";

/// The format for a file without a template, and the sentence that says so: that of the vocabulary's control tokens for a chat model, else plain
/// text. A base model has such tokens too, and was not trained on them: Gemma 3 270M answers 0 of 9 planted facts in Gemma's format and 7 in
/// plain text.
pub(super) fn known_format(
    gguf: &Gguf,
    tokenizer: &Tokenizer,
) -> Result<(&'static str, Option<String>), ModelError> {
    let control = |mark: &&str| {
        let id = tokenizer.token_id(mark);
        id.filter(|&id| tokenizer.is_control(id))
    };
    let known = FORMATS
        .iter()
        .find(|format| format.marks.iter().all(|mark| control(mark).is_some()));
    if let Some(format) = known {
        let mut marks = format.marks.iter().filter_map(control);
        let end = gguf.whole("tokenizer.ggml.eot_token_id")?;
        let ends = |id: u32| Some(id) == tokenizer.eos() || Some(u64::from(id)) == end;
        if marks.any(ends) || is_named_chat(gguf)? {
            let note = format!(
                "the model file has no chat template; its control tokens are those of {} format, which is used",
                format.name
            );
            return Ok((format.source, Some(note)));
        }
    }
    let note = "the model file has no chat template; it gets plain text, so its answer may not end by itself: an instruction-tuned model answers better";
    Ok((PLAIN, Some(note.to_owned())))
}

/// Whether a word of the model's names is one of those that makers give chat models.
fn is_named_chat(gguf: &Gguf) -> Result<bool, ModelError> {
    for key in ["general.name", "general.finetune"] {
        let name = gguf.text(key)?.unwrap_or_default().to_ascii_lowercase();
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        if words.any(|word| matches!(word, "instruct" | "inst" | "chat" | "it")) {
            return Ok(true);
        }
    }
    Ok(false)
}
