//! Streaming mode against a naive implementation of its rules: token by token, with every key stored, positions
//! re-assigned by rank, and each paper's eviction implemented once more in f64. With chunks of one token this is the
//! methods' own definition.

use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable, RowScratch};
use kept_engine::policies::{Method, PromptShape, STREAMING, build, methods};
use kept_engine::{
    Ask, Decoder, Engine, EngineError, LayerRetention, Limits, MethodSpec, Prefill, RetentionMap,
    Stream, StreamPlan, Streaming,
};
use kept_tests::compare::assert_same;
use kept_tests::engine::open;
use kept_tests::golden::{self, Unpacked};
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::slow::{Slow, Standing};

/// Relative to the largest logit of a row.
const BOUND: f32 = 2e-4;

/// A text of random tokens.
fn text(model: &Model, tokens: usize) -> Vec<u32> {
    let vocab = model.config().vocab as u32 - 3;
    (0..tokens as u32)
        .map(|i| 3 + (i * i % 91 + i * 37 + 11) % vocab)
        .collect()
}

/// Result of prefill and decode in streaming mode.
struct Read {
    /// `[tokens][vocab]`: after every token.
    logits: Vec<Vec<f32>>,
    /// The retention map after prefill.
    map: RetentionMap,
}

/// Runs prefill in streaming mode, in chunks of `chunk` tokens, on all but the last `steps` of `ids`, then decodes along
/// those. `single`: every chunk passes all layers before the next one begins.
fn stream(
    model: &Model,
    method: TestMethod,
    chunk: usize,
    ids: &[u32],
    steps: usize,
    single: bool,
) -> Read {
    let built = method.method();
    let (first, rest) = ids.split_at(ids.len() - steps);
    let shape = PromptShape::of(first.len());
    let mut plan = StreamPlan::new(
        model,
        &*built,
        &shape,
        Some(method.budget),
        steps,
        Some(chunk),
        CacheType::F32,
    )
    .expect("a plan");
    if single {
        plan.chunk_group = plan.chunk;
    }
    let rope = RopeTable::new(model.config(), plan.positions);
    let mut stream = Stream::new(model, &*built, plan, &rope).with_every_row();
    let mut scratch = RowScratch::new(model.config());
    let mut logits = Vec::new();
    for part in first.chunks(stream.chunk_group()) {
        let hidden = stream
            .feed(part, &mut |_, _| (), &Stop::new())
            .expect("it reads");
        for hidden in hidden.chunks_exact(model.config().width) {
            let mut row = vec![0.0; model.config().vocab];
            model.logits_row(hidden, &mut scratch, &mut row);
            logits.push(row);
        }
    }
    let streamed = stream.into_streamed();
    let mut decoder = Decoder::new(model, &rope, streamed.evictor, streamed.cache).expect("memory");
    let last = decoder
        .logits_of(&streamed.hidden)
        .expect("logits")
        .to_vec();
    assert_eq!(
        Some(&last),
        logits.last(),
        "the last row is the hidden state"
    );
    for &token in rest {
        logits.push(decoder.step(token, None).expect("logits").to_vec());
    }
    Read {
        logits,
        map: streamed.map,
    }
}

/// One KV head of one layer under a method's rules.
#[derive(Clone, Default)]
struct Line {
    /// Kept positions, ascending.
    kept: Vec<u32>,
    /// Accumulated attention of each position.
    sums: Vec<f64>,
    /// Number of steps accumulated for each position.
    counts: Vec<f64>,
    idx: usize,
}

/// The methods' evictions, as defined in the papers and `methods.md`.
struct Rules<'a> {
    method: &'a str,
    budget: usize,
    sinks: usize,
}

impl Rules<'_> {
    /// Evicts after the newest token was added; `heads [kv_heads]` with `seen [kv_heads][kept]`, the attention averaged
    /// over the GQA group.
    fn take(&self, heads: &mut [Line], seen: &[Vec<f64>]) {
        for (line, seen) in heads.iter_mut().zip(seen) {
            for (i, p) in seen.iter().enumerate() {
                line.sums[i] += p;
                line.counts[i] += 1.0;
            }
        }
        if heads[0].kept.len() <= self.budget {
            return;
        }
        let lowest = |line: &Line, numbers: &[f64], may_go: &dyn Fn(u32) -> bool| -> usize {
            let mut best: Option<usize> = None;
            for i in (0..line.kept.len()).filter(|&i| may_go(line.kept[i])) {
                if best.is_none_or(|b| numbers[i] <= numbers[b]) {
                    best = Some(i);
                }
            }
            best.expect("someone goes")
        };
        let newest = *heads[0].kept.last().expect("a token");
        let sinks = self.sinks as u32;
        let of_all: Vec<f64> = (0..heads[0].kept.len())
            .map(|i| seen.iter().filter_map(|seen| seen.get(i)).sum())
            .collect();
        for line in heads {
            let gone = match self.method {
                "streaming_llm" => self.sinks,
                "h2o" => {
                    let recent = (self.budget / 2) as u32;
                    lowest(line, &line.sums, &|p| p >= sinks && p + recent <= newest)
                }
                "tova" => lowest(line, &of_all, &|p| p >= sinks && p != newest),
                "treekv" => {
                    let tree = self.budget - self.sinks - (self.budget / 2 - self.sinks);
                    let mean = |i: usize| line.sums[i] / line.counts[i];
                    let left = self.sinks + line.idx;
                    line.idx = (line.idx + 1) % tree;
                    left + usize::from(mean(left) > mean(left + 1))
                }
                other => panic!("no rules for {other}"),
            };
            line.kept.remove(gone);
            line.sums.remove(gone);
            line.counts.remove(gone);
        }
    }
}

/// `[layer][kv head]`: kept positions, ascending.
fn kept_positions(layers: &[Vec<Line>]) -> Vec<Vec<Vec<u32>>> {
    let of_layer = |heads: &Vec<Line>| heads.iter().map(|line| line.kept.clone()).collect();
    layers.iter().map(of_layer).collect()
}

/// Tokens between two evictions.
struct Chunk {
    /// Position of the first token.
    first: usize,
    /// `[layer][kv head]`: positions kept before the chunk, ascending.
    before: Vec<Vec<Vec<u32>>>,
}

impl Chunk {
    /// `[layer][kv head]`: positions that the token at `position` attends to besides itself: the kept ones before the
    /// chunk, and the chunk's before the token.
    fn visible(&self, position: usize) -> Vec<Vec<Vec<u32>>> {
        let of_head = |kept: &Vec<u32>| -> Vec<u32> {
            let chunk = self.first as u32..position as u32;
            kept.iter().copied().chain(chunk).collect()
        };
        let of_layer = |heads: &Vec<Vec<u32>>| heads.iter().map(of_head).collect();
        self.before.iter().map(of_layer).collect()
    }

    /// Index of `position` among the visible ones.
    fn index(&self, layer: usize, head: usize, position: u32) -> usize {
        let before = &self.before[layer][head];
        match before.binary_search(&position) {
            Ok(index) => index,
            Err(_) => before.len() + (position as usize - self.first),
        }
    }
}

/// Attention of the last token, averaged over the GQA group: `[layer][kv head][visible tokens, itself last]`.
fn mean_attention(model: &Model, slow: &Slow<'_>) -> Vec<Vec<Vec<f64>>> {
    let config = model.config();
    let group = config.q_heads / config.kv_heads;
    let of_head = |layer: usize, head: usize| -> Vec<f64> {
        let members = head * group..(head + 1) * group;
        let length = slow.seen(layer, head * group).len();
        let mean = |i: usize| {
            let sum: f64 = members.clone().map(|m| slow.seen(layer, m)[i]).sum();
            sum / group as f64
        };
        (0..length).map(mean).collect()
    };
    let of_layer = |layer: usize| {
        let heads = (0..config.kv_heads).map(|head| of_head(layer, head));
        heads.collect()
    };
    (0..config.layers).map(of_layer).collect()
}

/// The naive implementation: `[tokens][vocab]` logits, and the `[layer][kv head]` positions kept before the last
/// `steps` tokens. Those tokens are chunks of one, as in decode.
fn naive_stream(
    model: &Model,
    rules: &Rules<'_>,
    chunk: usize,
    ids: &[u32],
    steps: usize,
) -> (Vec<Vec<f32>>, Vec<Vec<Vec<u32>>>) {
    let config = model.config();
    let rope = RopeTable::new(config, ids.len());
    let mut slow = Slow::new(model, &rope);
    let mut layers = vec![vec![Line::default(); config.kv_heads]; config.layers];
    let (mut logits, mut kept) = (Vec::new(), Vec::new());
    let read = ids.len() - steps;
    let mut first = 0;
    while first < ids.len() {
        if first == read {
            kept = kept_positions(&layers);
        }
        let end = if first < read {
            (first + chunk).min(read)
        } else {
            first + 1
        };
        let current = Chunk {
            first,
            before: kept_positions(&layers),
        };
        let mut seen = Vec::new();
        for (position, &token) in ids.iter().enumerate().take(end).skip(first) {
            let visible = current.visible(position);
            logits.push(slow.step(token, Standing::Ranks, |l, h| &visible[l][h]));
            seen.push(mean_attention(model, &slow));
        }
        for (position, seen) in (first..end).zip(&seen) {
            for (layer, heads) in layers.iter_mut().enumerate() {
                if config.kinds[layer].window().is_some() {
                    continue;
                }
                let mut live = Vec::new();
                for (head, line) in heads.iter_mut().enumerate() {
                    line.kept.push(position as u32);
                    line.sums.push(0.0);
                    line.counts.push(0.0);
                    let seen = &seen[layer][head];
                    let kept = line.kept.iter();
                    let of_kept = kept.map(|&p| seen[current.index(layer, head, p)]);
                    live.push(of_kept.collect::<Vec<f64>>());
                }
                rules.take(heads, &live);
            }
        }
        first = end;
    }
    (logits, kept)
}

/// Models with different GQA groups, RoPE scalings, soft caps, sliding windows, layers without RoPE, attention sinks,
/// recurrent layers, scaled queries, norms after RoPE and declared factors. Models whose RoPE depends on the text length are excluded: in
/// streaming mode that length is the number of ranks.
fn models() -> Vec<(String, Model)> {
    let small = ["group2-llama3-tied", "group4-linear-untied"];
    let golden = small.map(|name| (name.to_owned(), open(&golden::model(name))));
    let others = [
        "gemma2",
        "gemma3",
        "smollm3",
        "gpt-oss",
        "qwen35",
        "mistral3",
        "granite",
        "olmo3",
        "lfm2",
        "granitehybrid",
        "hunyuan-dense",
        "deepseek_v2",
        "glm4_moe_lite",
    ];
    let others = others.map(|name| {
        let unpacked = Unpacked::architecture(name);
        (name.to_owned(), open(&unpacked.path()))
    });
    golden.into_iter().chain(others).collect()
}

#[test]
fn streamed_evictions_equal_the_naive_ones() {
    const BUDGET: usize = 16;
    const STEPS: usize = 9;
    for (name, model) in models() {
        let ids = text(&model, 84);
        for method in ["streaming_llm", "h2o", "tova", "treekv"] {
            for chunk in [1, 7, 32] {
                let rules = Rules {
                    method,
                    budget: BUDGET,
                    sinks: 4,
                };
                let what = format!("{name}, {method}, chunks of {chunk}");
                let (expected, kept) = naive_stream(&model, &rules, chunk, &ids, STEPS);
                let found = stream(&model, spec(method, "", BUDGET), chunk, &ids, STEPS, false);
                let cut = found.map.layers.iter().zip(&found.map.windows).zip(kept);
                for ((found, window), kept) in cut {
                    if window.is_none() {
                        assert_eq!(found, &LayerRetention::Kept(kept), "{what}");
                    }
                }
                assert_eq!(found.logits.len(), expected.len());
                for (row, (found, expected)) in found.logits.iter().zip(&expected).enumerate() {
                    assert_same(found, expected, BOUND, &format!("{what}, row {row}"));
                }
            }
        }
    }
}

/// EMS token by token is its decode loop, which `ems.rs` checks against the oracle; merging continues across chunks. A
/// prompt of w tokens has an empty local window, as streaming mode has after the same number of tokens.
#[test]
fn ems_streams_like_its_decode_loop() {
    const WINDOW: usize = 4;
    let method = spec("ems", "positions=reassigned,w=4,tau=0.2,gamma=2", 14);
    for (name, model) in models() {
        let ids = text(&model, 90);
        let budget = method.budget;
        let built = method.method();
        let rope = RopeTable::new(model.config(), ids.len());
        let steps = ids.len() - WINDOW;
        let outcome = Prefill::new(&model, &ids[..WINDOW], &*built, budget, steps, &rope)
            .run(&mut |_| (), &Stop::new())
            .expect("a window");
        let mut decoder =
            Decoder::new(&model, &rope, outcome.evictor, outcome.cache).expect("memory");
        let mut expected = vec![decoder.logits_of(&outcome.hidden).expect("logits").to_vec()];
        for &token in &ids[WINDOW..] {
            expected.push(decoder.step(token, None).expect("logits").to_vec());
        }
        let found = stream(&model, method, 1, &ids, 6, false);
        let rows = found.logits[WINDOW - 1..].iter().zip(&expected);
        for (row, (found, expected)) in rows.enumerate() {
            assert_same(found, expected, BOUND, &format!("{name}, row {row}"));
        }
        let merged: usize = found.map.merged.iter().flatten().map(Vec::len).sum();
        assert!(merged > 0, "{name}: nothing was merged");
        let chunked = stream(&model, method, 16, &ids, 6, false);
        assert!(
            chunked
                .map
                .compressed_rows()
                .iter()
                .all(|&rows| rows <= budget)
        );
        assert!(
            chunked
                .logits
                .iter()
                .flatten()
                .all(|logit| logit.is_finite())
        );
    }
}

/// With everything kept, streaming mode equals normal prefill under every method.
#[test]
fn streaming_without_eviction_equals_prefill() {
    for (name, model) in models() {
        let ids = text(&model, 100);
        let (prompt, steps) = ids.split_at(90);
        let rope = RopeTable::new(model.config(), ids.len());
        let full = build("full", &[]).expect("the full cache");
        let read = Prefill::new(&model, prompt, &*full, 90, steps.len(), &rope);
        let read = Prefill {
            every_row: true,
            ..read
        };
        let outcome = read.run(&mut |_| (), &Stop::new()).expect("it reads");
        let mut decoder =
            Decoder::new(&model, &rope, outcome.evictor, outcome.cache).expect("memory");
        let width = model.config().width;
        let mut expected: Vec<Vec<f32>> = outcome
            .hidden
            .chunks_exact(width)
            .map(|hidden| decoder.logits_of(hidden).expect("logits").to_vec())
            .collect();
        expected.extend(
            steps
                .iter()
                .map(|&token| decoder.step(token, None).expect("logits").to_vec()),
        );
        for method in STREAMING {
            for chunk in [1, 16, 512] {
                let what = format!("{name}, {method}, chunks of {chunk}");
                let found = stream(
                    &model,
                    spec(method, "", 100),
                    chunk,
                    &ids,
                    steps.len(),
                    false,
                );
                let whole = |layer: &LayerRetention| *layer == LayerRetention::Everything;
                assert!(found.map.compressed_layers().all(whole), "{what}");
                for (row, (found, expected)) in found.logits.iter().zip(&expected).enumerate() {
                    assert_same(found, expected, 1e-4, &format!("{what}, row {row}"));
                }
            }
        }
    }
}

/// The number of chunks that pass a layer together does not change the result: bit for bit.
#[test]
fn streaming_does_not_depend_on_the_stretch() {
    let model = open(&golden::model("group2-llama3-tied"));
    let ids = text(&model, 150);
    for method in STREAMING {
        let long = stream(&model, spec(method, "", 24), 10, &ids, 3, false);
        let short = stream(&model, spec(method, "", 24), 10, &ids, 3, true);
        assert_eq!(long.logits, short.logits, "{method}");
        assert_eq!(long.map, short.map, "{method}");
    }
}

#[test]
fn streaming_plans_name_the_able_methods_and_budgets() {
    let model = open(&golden::model("group2-llama3-tied"));
    for info in methods() {
        let built = build(info.name, &[]).expect("a method");
        let shape = PromptShape::of(5000);
        let cache = CacheType::F32;
        let plan = StreamPlan::new(&model, &*built, &shape, Some(40), 8, None, cache);
        match (STREAMING.contains(&info.name), plan) {
            (true, Ok(plan)) => assert_eq!(plan.rows, 40),
            (false, Err(refusal)) => {
                let said = refusal.to_string();
                assert!(said.starts_with(info.title), "{said}");
                assert!(STREAMING.iter().all(|able| said.contains(able)), "{said}");
            }
            (_, other) => panic!("{}: {:?}", info.name, other.err().map(|e| e.to_string())),
        }
    }
    let context = model.config().context;
    let plan = |method: &dyn Method, rows| {
        StreamPlan::new(
            &model,
            method,
            &PromptShape::of(20 * context),
            rows,
            8,
            None,
            CacheType::F32,
        )
    };
    // The number named in a refusal is accepted, also for a method whose tokens share rows.
    for method in STREAMING {
        let built = build(method, &[]).expect("a method");
        let refusal = plan(&*built, Some(context)).expect_err("no room for a chunk");
        let EngineError::StreamBudget { most, .. } = refusal else {
            panic!("{method}: {refusal}");
        };
        assert!((1..context).contains(&most), "{method}: {most}");
        let fits = plan(&*built, Some(most)).expect("a plan");
        assert_eq!(fits.rows, most, "{method}");
        assert!(fits.positions <= context, "{method}: {}", fits.positions);
        // Without a budget a plan always exists.
        let plan = plan(&*built, None).expect("a plan");
        assert!(plan.positions <= context, "{method}: {}", plan.positions);
    }
}

#[test]
fn a_stop_ends_streaming_between_chunks() {
    let model = open(&golden::model("group2-llama3-tied"));
    let ids = text(&model, 400);
    for method in STREAMING {
        let built = build(method, &[]).expect("a method");
        let shape = PromptShape::of(ids.len());
        let cache = CacheType::F32;
        let plan = StreamPlan::new(&model, &*built, &shape, Some(40), 8, Some(50), cache);
        let plan = plan.expect("a plan");
        let rope = RopeTable::new(model.config(), plan.positions);
        let mut stream = Stream::new(&model, &*built, plan, &rope);
        let stop = Stop::new();
        let mut calls = 0;
        let mut passed = |_: usize, _: &Stream<'_>| {
            calls += 1;
            stop.request();
        };
        let error = stream.feed(&ids[..200], &mut passed, &stop).err();
        assert!(matches!(error, Some(EngineError::Stopped)), "{method}");
        assert_eq!(calls, 1, "{method}: nothing goes on after the first chunk");
    }
}

/// A question on a document several times as long as the context length: an answer, a retention map, and a note about
/// streaming mode.
#[test]
fn a_document_beyond_the_context_length_is_streamed() {
    let engine =
        Engine::open(&golden::repository().join("assets/mini.gguf")).expect("the built-in model");
    let context = engine.model().config().context;
    let sentence = "The boats came in at noon and the bell rang twice over the old harbour. ";
    let mut words = sentence.repeat(context / 8);
    words += "The locker code of Ada Quimby is 4711. ";
    words += &sentence.repeat(4);
    let document = Document::from_bytes("long.txt", words.into_bytes()).expect("text");
    let ask = |method: &MethodSpec, streaming: Streaming| {
        let ask = Ask {
            budget: Some("256".parse().expect("rows")),
            max_tokens: 24,
            limits: Limits::from(streaming),
            ..Ask::new(&document, "What is the locker code of Ada Quimby?", method)
        };
        engine.ask(&ask, &mut |_| (), &Stop::new())
    };
    let answer = ask(&MethodSpec::plain("streaming_llm"), Streaming::Auto).expect("an answer");
    assert!(answer.report.streamed && answer.prompt.len() > context);
    assert!(answer.text.contains("4711"), "{}", answer.text);
    assert!(
        answer.sources[0].text.contains("4711"),
        "{:?}",
        answer.sources
    );
    assert!((answer.notes.iter()).any(|note| matches!(note, kept_engine::Note::Streaming { .. })));
    assert_eq!(answer.map.tokens, answer.prompt.len());
    assert!(answer.rows_per_layer.iter().all(|&rows| rows == 256));
    let refusal = ask(&MethodSpec::plain("streaming_llm"), Streaming::Off)
        .err()
        .expect("too long");
    assert!(matches!(refusal, EngineError::TooLong { .. }), "{refusal}");
    let refusal = ask(&MethodSpec::plain("snapkv"), Streaming::Auto)
        .err()
        .expect("not snapkv");
    assert!(refusal.to_string().contains("treekv"), "{refusal}");
}

/// Prefill chooses the first token of an answer in streaming mode, too. Where nothing is evicted, it attends to the same
/// tokens as in an ordinary prefill, which does not read rows as f16.
#[test]
fn the_first_token_has_its_evidence_in_streaming_mode() {
    let mini = golden::repository().join("assets/mini.gguf");
    let engine = Engine::open(&mini).expect("the built-in model");
    let text = "The boats came in at noon. The locker code of Ada Quimby is 4711. ".repeat(3);
    let document = Document::from_bytes("short.txt", text.into_bytes()).expect("text");
    for method in ["streaming_llm", "treekv", "ems"] {
        let method = MethodSpec::plain(method);
        let attended = |streaming: Streaming| {
            let ask = Ask {
                budget: Some("512".parse().expect("rows")),
                max_tokens: 4,
                limits: Limits::from(streaming),
                ..Ask::new(&document, "What is the locker code of Ada Quimby?", &method)
            };
            let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
            let mut tokens = answer.expect("an answer").attended[0].tokens.clone();
            tokens.sort_by_key(|&(token, _)| token);
            tokens
        };
        let (streamed, expected) = (attended(Streaming::On), attended(Streaming::Off));
        assert!(!expected.is_empty(), "{}", method.name);
        assert_eq!(
            streamed.len(),
            expected.len(),
            "{}: {streamed:?} {expected:?}",
            method.name
        );
        for ((token, weight), (other, expected)) in streamed.iter().zip(&expected) {
            assert_eq!(token, other, "{}", method.name);
            assert!(
                (weight - expected).abs() < 0.01,
                "{}: {weight} {expected}",
                method.name
            );
        }
    }
}
