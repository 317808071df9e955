//! Sentences about reading a document: completely or in streaming mode, the chosen method and its reason, and storage
//! on disk.

use kept_engine::kernels::format_bytes;
use kept_engine::{AUTO, Chosen, WithinMemory};
use kept_hub::text::count;

/// A KL divergence in nats below which answers do not differ; the same level as in the choice of `auto`.
const NEGLIGIBLE_KL: f64 = 0.01;

fn title(method: &str) -> &str {
    match kept_engine::policies::find(method) {
        Ok(info) => info.title,
        Err(_) if method == AUTO => "Automatic",
        Err(_) => method,
    }
}

/// The reason for the choice of `auto` for a prompt of `tokens` tokens. The sample is never kept completely.
pub fn chosen(chosen: &Chosen, tokens: usize, sample: bool) -> String {
    let title = title(&chosen.method.name);
    if chosen.method.is_full() {
        return "The model remembers all of the text: nothing is forgotten.".to_owned();
    }
    let Some(kl) = chosen.kl else {
        return match chosen.method.name.as_str() {
            "treekv" => format!(
                "{title} remembers words from all over a text that is too long for the model, fewer the further back. In our tests no other method of this kind predicted such a text much better."
            ),
            _ => format!(
                "In our tests {title} predicted texts that are too long for the model best, of the methods that can read one."
            ),
        };
    };
    let share = (100.0 * chosen.rows as f64 / tokens.max(1) as f64).round();
    let found = 100.0 * chosen.right.unwrap_or(0.0);
    let why = if kl <= NEGLIGIBLE_KL {
        "answers hardly differed from those with all of it"
    } else {
        "no method lost less"
    };
    let kept = if sample {
        format!("Sample setting: {share:.0} % of the text is remembered, to show what that does")
    } else {
        format!("{share:.0} % of the text is remembered")
    };
    format!(
        "{kept}. In our tests with {title} on other documents, {why}, and {found:.0} % of hidden facts were found."
    )
}

/// The document exceeds the model's context length; displayed before prefill.
pub fn streams(tokens: usize, estimated: bool, model: &str, context: usize) -> String {
    let about = if estimated { "about " } else { "" };
    let longest = kept_hub::catalogue().iter().map(|entry| entry.context);
    let way_out = if longest.max().is_none_or(|longest| tokens as u64 > longest) {
        "None of the models that Kept knows takes that much at once: a part of it, such as a chapter, is answered better."
    } else {
        "A model with a longer context reads it whole."
    };
    format!(
        "This document has {about}{} tokens (pieces of words), and {model} takes {} at once. It is read in pieces, and the model forgets as it goes, so answers may miss things. {way_out}",
        count(tokens),
        count(context)
    )
}

/// The note on an answer from streaming mode, in which at most `rows` rows per head were kept. `kept`: the vault stores
/// the result, so the next question does not read the document again.
pub fn streamed(rows: Option<usize>, kept: bool) -> String {
    let held = rows.map_or(String::new(), |rows| {
        format!(", remembering at most {} tokens at a time", count(rows))
    });
    let next = if kept {
        "The next question on it starts at once."
    } else {
        "The next question reads the document again."
    };
    format!("Read in pieces{held}: the answer may miss what was forgotten. {next}")
}

/// The method has no streaming mode.
pub fn cannot_stream(method: &str) -> String {
    format!(
        "{} cannot read a document that is too long for the model: choose Automatic, or one of the methods that can.",
        title(method)
    )
}

/// A comparison requires the full cache, which a document beyond the context length does not have.
pub const COMPARE_STREAMED: &str = "Methods are compared with remembering everything, and this document is too long for that: choose a model with a longer context, or a shorter document.";

/// The type of vault rows is unknown.
pub fn keeping(kind: &str) -> String {
    format!("The vault is q8_0, f16 or off; “{kind}” is none of these.")
}

/// The cache type is unknown.
pub fn cache_type(typed: &str) -> String {
    format!("The cache precision is f32, f16, q8_0 or q4_0; “{typed}” is none of these.")
}

/// The device is unknown.
pub fn device(typed: &str) -> String {
    format!("The engine runs on the processor (cpu) or a GPU (cuda:0); “{typed}” is neither.")
}

/// The device cannot be changed while the engine works.
pub const BUSY_DEVICE: &str =
    "The engine is working: stop it or wait until it is done, then change what it runs on.";

/// The method does not work with quantised rows. The page offers a solution.
pub(super) fn cannot_store(cache: &str, method: &str, why: &str) -> String {
    format!(
        "{} {why}, and {cache} would round them again each time: choose another method, or a cache precision of 16 or 32 bits.",
        title(method)
    )
}

/// The memory limit is not a size.
pub fn memory_limit(typed: &str) -> String {
    format!(
        "“{typed}” is not an amount of memory: type for example 6 GiB or 900 MiB, or leave the field empty for no limit."
    )
}

/// The effect of a memory limit and its cost.
pub(super) fn within_limit(within: &WithinMemory) -> String {
    let (rows, chunk) = (count(within.rows), count(within.chunk));
    let share = 100.0 * within.rows as f64 / within.tokens.max(1) as f64;
    let kept = match within.kl {
        None => format!("at most {rows} tokens are remembered at a time"),
        Some(_) if within.rows >= within.tokens => "all of the text is remembered".to_owned(),
        Some(_) => format!("{share:.0} % of the text is remembered ({rows} rows per head)"),
    };
    let costs = match within.kl {
        None => String::new(),
        Some(nats) if nats <= NEGLIGIBLE_KL => {
            " In our tests, answers then hardly differed from those with all of it.".to_owned()
        }
        Some(nats) => format!(
            " In our tests, answers then differed from those with all of it (KL divergence {nats:.2})."
        ),
    };
    format!(
        "With the memory limit of {}, {kept}, read {chunk} tokens at a time; at most {} are used.{costs}",
        format_bytes(within.limit),
        format_bytes(within.bytes)
    )
}

/// The memory limit is too small. The page offers the settings.
pub(super) fn limit_too_small(limit: u64, missing: u64, weights: u64) -> String {
    format!(
        "The memory limit of {} is too small for this question: {} are missing. The model’s weights alone are {}, plus the program, the document and working memory. Raise the limit in Settings, or choose a smaller model, a shorter document or a method that keeps less.",
        format_bytes(limit),
        format_bytes(missing),
        format_bytes(weights)
    )
}

/// The disk budget is not a size.
pub fn keep_budget(typed: &str) -> String {
    format!("“{typed}” is not an amount of disk space: type for example 20 GiB or 500 MiB.")
}

/// A disk budget that holds no document.
pub fn keep_budget_small(typed: &str) -> String {
    format!("“{typed}” holds no document: give at least 64 MiB, or switch the vault off.")
}

/// The result of clearing the vault, which leaves `left` documents that are in use.
pub fn vault_cleared(left: usize) -> String {
    match left {
        0 => "The vault is empty.".to_owned(),
        1 => "1 document is in use and stays; everything else is deleted.".to_owned(),
        left => format!("{left} documents are in use and stay; everything else is deleted."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kept_engine::MethodSpec;

    fn taken(method: &str, rows: usize, kl: Option<f64>) -> Chosen {
        Chosen {
            method: MethodSpec::plain(method),
            rows,
            cache: kept_engine::kernels::CacheType::F32,
            expected_bytes: 0,
            free_bytes: None,
            kl,
            right: Some(1.0),
            reason: String::new(),
        }
    }

    #[test]
    fn every_choice_has_its_reason() {
        let cut = taken("snapkv", 250, Some(0.0008));
        assert_eq!(
            chosen(&cut, 1000, false),
            "25 % of the text is remembered. In our tests with SnapKV on other documents, answers hardly differed from those with all of it, and 100 % of hidden facts were found."
        );
        assert!(chosen(&cut, 1000, true).starts_with("Sample setting: 25 %"));
        let little = taken("snapkv", 50, Some(0.2));
        assert!(chosen(&little, 1000, false).contains("no method lost less"));
        assert!(chosen(&taken("full", 9, Some(0.0)), 9, false).contains("nothing is forgotten"));
        assert!(
            chosen(&taken("treekv", 512, None), 100_000, false)
                .starts_with("TreeKV remembers words from all over")
        );
    }

    fn shown(error: kept_engine::EngineError) -> String {
        crate::messages::fault(&error.into())
    }

    #[test]
    fn a_method_that_rows_of_few_bits_do_not_work_with_is_named_with_the_ways_out() {
        let error = kept_engine::EngineError::CacheType {
            cache: kept_engine::kernels::CacheType::Q8_0,
            method: "ems",
            why: "merges rows while it answers",
        };
        assert_eq!(
            shown(error),
            "EMS merges rows while it answers, and q8_0 would round them again each time: choose another method, or a cache precision of 16 or 32 bits."
        );
    }

    #[test]
    fn what_was_chosen_for_a_memory_limit_is_said_in_the_windows_words() {
        let said = |rows: usize, kl| {
            crate::messages::note(&kept_engine::Note::WithinMemory(WithinMemory {
                limit: 3 << 30,
                rows,
                tokens: 5000,
                chunk: 256,
                cache: "f16".into(),
                bytes: 5 << 29,
                kl,
                cost: None,
            }))
        };
        assert_eq!(
            said(1250, Some(0.1234)),
            "With the memory limit of 3.00 GiB, 25 % of the text is remembered (1,250 rows per head), read 256 tokens at a time; at most 2.50 GiB are used. In our tests, answers then differed from those with all of it (KL divergence 0.12)."
        );
        let all = said(5000, Some(0.0002));
        assert!(
            all.contains("all of the text is remembered, read 256 tokens"),
            "{all}"
        );
        assert!(
            all.ends_with("hardly differed from those with all of it."),
            "{all}"
        );
        let streamed = said(512, None);
        assert!(
            streamed.contains("at most 512 tokens are remembered at a time"),
            "{streamed}"
        );
        assert!(streamed.ends_with("2.50 GiB are used."), "{streamed}");
    }

    #[test]
    fn a_memory_limit_that_is_too_small_says_what_is_missing_and_the_ways_out() {
        let error = kept_engine::EngineError::Memory {
            memory: 1 << 30,
            missing: 1 << 29,
            weights: 900 << 20,
        };
        assert_eq!(
            shown(error),
            "The memory limit of 1.00 GiB is too small for this question: 512.0 MiB are missing. The model’s weights alone are 900.0 MiB, plus the program, the document and working memory. Raise the limit in Settings, or choose a smaller model, a shorter document or a method that keeps less."
        );
        for error in [
            kept_engine::EngineError::Refused { bytes: 1 << 40 },
            kept_engine::EngineError::GpuMemory {
                gpu: "NVIDIA X".into(),
                needed: 2 << 30,
                free: 1 << 30,
            },
            kept_engine::EngineError::GpuRows {
                cache: kept_engine::kernels::CacheType::F32,
            },
        ] {
            let said = shown(error);
            assert!(!said.contains("--"), "{said}");
        }
        assert!(memory_limit("lots").contains("“lots”"));
    }

    #[test]
    fn numbers_are_grouped_and_methods_have_their_titles() {
        let said = streams(1_234_567, true, "mini", 8192);
        assert!(said.contains("about 1,234,567 tokens") && said.contains("8,192"));
        assert!(cannot_stream("snapkv").starts_with("SnapKV cannot"));
        assert!(streamed(Some(2048), true).contains("at most 2,048 tokens"));
        assert!(streamed(None, true).contains("starts at once"));
        let said = streamed(None, false);
        assert!(!said.contains("at most") && said.contains("reads the document again"));
    }
}
