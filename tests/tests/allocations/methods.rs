//! A method's declared memory in addition to rows equals its actual memory: measured by the allocator when its state is
//! dropped, after selection or after an answer that allocated nothing. A single test in its own program, so that no other
//! thread allocates meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kept_engine::kernels::{Stop, allocated_bytes, allocations, settled_allocations};
use kept_engine::models::RopeTable;
use kept_engine::policies::{
    Budget, Evict, Method, Observation, Parameters, PolicyError, PromptShape, RowPlan, RowRequest,
    Score, Select, Selection, build, methods,
};
use kept_engine::{Decoder, Engine, MethodSpec, Prefill, PrefillOutcome, Prompt};
use kept_tests::golden;

const PROMPT: usize = 260;
const MAX_NEW_TOKENS: usize = 40;
/// Tolerance for vector headers and the like, per KV head of a layer and in total.
const HEADERS: (usize, usize) = (256, 1024);

/// Every method at its defaults, and variants that hold more or less.
fn variants() -> Vec<(&'static str, &'static str)> {
    let defaults = methods().iter().map(|method| (method.name, ""));
    let others = [
        ("scissorhands", "history=70,drop=3"),
        ("chunkkv", "reuse=1"),
        ("chunkkv", "heads=per_head"),
        ("treekv", "positions=original,block=4"),
        ("ems", "positions=reassigned,gamma=1.5"),
        ("cam", "base=h2o"),
        ("cam", "base=treekv,m=3"),
        ("cam", "base=chunkkv"),
        ("adakv", "base=h2o"),
        ("adakv", "base=tova"),
        ("snapkv", "decode_cap=230,decode_every=7,decode_w=3"),
        (
            "adakv",
            "base=keydiff,decode_cap=230,decode_every=7,decode_w=3",
        ),
    ];
    defaults.chain(others).collect()
}

/// A method whose state of a prompt is measured when it is dropped. The state of an answer is handed on.
struct Weighed {
    method: Arc<dyn Method>,
    /// Bytes that were freed.
    freed: Arc<AtomicUsize>,
}

impl Method for Weighed {
    fn name(&self) -> &'static str {
        self.method.name()
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        self.method.plan(request)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(WeighedState {
            state: Some(self.method.start(plan)),
            freed: self.freed.clone(),
        })
    }

    fn scorer(&self) -> Option<&dyn Score> {
        self.method.scorer()
    }
}

struct WeighedState {
    state: Option<Box<dyn Select>>,
    freed: Arc<AtomicUsize>,
}

impl WeighedState {
    fn state(&mut self) -> &mut dyn Select {
        &mut **self.state.as_mut().expect("not dropped yet")
    }
}

impl Select for WeighedState {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        self.state().select(plan, observation)
    }

    fn score_pass(&mut self, plan: &RowPlan, observation: &Observation<'_>) {
        self.state().score_pass(plan, observation);
    }

    fn allocate_budget(&mut self, plan: &RowPlan) -> RowPlan {
        self.state().allocate_budget(plan)
    }

    fn evictor(mut self: Box<Self>) -> Option<Box<dyn Evict>> {
        self.state.take().and_then(|state| state.evictor())
    }
}

impl Drop for WeighedState {
    fn drop(&mut self) {
        let before = allocated_bytes();
        self.state = None;
        let freed = before - allocated_bytes();
        self.freed.fetch_add(freed, Ordering::Relaxed);
    }
}

/// A model with a prompt and an answer.
struct Session {
    engine: Engine,
    ids: Vec<u32>,
    rope: RopeTable,
    /// As in an estimate: the tokens that the model's template has after a question.
    tail: usize,
}

impl Session {
    fn new() -> Self {
        let engine = Engine::open(&golden::model("group2-llama3-tied")).expect("a golden model");
        let model = engine.model();
        let vocab = model.config().vocab as u32 - 3;
        let ids: Vec<u32> = (0..(PROMPT + MAX_NEW_TOKENS) as u32)
            .map(|i| 3 + (i * i + i * 37 + 11) % vocab)
            .collect();
        Self {
            rope: RopeTable::new(model.config(), ids.len()),
            ids,
            tail: Prompt::new(model, "A text.", "What?").map_or(0, |prompt| prompt.tail()),
            engine,
        }
    }

    /// Prefill under a policy; `None` if it refuses a decode cap below the budget.
    fn read(&self, method: &dyn Method, budget: usize, set: &str) -> Option<PrefillOutcome> {
        let (model, prompt) = (self.engine.model(), &self.ids[..PROMPT]);
        let prefill = Prefill::new(model, prompt, method, budget, MAX_NEW_TOKENS, &self.rope);
        match prefill.with_tail(self.tail).run(&mut |_| (), &Stop::new()) {
            Ok(outcome) => Some(outcome),
            Err(error) if set.contains("decode_cap") && budget > 220 => {
                assert!(error.to_string().contains("decode_cap"), "{error}");
                None
            }
            Err(error) => panic!("{set} at {budget}: {error}"),
        }
    }

    /// The estimated bytes of the method's tables.
    fn expected_tables(&self, method: &MethodSpec, budget: usize) -> u64 {
        let prompt = PromptShape {
            tail: self.tail,
            ..PromptShape::of(PROMPT)
        };
        let budget = Some(Budget::Rows(budget));
        let ledger = self
            .engine
            .expected_ledger(&prompt, method, budget, MAX_NEW_TOKENS);
        ledger.expect("an estimate").tables
    }

    /// Decodes the answer; all but its first tokens allocate nothing. Returns the method's state.
    fn answer(&self, outcome: PrefillOutcome, what: &str) -> Option<Box<dyn Evict>> {
        let mut decoder = Decoder::new(
            self.engine.model(),
            &self.rope,
            outcome.evictor,
            outcome.cache,
        )
        .expect("memory");
        // The first tokens fill thread-local scratch buffers.
        let (first, others) = self.ids[PROMPT..].split_at(2);
        for &token in first {
            decoder.step(token, None).expect("logits");
        }
        let allocated = settled_allocations();
        for &token in others {
            decoder.step(token, None).expect("logits");
        }
        assert_eq!(allocations() - allocated, 0, "{what}: allocates to answer");
        decoder.into_evictor()
    }
}

pub fn methods_hold_the_bytes_they_declare() {
    let session = Session::new();
    let config = session.engine.model().config();
    let heads = config.layers * config.kv_heads;
    let mut holding = 0;
    for (name, set) in variants() {
        // A prompt that is evicted, and prompts that fit with and without the answer.
        for budget in [220, PROMPT + 5, 4 * PROMPT] {
            let what = format!("{name} {set} at {budget}");
            let parameters = Parameters::parse_assignments(set).expect("parameters");
            let freed = Arc::new(AtomicUsize::new(0));
            let built = Weighed {
                method: build(name, &parameters).expect("a method"),
                freed: freed.clone(),
            };
            let Some(outcome) = session.read(&built, budget, set) else {
                continue;
            };
            let method = MethodSpec {
                name: name.to_owned(),
                parameters,
            };
            let expected = session.expected_tables(&method, budget);
            assert_eq!(outcome.ledger.tables, expected, "{what}: before reading");
            let tables = outcome.cache.table_bytes() as usize;
            assert_eq!(
                outcome.ledger.tables,
                outcome.plan.bytes + tables as u64,
                "{what}"
            );
            // Scores per entry of a look-up table are counted with the table.
            let entries = |table: kept_engine::policies::ClassTable| {
                (PROMPT + MAX_NEW_TOKENS).min(table.entries + 1) * table.elements * size_of::<f32>()
            };
            let counted = outcome.plan.table.map_or(0, entries) * heads;
            let said = outcome.plan.bytes as usize + counted;
            let evicts = outcome.evictor.is_some();
            let evictor = session.answer(outcome, &what);
            let before = allocated_bytes();
            drop(evictor);
            let held = freed.load(Ordering::Relaxed) + before - allocated_bytes();
            let headers = HEADERS.0 * heads + HEADERS.1;
            // The state of a prompt is largest in the first layers.
            assert!(
                held <= said + headers && (held >= said || !evicts),
                "{what}: holds {held} bytes and says {said}"
            );
            holding += usize::from(said > headers);
        }
    }
    assert!(
        holding >= 20,
        "{holding} methods and budgets hold more than headers"
    );
}
