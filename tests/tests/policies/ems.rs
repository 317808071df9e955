//! EMS against the oracle, with the engine's own layer and kernel: tokens kept, merged and dropped by the selection and
//! by every decode step, the merged rows, and attention over them. Then EMS's invariants in a model.

use kept_engine::backend::Gather;
use kept_engine::documents::Document;
use kept_engine::kernels::{
    ClassScratch, HeadShape, Pairing, RankRotation, RowStore, Stop, rotate,
};
use kept_engine::policies::{ClassTable, Evict, Pos, Positions, Retention, build};
use kept_engine::{Ask, CompactLayer, Engine, MethodSpec};
use kept_tests::cases::Case;
use kept_tests::compare::assert_same;
use kept_tests::engine::{Told, open, read_and_step};
use kept_tests::golden::{self, repository};
use kept_tests::selecting::{Cut, Measured, cut};
use kept_tests::terminal::kept;
use serde_json::Value;

/// Angles of every rank: `theta` 10 000, pairs (i, i + d/2).
struct Angles(Vec<f32>, Vec<f32>);

impl Angles {
    fn new(ranks: usize, dim: usize) -> Self {
        let angle = |at: usize| {
            let (rank, i) = (at / (dim / 2), at % (dim / 2));
            rank as f64 * 10_000f64.powf(-2.0 * i as f64 / dim as f64)
        };
        let angles: Vec<f64> = (0..ranks * dim / 2).map(angle).collect();
        let of = |f: fn(f64) -> f64| angles.iter().map(|&a| f(a) as f32).collect();
        Self(of(f64::cos), of(f64::sin))
    }
}

/// One layer after selection, and its evictor for decode.
struct Layer {
    layer: CompactLayer,
    evictor: Box<dyn Evict>,
    shape: HeadShape,
    scratch: ClassScratch,
    angles: Option<Angles>,
}

impl Layer {
    fn new(case: &Case, measured: Measured, steps: usize) -> Self {
        let Cut {
            plan,
            state,
            selection,
        } = cut(case, measured);
        let (n, dim) = (case.n, case.head_dim);
        let full = |data: &[f32]| {
            let mut store = RowStore::uniform(case.kv_heads, n, dim);
            for head in 0..case.kv_heads {
                let part = &data[head * n * dim..][..n * dim];
                store.head_mut(head).copy_from_slice(part);
            }
            store
        };
        let (keys, values) = (full(&case.k), full(&case.v));
        let capacity = n.min(case.budget).max(case.budget) + 1;
        let (positions, retention) = (plan.positions, selection.retention);
        let capacities = vec![capacity; case.kv_heads];
        let table = plan.table.expect("EMS has a table");
        let table = ClassTable {
            entries: (n + steps).min(table.entries + 1),
            ..table
        };
        let layer = Gather::new(&keys, &values, n, &retention, &capacities, positions)
            .layer(&mut Vec::new())
            .with_table(&keys, &retention, table);
        let shape = HeadShape::new(case.q_heads, case.kv_heads, dim);
        Self {
            layer,
            evictor: state.evictor().expect("EMS evicts during decode"),
            shape,
            scratch: ClassScratch::new(shape, capacity, table.entries),
            angles: (positions == Positions::Reassigned).then(|| Angles::new(n + steps, dim)),
        }
    }

    /// Attention of `query [q_heads, head_dim]` over the cached rows, rotated to the last rank where positions are
    /// re-assigned.
    fn attend(&mut self, query: &[f32]) -> Vec<f32> {
        let HeadShape { head_dim: dim, .. } = self.shape;
        let mut query = query.to_vec();
        let rotation = self.angles.as_ref().map(|Angles(cos, sin)| {
            for (head, q) in query.chunks_exact_mut(self.shape.group() * dim).enumerate() {
                let rank = self.layer.entries(head).len() - 1;
                let at = rank * dim / 2..(rank + 1) * dim / 2;
                for q in q.chunks_exact_mut(dim) {
                    rotate(
                        q,
                        1,
                        dim,
                        &cos[at.clone()],
                        &sin[at.clone()],
                        Pairing::Halves,
                    );
                }
            }
            RankRotation {
                cos,
                sin,
                rope_dim: dim,
                pairing: Pairing::Halves,
            }
        });
        let mut out = vec![0.0; query.len()];
        let scale = 1.0 / (dim as f32).sqrt();
        self.layer
            .attend_by_table(&query, scale.into(), rotation, &mut self.scratch, &mut out);
        out
    }

    /// One decode step.
    fn step(&mut self, position: usize, query: &[f32], key: &[f32], value: &[f32]) -> Vec<f32> {
        self.layer.append(key, value, Pos(position as u32));
        let out = self.attend(query);
        let (probabilities, stride) = (self.scratch.probabilities(), self.scratch.stride());
        self.layer
            .step_classes(0, &mut *self.evictor, probabilities, stride);
        out
    }

    /// `[kv_heads]` of `[position, centre]` of each entry.
    fn tables(&self) -> Vec<Vec<[u32; 2]>> {
        let of = |head| {
            self.layer
                .entries(head)
                .into_iter()
                .map(|(p, c)| [p.0, c.0])
        };
        (0..self.shape.kv_heads)
            .map(|head| of(head).collect())
            .collect()
    }

    /// Direction and value of each class of two or more entries, in order of its centre: `[classes, 2 head_dim]`.
    fn shared_rows(&self, head: usize, norms: &dyn Fn(u32) -> f32) -> Vec<f32> {
        let entries = self.layer.entries(head);
        let rows = self.layer.expanded(head);
        let mut centres: Vec<Pos> = entries.iter().map(|(_, centre)| *centre).collect();
        centres.sort_unstable();
        centres.dedup();
        let mut out = Vec::new();
        for centre in centres {
            let members = || (0..entries.len()).filter(|&e| entries[e].1 == centre);
            if members().count() > 1 {
                let first = members().next().expect("a member");
                let (key, value) = &rows[first];
                let norm = norms(entries[first].0.0);
                out.extend(key.iter().map(|x| x / norm));
                out.extend_from_slice(value);
            }
        }
        out
    }
}

fn length(row: &[f32]) -> f32 {
    row.iter()
        .map(|x| f64::from(*x).powi(2))
        .sum::<f64>()
        .sqrt() as f32
}

fn tables_of(value: &Value) -> Vec<Vec<[u32; 2]>> {
    serde_json::from_value(value.clone()).expect("tables of entries")
}

/// Within 1e-5 of numbers that are stored in millionths.
fn assert_millionths(found: &[f32], expected: &Value, what: &str) {
    let expected: Vec<f64> = serde_json::from_value(expected.clone()).expect("numbers");
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = (f64::from(*found) - expected / 1e6).abs();
        assert!(
            apart <= 1e-5,
            "{what}: number {i} is {found}, not {}",
            expected / 1e6
        );
    }
}

#[test]
fn drawn_cases_are_kept_merged_and_dropped_as_the_oracle_does() {
    let cases = golden::packed("ems.json.gz");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 500);
    let mut steps_run = 0;
    for (index, golden) in cases.iter().enumerate() {
        let case = Case::from_json(golden);
        let measured = [Measured::Slowly, Measured::ByKernel][index % 2];
        let steps = golden["answer"].as_u64().expect("steps") as usize;
        let (n, dim) = (case.n, case.head_dim);
        let mut layer = Layer::new(&case, measured, steps);
        let what = case.describe();
        assert_eq!(layer.tables(), tables_of(&golden["prompt"]), "{what}");
        let (q, kv) = (case.q_heads * dim, case.kv_heads * dim);
        let drawn = case.drawn_after(steps * (q + 2 * kv));
        let norms = |head: usize| {
            let (case, drawn) = (&case, &drawn);
            move |position: u32| match position as usize {
                p if p < n => length(&case.k[(head * n + p) * dim..][..dim]),
                p => length(&drawn[(p - n) * (q + 2 * kv) + q + head * dim..][..dim]),
            }
        };
        for head in 0..case.kv_heads {
            let rows = layer.shared_rows(head, &norms(head));
            let expected = &golden["prompt_rows"][head];
            assert_millionths(
                &rows,
                expected,
                &format!("prompt rows, head {head}, {what}"),
            );
        }
        for (t, step) in drawn.chunks_exact(q + 2 * kv).enumerate() {
            let (query, rest) = step.split_at(q);
            let (key, value) = rest.split_at(kv);
            let out = layer.step(n + t, query, key, value);
            let (at, what) = ((t + 1).to_string(), format!("step {t}, {what}"));
            assert_eq!(layer.tables(), tables_of(&golden["tables"][t]), "{what}");
            if let Some(expected) = golden["out"].get(&at) {
                assert_millionths(&out, expected, &what);
            }
            steps_run += 1;
        }
        for head in 0..case.kv_heads {
            let rows = layer.shared_rows(head, &norms(head));
            let expected = &golden["rows"][head];
            assert_millionths(&rows, expected, &format!("rows, head {head}, {what}"));
        }
    }
    assert!(steps_run > 3000, "{steps_run} steps");
}

/// The numbers of a list.
fn numbers(list: &Value) -> Vec<f32> {
    let list = list.as_array().expect("a list").iter();
    list.map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// The numbers of a list of rows.
fn flat(tensor: &Value) -> Vec<f32> {
    let rows = tensor.as_array().expect("rows").iter();
    rows.flat_map(numbers).collect()
}

/// KV head 0 of the toy in `inputs`.
fn toy_head(inputs: &Value) -> Case {
    let set = [
        ("w", "4"),
        ("kernel", "3"),
        ("gamma", "2"),
        ("tau", "0.1"),
        ("protect", "0"),
        ("sinks", "0"),
    ];
    Case {
        q_heads: 2,
        kv_heads: 1,
        q: [flat(&inputs["q"][0]), flat(&inputs["q"][1])].concat(),
        k: flat(&inputs["k"][0]),
        v: flat(&inputs["v"][0]),
        ..golden::toy(inputs, "ems", &set, 8)
    }
}

/// The specification's example: KV head 0 of the toy, then six decode steps.
#[test]
fn the_worked_example_of_the_specification() {
    let f = golden::json("fixtures.json");
    let case = toy_head(&f["inputs"]);
    let example = &f["ems_head0_B8_w4_g2_tau0.1_k3"];
    let mut layer = Layer::new(&case, Measured::ByKernel, 6);
    // The oracle numbers classes in order of creation: centres, local tokens, then the decoded tokens.
    let mut names: Vec<u32> = layer.layer.kept(0).iter().map(|p| p.0).collect();
    names.extend(24..30);
    let named = |tables: Vec<Vec<[u32; 2]>>| -> Vec<[u32; 2]> {
        let name = |centre| names.iter().position(|n| *n == centre).expect("a class") as u32;
        tables[0]
            .iter()
            .map(|&[t, centre]| [t, name(centre)])
            .collect()
    };
    let pairs =
        |value: &Value| -> Vec<[u32; 2]> { serde_json::from_value(value.clone()).expect("pairs") };
    let entries = pairs(&example["entries_token_class"]);
    assert_eq!(named(layer.tables()), entries);
    let (lengths, directions) = (numbers(&example["knorm"]), flat(&example["khat"]));
    let values = flat(&example["v"]);
    for (((key, value), [_, class]), length) in
        layer.layer.expanded(0).iter().zip(&entries).zip(lengths)
    {
        let at = *class as usize * 8..(*class as usize + 1) * 8;
        for (found, direction) in key.iter().zip(&directions[at.clone()]) {
            assert!((found - length * direction).abs() < 1e-5);
        }
        let apart = value.iter().zip(&values[at]).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-5);
    }
    let close = |found: &[f32], expected: &[f32], what: &str| {
        assert_eq!(found.len(), expected.len(), "{what}");
        let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-5, "{what}: {found:?}");
    };
    let queries = case.q.chunks_exact(24 * 8);
    let last: Vec<f32> = queries.flat_map(|q| q[23 * 8..].to_vec()).collect();
    close(&layer.attend(&last), &flat(&example["out"]), "out");
    let p = flat(&example["p"]);
    for (head, p) in p.chunks_exact(entries.len()).enumerate() {
        let seen = &layer.scratch.probabilities()[head * layer.scratch.stride()..];
        close(&seen[..entries.len()], p, "p");
    }
    for (t, step) in f["ems_decode_head0"]
        .as_array()
        .expect("steps")
        .iter()
        .enumerate()
    {
        let (k, v) = (numbers(&step["k"]), numbers(&step["v"]));
        let out = layer.step(24 + t, &flat(&step["q"]), &k, &v);
        close(&out, &flat(&step["out"]), &format!("step {t}"));
        let expected = pairs(&step["entries_token_class"]);
        assert_eq!(named(layer.tables()), expected, "step {t}");
    }
}

fn parameters(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn without_merging_it_evicts_only_and_classes_are_rows() {
    for (index, golden) in golden::packed("ems.json.gz")
        .as_array()
        .expect("cases")
        .iter()
        .enumerate()
        .take(60)
    {
        let mut case = Case::from_json(golden);
        let mut merged = Vec::new();
        for (name, value) in [("tau", "-1"), ("tau", "1.5"), ("gamma", "1")] {
            case.set.retain(|(n, _)| n != "tau" && n != "gamma");
            case.set.push((name.to_owned(), value.to_owned()));
            merged.push(cut(&case, Measured::Slowly).selection.retention);
        }
        if case.n <= case.budget {
            assert!(merged.iter().all(|m| *m == Retention::Everything));
            continue;
        }
        let [
            Retention::Merge(all),
            Retention::Merge(none),
            Retention::Merge(first),
        ] = &merged[..]
        else {
            panic!("case {index} merges");
        };
        for ((all, none), first) in all.iter().zip(none).zip(first) {
            assert_eq!(none.centres, all.centres, "the same rows, case {index}");
            assert_eq!(none, first, "case {index}");
            assert!(none.merged().is_empty() && none.centres.len() == case.budget);
        }
    }
}

/// While everything fits, EMS equals the full cache bit for bit; its first token always does.
#[test]
fn a_budget_that_holds_everything_changes_nothing() {
    let model = open(&golden::model("group4-linear-untied"));
    let vocab = model.config().vocab as u32;
    let ids: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % vocab).collect();
    let (prompt, steps) = ids.split_at(50);
    let run = |method: &str, set: &str, budget: usize| {
        let method = build(method, &parameters(set)).expect(method);
        read_and_step(&model, &*method, budget, 17, prompt, steps)
    };
    let full = run("full", "", 50);
    assert_eq!(run("ems", "w=8", 70).logits, full.logits);
    let reassigned = run("ems", "w=8,positions=reassigned", 70);
    for (step, (row, reference)) in reassigned.logits.iter().zip(&full.logits).enumerate() {
        assert_same(
            row,
            reference,
            1e-4,
            &format!("rank is position, step {step}"),
        );
    }
    for set in [
        "w=8",
        "w=8,positions=reassigned",
        "w=8,tau=-1",
        "w=1,gamma=1",
    ] {
        let cut = run("ems", set, 20);
        assert_eq!(cut.logits[0], full.logits[0], "{set}");
        assert_ne!(
            cut.logits[1], full.logits[1],
            "{set}: something was dropped"
        );
        assert!(cut.kept.iter().flatten().all(|rows| rows.len() == 20));
        // Without merging, the next token attends to exactly the kept rows.
        let alone = run("ems", &format!("{set},tau=2"), 20);
        if !set.contains("reassigned") {
            let told = Told(alone.kept.clone());
            let told = read_and_step(&model, &told, 20, 17, prompt, &steps[..1]);
            assert_same(&alone.logits[1], &told.logits[1], 1e-4, set);
        }
    }
}

#[test]
fn tables_are_counted_and_an_answer_allocates_nothing() {
    let engine = Engine::open(&repository().join("assets/mini.gguf")).expect("the built-in model");
    let document = Document::open(&repository().join("assets/sample.txt")).expect("the sample");
    let method = MethodSpec {
        name: "ems".to_owned(),
        parameters: parameters("w=8"),
    };
    let budget = Some("96".parse().expect("a budget"));
    let question = Ask {
        budget,
        max_tokens: 12,
        ..Ask::new(
            &document,
            "What is the locker code of Ann Quorvin?",
            &method,
        )
    };
    let answer = engine
        .ask(&question, &mut |_| (), &Stop::new())
        .expect("an answer");
    let expected = engine
        .expected_ledger(&answer.prompt.shape(), &method, budget, 12)
        .expect("a ledger");
    assert_eq!(answer.ledger, expected);
    let config = engine.model().config();
    let heads = config.layers * config.kv_heads;
    // For each of 4 x 96 + 1 entries, five numbers of the paper, a position and two of scratch; for each of 97 rows, a
    // flag and 36 bytes of scratch for ranking the classes.
    assert_eq!(
        answer.ledger.tables,
        (heads * (385 * 8 * 4 + 97 * 37)) as u64
    );
    let merged = answer.map.merged.iter().flatten().flatten().count();
    assert!(merged > 0, "something is merged");
    let held: u32 = answer.map.counts().iter().sum();
    assert_eq!(held as usize, heads * 96 + merged, "merged tokens are held");
    for set in ["w=8", "w=8,positions=reassigned"] {
        let run = kept([
            "bench",
            "--json",
            "--method",
            "ems",
            "--set",
            set,
            "--budget",
            "64",
            "--prompt-tokens",
            "300",
            "--decode-tokens",
            "40",
        ]);
        assert_eq!(run.json()["allocations_per_token"], 0.0, "{set}");
    }
}
