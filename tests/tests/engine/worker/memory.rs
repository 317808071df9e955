//! A memory limit over the pipes: an estimate under it holds for the question, and a limit that is too small is refused
//! at once.

use kept_engine::{AUTO, Estimate, Note, Turn};
use kept_worker::protocol::{AskRequest, EstimateRequest, Failure, FaultCode, Reply, Request};
use serde_json::json;

use super::{QUESTION, failure, ready};
use kept_tests::worker::{Worker, is_end, open_document, question, questions, sample};

const MIB: u64 = 1 << 20;

fn estimate(name: &str, budget: Option<&str>, memory: Option<u64>) -> Request {
    Request::Estimate {
        ticket: 1,
        of: EstimateRequest {
            budget: budget.map(str::to_owned),
            memory,
            max_tokens: Some(48),
            ..questions(name)
        },
        turns: Vec::new(),
    }
}

fn ask(name: &str, memory: Option<u64>) -> Request {
    Request::Ask {
        ticket: 2,
        ask: AskRequest {
            memory,
            ..question(QUESTION, name)
        },
    }
}

/// A question's estimate, or why it is refused.
fn costs(worker: &mut Worker, request: &Request) -> Result<Estimate, FaultCode> {
    worker.say(request);
    match worker.find(|reply| matches!(reply, Reply::Estimate { .. } | Reply::Failed { .. })) {
        (Reply::Estimate { estimate, .. }, _) => Ok(estimate),
        (Reply::Failed { what, code, .. }, _) => {
            assert_eq!(what, Failure::Estimate);
            Err(code)
        }
        other => panic!("{other:?}"),
    }
}

/// The minimum memory of a question under a method, derived from the refusal of a limit of 1 MiB.
fn least(worker: &mut Worker, name: &str) -> u64 {
    let refusal = costs(worker, &estimate(name, None, Some(MIB))).expect_err("too little");
    let FaultCode::MemoryLimit { limit, missing, .. } = refusal else {
        panic!("{refusal:?}")
    };
    assert_eq!(limit, MIB);
    MIB + missing
}

fn within_memory(note: &Note) -> bool {
    matches!(note, Note::WithinMemory(_))
}

#[test]
fn an_estimate_under_a_memory_limit_holds() {
    let mut worker = ready();
    let free = costs(&mut worker, &estimate("snapkv", Some("100%"), None)).expect("no limit");
    assert!(!free.notes.iter().any(within_memory), "{:?}", free.notes);
    let whole = costs(&mut worker, &estimate("snapkv", None, Some(1 << 34))).expect("much memory");
    assert_eq!(
        whole.rows, whole.prompt_tokens,
        "all that there is room for"
    );
    assert_eq!((whole.rows, whole.cache), (free.rows, free.cache));

    let limit = least(&mut worker, "snapkv") + MIB;
    let fits = costs(&mut worker, &estimate("snapkv", None, Some(limit))).expect("it fits");
    assert!(fits.rows < whole.rows || fits.cache != "f16", "{fits:?}");
    let fitted = fits.notes.iter().find_map(|note| match note {
        Note::WithinMemory(within) => Some((within.limit, within.rows)),
        _ => None,
    });
    assert_eq!(fitted, Some((limit, fits.rows)), "{:?}", fits.notes);
    // Fewer rows than fit, if the user requests fewer.
    let few = costs(&mut worker, &estimate("snapkv", Some("10%"), Some(1 << 34))).expect("it fits");
    assert_eq!(few.rows, few.prompt_tokens / 10);

    worker.say(&ask("snapkv", Some(limit)));
    let (Reply::Answered { answer, .. }, _) = worker.find(is_end) else {
        panic!("no answer")
    };
    assert_eq!(answer.report.cache, fits.cache);
    let rows = answer.rows_per_layer.iter().sum::<usize>() / answer.rows_per_layer.len();
    let off = rows.abs_diff(fits.rows);
    // The estimate assumes a question of typical length.
    assert!(off * 20 <= fits.rows, "{rows} of {} expected", fits.rows);
    assert!(answer.notes.iter().any(within_memory), "{:?}", answer.notes);

    // The choice of a method respects the limit too.
    let chosen = costs(&mut worker, &estimate(AUTO, None, Some(limit))).expect("it fits");
    assert!(chosen.chosen.is_some() && chosen.notes.iter().any(within_memory));
}

#[test]
fn a_memory_limit_below_the_weights_is_refused() {
    let mut worker = ready();
    for name in ["snapkv", AUTO] {
        least(&mut worker, name);
        worker.say(&ask(name, Some(MIB)));
        let (refused, _) = worker.find(|reply| {
            assert!(!matches!(reply, Reply::Progress { .. }), "nothing is read");
            is_end(reply)
        });
        let (ticket, what, message, stopped) = failure(refused);
        assert_eq!((ticket, what, stopped), (Some(2), Failure::Ask, false));
        assert!(
            message.contains("weights alone are 3.3 MiB, more than the memory limit"),
            "{message}"
        );
    }
}

#[test]
fn streaming_under_a_memory_limit_reuses_its_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&long, text.repeat(4)).expect("a long document");
    let vaults = folder.path().join("vaults");
    let mut worker = Worker::start_with(&[("KEPT_VAULTS", vaults.to_str().expect("UTF-8"))]);
    worker.say(&kept_tests::worker::open_model("mini"));
    worker.say(&open_document(long));
    worker.find(|reply| matches!(reply, Reply::Tokens { streams: true, .. }));
    let free = costs(&mut worker, &estimate("streaming_llm", None, None)).expect("no limit");
    let limit = least(&mut worker, "streaming_llm") + 3 * MIB;
    let request = estimate("streaming_llm", None, Some(limit));
    let fits = costs(&mut worker, &request).expect("it fits");
    assert!(
        fits.rows < free.rows || fits.cache != free.cache,
        "{fits:?}"
    );
    assert_eq!(fits.tokens_from_vault, 0);
    worker.say(&ask("streaming_llm", Some(limit)));
    let (Reply::Answered { answer, .. }, _) = worker.find(is_end) else {
        panic!("no answer")
    };
    assert!(answer.report.streamed);
    assert_eq!(
        (answer.rows_per_layer[0], &answer.report.cache),
        (fits.rows, &fits.cache)
    );
    // The vault comes from a reading within this limit.
    let again = costs(&mut worker, &request).expect("it fits");
    assert!(again.tokens_from_vault > 0, "{again:?}");
}

/// A question later in a conversation costs what its estimate says.
#[test]
fn earlier_turns_count_in_an_estimate() {
    let mut worker = ready();
    let turn = |words: &str| Turn::new(QUESTION, words).expect("an answer");
    let turns = vec![turn(&"It was the keeper. ".repeat(20)), turn("At noon.")];
    let mut request = estimate("snapkv", Some("10%"), None);
    let alone = costs(&mut worker, &request).expect("it fits");
    let Request::Estimate { turns: seen, .. } = &mut request else {
        unreachable!()
    };
    seen.clone_from(&turns);
    let later = costs(&mut worker, &request).expect("it fits");
    assert!(later.prompt_tokens > alone.prompt_tokens + 80, "{later:?}");

    let mut asked = ask("snapkv", None);
    let Request::Ask { ask, .. } = &mut asked else {
        unreachable!()
    };
    (ask.turns, ask.budget) = (turns, Some("10%".to_owned()));
    worker.say(&asked);
    let (Reply::Answered { answer, .. }, _) = worker.find(is_end) else {
        panic!("no answer")
    };
    // The estimate assumes a question of typical length.
    let off = answer.report.prompt_tokens.abs_diff(later.prompt_tokens);
    assert!(
        off < 16,
        "{} of {}",
        answer.report.prompt_tokens,
        later.prompt_tokens
    );
}

/// A request without a limit has a reply without one.
#[test]
fn requests_without_a_memory_limit_are_unchanged() {
    let named = json!({"name": "snapkv", "parameters": []});
    let written =
        json!({"request": "estimate", "ticket": 1, "method": named, "budget": null, "turns": []});
    let read: Request = serde_json::from_value(written).expect("an estimate");
    let Request::Estimate { of, .. } = read else {
        panic!("{read:?}")
    };
    assert_eq!((of.memory, of.max_tokens), (None, None));
    let limited = ask("snapkv", Some(6 << 30));
    let written = serde_json::to_value(&limited).expect("JSON");
    let read: Request = serde_json::from_value(written).expect("a question");
    assert_eq!(read, limited);
}
