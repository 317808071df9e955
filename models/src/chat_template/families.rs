//! Built-in conversation formats, for model files without a chat template. Each is the plainest form of the format that
//! models of a family were trained on, and is recognised by its control tokens.

use crate::gguf::{GEMMA, Gguf};
use crate::tokenizer::EOS_IDS;
use crate::{ModelError, Tokenizer};

/// A format and the control tokens it uses.
struct Format {
    name: &'static str,
    marks: &'static [&'static str],
    source: &'static str,
}

/// In order of preference: the first format whose control tokens are all in the vocabulary.
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
        name: "gpt-oss's",
        marks: &["<|return|>", "<|start|>", "<|channel|>", "<|message|>"],
        source: "<|start|>system<|message|>Reasoning: low\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + message['content'] + '<|end|>' }}{% elif message['role'] == 'system' %}{{ '<|start|>developer<|message|># Instructions\n\n' + message['content'] + '<|end|>' }}{% else %}{{ '<|start|>' + message['role'] + '<|message|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    },
    Format {
        name: "Gemma 4's",
        marks: &["<|turn>", "<turn|>"],
        source: "{{ bos_token }}{% for message in messages %}{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + message['content'] + '<turn|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}",
    },
    Format {
        name: "Gemma's",
        marks: &["<start_of_turn>", "<end_of_turn>"],
        source: GEMMA,
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

/// The format of models with `<|im_start|>` and no template of their own.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// For models not trained on conversations: base models, and vocabularies without such control tokens.
const PLAIN: &str = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}";

/// The format for a file without a template, and a note for the user. A chat model gets the format of its vocabulary's
/// control tokens, other models get plain text. Base models have such tokens too, but were not trained on them: Gemma 3
/// 270M answers 0 of 9 planted facts in Gemma's format and 7 in plain text.
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
        let mut declared = gguf.wholes(EOS_IDS)?.unwrap_or_default();
        declared.extend(gguf.whole("tokenizer.ggml.eot_token_id")?);
        let ends = |id: u32| Some(id) == tokenizer.eos() || declared.contains(&u64::from(id));
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

/// Whether the model's names contain a word that is typical of chat models.
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
