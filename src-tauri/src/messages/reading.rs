//! Sentences about how a document is read: whole or in streaming mode, by which method and why, and what is kept of it on disk.

use kept_engine::{AUTO, Chosen};

/// A difference that no answer shows, in nats: as where the choice is made.
const LEVEL: f64 = 0.01;

/// `128,440`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn title(method: &str) -> &str {
    match kept_engine::policies::find(method) {
        Ok(info) => info.title,
        Err(_) if method == AUTO => "Automatic",
        Err(_) => method,
    }
}

/// Why `auto` took what it took for a prompt of `tokens` tokens. Of the sample not everything is ever kept.
pub fn chosen(chosen: &Chosen, tokens: usize, sample: bool) -> String {
    let title = title(&chosen.method.name);
    if chosen.method.name == "full" {
        return "All of the document stays in memory, so nothing is lost.".to_owned();
    }
    let Some(kl) = chosen.kl else {
        return match chosen.method.name.as_str() {
            "treekv" => format!(
                "{title} keeps something of every part of a text that is longer than the model takes at once, and in our measurements no other such method foretold one much better."
            ),
            _ => format!(
                "{title} foretold a text that is longer than the model takes at once best in our measurements, of the methods that can read one."
            ),
        };
    };
    let share = (100.0 * chosen.rows as f64 / tokens.max(1) as f64).round();
    let found = 100.0 * chosen.right.unwrap_or(0.0);
    let why = match kl <= LEVEL {
        true => "answers were as with all of it",
        false => "no method lost less",
    };
    let kept = match sample {
        true => format!("{share:.0} % of the sample is kept, to show what that does"),
        false => format!("{share:.0} % of the document is kept"),
    };
    format!(
        "{kept}: with {title} {why} in our measurements, and {found:.0} % of hidden facts were still found."
    )
}

/// A document that is longer than the model's context, said before it is read.
pub fn streams(tokens: usize, more: bool, model: &str, context: usize) -> String {
    let more = if more { "more than " } else { "" };
    format!(
        "This document has {more}{} tokens (pieces of words), and {model} takes in {} at once. It will be read in streaming mode: piece by piece, letting go of words on the way. Answers are approximate, since what was let go of cannot be found again. A model with a longer context reads it whole.",
        grouped(tokens),
        grouped(context)
    )
}

/// What is said of an answer that came of such a reading, of which at most `rows` rows a head were held; `kept`: the next question
/// goes on from the document's end.
pub fn streamed(rows: Option<usize>, kept: bool) -> String {
    let held = rows.map_or(String::new(), |rows| {
        format!(
            ", holding at most {} pieces of words at a time",
            grouped(rows)
        )
    });
    let next = match kept {
        true => "What is left is in the vault: the next question on it does not read it again.",
        false => "The next question reads the document again.",
    };
    format!(
        "Read in streaming mode, which is approximate: piece by piece{held}; what was let go of could not be found again. {next}"
    )
}

/// A method that reads documents whole or not at all.
pub fn cannot_stream(method: &str) -> String {
    format!(
        "{} cannot read a document that is longer than the model’s context: choose Automatic, or one of the methods that can.",
        title(method)
    )
}

/// There is nothing to compare with.
pub const COMPARE_STREAMED: &str = "Methods are compared with the full cache, and this document is longer than the model can hold in one: choose a model with a longer context, or a shorter document.";

/// No way to keep documents.
pub fn keeping(kind: &str) -> String {
    format!("What was read is kept as q8_0, f16 or not at all (off); “{kind}” is none of these.")
}

/// No way to store rows.
pub fn cache_type(typed: &str) -> String {
    format!("Kept rows are stored as f32, f16, q8_0 or q4_0; “{typed}” is none of these.")
}

/// No device.
pub fn device(typed: &str) -> String {
    format!("The engine runs on the processor (cpu) or a GPU (cuda:0); “{typed}” is neither.")
}

/// The engine must not go while it works.
pub const BUSY_DEVICE: &str =
    "The engine is at work: stop it or wait for its end, then change what it runs on.";

/// What the engine says of a method that rows of few bits do not work with, in the window's words; nothing if it is not that. What
/// has to change is the person's to choose: the page offers it (`ui/src/lib/cache.ts` knows the sentence by its end).
pub(super) fn rounded_anew(sentence: &str) -> Option<String> {
    let rest = sentence.strip_prefix("a cache of type ")?;
    let (cache, rest) = rest.split_once(" does not work with ")?;
    let (method, rest) = rest.split_once(", which ")?;
    let (does, _) = rest.split_once(" and would round them each time")?;
    Some(format!(
        "{} {does}, and rows of {cache} would be rounded anew each time: choose another method, or store rows in 16 or 32 bits.",
        title(method)
    ))
}

/// No amount of memory.
pub fn memory_limit(typed: &str) -> String {
    format!(
        "“{typed}” is no amount of memory: write for example 6 GiB or 900 MiB, or nothing for no limit."
    )
}

/// What the engine says was chosen for a memory limit and what that costs, in the window's words; nothing if it is not that.
pub(super) fn within_limit(sentence: &str) -> Option<String> {
    let (limit, rest) = sentence.split_once(" of memory: ")?;
    let (rows, rest) = rest.split_once(" rows per head (")?;
    let (share, rest) = rest.split_once(" % of the prompt), ")?;
    let (_, rest) = rest.split_once(", in chunks of ")?;
    let (chunk, rest) = rest.split_once(" tokens, ")?;
    let (taken, costs) = rest.split_once(" at the worst moment; ")?;
    let (rows, chunk) = (rows.parse().ok()?, chunk.parse().ok()?);
    let (rows, chunk) = (grouped(rows), grouped(chunk));
    // Of a document that is read in streaming another cost is named, which is the method's and not the limit's.
    let nats = costs.split_once(" nats of KL divergence");
    let nats: Option<f64> = nats.and_then(|(cost, _)| cost.rsplit(' ').next()?.parse().ok());
    let kept = match (nats, share) {
        (None, _) => format!("at most {rows} pieces of words are held at a time"),
        (Some(_), "100") => "all of the document is kept".to_owned(),
        (Some(_), share) => format!("{share} % of the document is kept ({rows} rows a head)"),
    };
    let costs = match nats {
        None => String::new(),
        Some(nats) if nats <= LEVEL => {
            " In our measurements answers were as with all of it.".to_owned()
        }
        Some(nats) => format!(
            " In our measurements answers drift by {nats:.2} nats from those with all of it."
        ),
    };
    Some(format!(
        "Within the memory limit of {limit}, {kept}, read {chunk} tokens at a time; at the worst moment {taken} are taken.{costs}"
    ))
}

/// What the engine says of a memory limit that is too small, in the window's words; nothing if it is not that. The page offers the way
/// to the settings (`ui/src/lib/limit.ts` knows the sentence by its beginning).
pub(super) fn limit_too_small(sentence: &str) -> Option<String> {
    let rest = sentence.strip_prefix("--memory ")?;
    let (limit, rest) = rest.split_once(" needs ")?;
    let (missing, rest) = rest.split_once(" more: the weights alone are ")?;
    let (weights, _) = rest.split_once(", and ")?;
    Some(format!(
        "The memory limit of {limit} is too small for this question: {missing} are missing. The model’s weights alone are {weights}, and program, document and reading come on top. Raise the limit in Settings, or choose a smaller model, a shorter document or a method that keeps less."
    ))
}

/// No amount of disk space.
pub fn keep_budget(typed: &str) -> String {
    format!("“{typed}” is no amount of disk space: write for example 20 GiB or 500 MiB.")
}

/// What is left after everything was forgotten that is not in use.
pub fn vault_cleared(left: usize) -> String {
    match left {
        0 => "Nothing is kept any more.".to_owned(),
        1 => "1 document is in use and stays kept; everything else is forgotten.".to_owned(),
        left => format!("{left} documents are in use and stay kept; everything else is forgotten."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kept_engine::Method;

    fn taken(method: &str, rows: usize, kl: Option<f64>) -> Chosen {
        Chosen {
            method: Method {
                name: method.into(),
                parameters: Vec::new(),
            },
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
            "25 % of the document is kept: with SnapKV answers were as with all of it in our measurements, and 100 % of hidden facts were still found."
        );
        assert!(chosen(&cut, 1000, true).starts_with("25 % of the sample"));
        let little = taken("snapkv", 50, Some(0.2));
        assert!(chosen(&little, 1000, false).contains("no method lost less"));
        assert!(chosen(&taken("full", 9, Some(0.0)), 9, false).contains("nothing is lost"));
        assert!(
            chosen(&taken("treekv", 512, None), 100_000, false)
                .starts_with("TreeKV keeps something of every part")
        );
    }

    #[test]
    fn a_method_that_rows_of_few_bits_do_not_work_with_is_named_with_the_ways_out() {
        let error = kept_engine::EngineError::CacheType {
            cache: kept_engine::kernels::CacheType::Q8_0,
            method: "ems",
            why: "merges rows while it answers",
        };
        assert_eq!(
            crate::messages::present_error(&error.to_string()),
            "EMS merges rows while it answers, and rows of q8_0 would be rounded anew each time: choose another method, or store rows in 16 or 32 bits."
        );
        assert_eq!(rounded_anew("a cache of type q8_0 is full"), None);
    }

    #[test]
    fn what_was_chosen_for_a_memory_limit_is_said_in_the_windows_words() {
        let fitted = |rows| kept_engine::Fitted {
            rows,
            chunk: 256,
            cache: kept_engine::kernels::CacheType::F16,
            bytes: 5 << 29,
        };
        let said = |rows, costs: &str| {
            let note = kept_engine::fitted_note(3 << 30, &fitted(rows), 5000, costs);
            crate::messages::present_error(&note)
        };
        let nats = |nats: &str| {
            format!(
                "in our measurements with Qwen that costs {nats} nats of KL divergence from the full cache"
            )
        };
        assert_eq!(
            said(1250, &nats("at most 0.1234")),
            "Within the memory limit of 3.0 GiB, 25 % of the document is kept (1,250 rows a head), read 256 tokens at a time; at the worst moment 2.5 GiB are taken. In our measurements answers drift by 0.12 nats from those with all of it."
        );
        let all = said(9000, &nats("0.0002"));
        assert!(
            all.contains("all of the document is kept, read 256 tokens"),
            "{all}"
        );
        assert!(all.ends_with("answers were as with all of it."), "{all}");
        let streamed = said(
            512,
            "in our measurements with Qwen its perplexity along a long text was 9, the best method's 8",
        );
        assert!(
            streamed.contains("at most 512 pieces of words are held at a time"),
            "{streamed}"
        );
        assert!(streamed.ends_with("2.5 GiB are taken."), "{streamed}");
        assert_eq!(within_limit("6.0 GiB of memory: nothing else"), None);
    }

    #[test]
    fn a_memory_limit_that_is_too_small_says_what_is_missing_and_the_ways_out() {
        let error = kept_engine::EngineError::Memory {
            memory: 1 << 30,
            missing: 1 << 29,
            weights: 900 << 20,
        };
        assert_eq!(
            crate::messages::present_error(&error.to_string()),
            "The memory limit of 1.0 GiB is too small for this question: 512.0 MiB are missing. The model’s weights alone are 900.0 MiB, and program, document and reading come on top. Raise the limit in Settings, or choose a smaller model, a shorter document or a method that keeps less."
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
            let said = crate::messages::present_error(&error.to_string());
            assert!(!said.contains("--"), "{said}");
        }
        assert!(memory_limit("lots").contains("“lots”"));
    }

    #[test]
    fn numbers_are_grouped_and_methods_have_their_titles() {
        let said = streams(1_234_567, true, "mini", 8192);
        assert!(said.contains("more than 1,234,567 tokens") && said.contains("8,192"));
        assert!(cannot_stream("snapkv").starts_with("SnapKV cannot"));
        assert!(streamed(Some(2048), true).contains("at most 2,048 pieces"));
        assert!(streamed(None, true).contains("does not read it again"));
        let said = streamed(None, false);
        assert!(!said.contains("holding") && said.contains("reads the document again"));
    }
}
