//! Formats of conversations by their control tokens, for model files that have lost their template. Each is ours, and writes what
//! models of the family were trained on in its plainest form.

use crate::Tokenizer;

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

/// For models that were taught no conversation.
const PLAIN: &str = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}";

/// The format that a vocabulary without a template was made for, and the sentence that says so.
pub(super) fn known_format(tokenizer: &Tokenizer) -> (&'static str, Option<String>) {
    let has = |mark: &&str| {
        tokenizer
            .token_id(mark)
            .is_some_and(|id| tokenizer.is_control(id))
    };
    match FORMATS.iter().find(|format| format.marks.iter().all(has)) {
        Some(format) => (
            format.source,
            Some(format!(
                "the model file has no chat template; its control tokens are those of {} format, which is used",
                format.name
            )),
        ),
        None => (
            PLAIN,
            Some(
                "the model file has no chat template and no control tokens of one; it gets plain text, so its answer may not end by itself: an instruction-tuned model answers better"
                    .to_owned(),
            ),
        ),
    }
}
