//! Drives the engine's two halves by hand: prefill with eviction, then decode steps with given tokens.

use std::ops::Range;
use std::path::Path;

use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{
    Method, Observation, PolicyError, Pos, Retention, RowPlan, RowRequest, Select, Selection,
};
use kept_engine::{CompactCache, Decoder, Prefill};

/// Opens a model file, of `golden/` or elsewhere.
pub fn open(path: &Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A method that keeps given positions: `[layer][kv head]`, ascending, equally many in every head.
#[derive(Clone)]
pub struct Told(pub Vec<Vec<Vec<u32>>>);

impl Method for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let mut plan = RowPlan::uniform(request);
        plan.rows = self.0.iter().map(|layer| layer[0].len()).collect();
        plan.max_rows_per_head.clone_from(&plan.rows);
        Ok(plan)
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(self.clone())
    }
}

impl Select for Told {
    fn select(&mut self, _plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let heads = self.0[observation.layer].iter();
        let positions = heads.map(|head| head.iter().copied().map(Pos).collect());
        Retention::Keep(positions.collect()).into()
    }
}

/// Result of a prefill and its decode steps.
pub struct Stepped {
    /// `[1 + steps][vocab]`: logits after the prompt, then after every given token.
    pub logits: Vec<Vec<f32>>,
    /// `[layer][kv head]` positions kept of the prompt.
    pub kept: Vec<Vec<Vec<u32>>>,
    /// `[steps][layer][kv head]` positions in the cache before each step.
    pub held: Vec<Vec<Vec<Vec<u32>>>>,
}

/// `[layer][kv head]` positions in a cache, ascending.
fn held(cache: &CompactCache) -> Vec<Vec<Vec<u32>>> {
    let layers = cache.layers.iter().map(|layer| {
        let heads = (0..layer.kv_heads()).map(|head| layer.kept(head));
        heads
            .map(|kept| kept.iter().map(|p| p.0).collect())
            .collect()
    });
    layers.collect()
}

/// Runs prefill on `prompt` in chunks of `chunk` tokens under `method` and a budget, then `steps` one by one.
pub fn read_and_step(
    model: &Model,
    method: &dyn Method,
    budget: usize,
    chunk: usize,
    prompt: &[u32],
    steps: &[u32],
) -> Stepped {
    let prompt = TokenPrompt {
        ids: prompt,
        document: None,
    };
    read_document_and_step(model, method, budget, chunk, prompt, steps)
}

/// A prompt as tokens.
pub struct TokenPrompt<'a> {
    /// `[n]`: the tokens.
    pub ids: &'a [u32],
    /// Positions of the document; `None` if the whole prompt is the document.
    pub document: Option<Range<usize>>,
}

/// [`read_and_step`] of a prompt whose document covers given positions.
pub fn read_document_and_step(
    model: &Model,
    method: &dyn Method,
    budget: usize,
    chunk: usize,
    prompt: TokenPrompt<'_>,
    steps: &[u32],
) -> Stepped {
    let rope = RopeTable::new(model.config(), prompt.ids.len() + steps.len());
    let outcome = Prefill {
        model,
        ids: prompt.ids,
        method,
        budget,
        max_new_tokens: steps.len(),
        rope: &rope,
        tail: 0,
        document: prompt.document,
        every_row: false,
        cache: CacheType::F32,
        chunk,
        vault: None,
        gpu_memory: None,
    }
    .run(&mut |_| (), &Stop::default())
    .expect("the prompt is read");
    let kept = held(&outcome.cache);
    let mut decoder = Decoder::new(model, &rope, outcome.evictor, outcome.cache).expect("memory");
    let mut logits = vec![decoder.logits_of(&outcome.hidden).expect("logits").to_vec()];
    let mut before = Vec::with_capacity(steps.len());
    for &token in steps {
        before.push(held(decoder.cache()));
        logits.push(decoder.step(token, None).expect("logits").to_vec());
    }
    Stepped {
        logits,
        kept,
        held: before,
    }
}
