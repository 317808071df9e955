//! Answers as C reads them.

use std::ffi::CString;
use std::sync::OnceLock;

use kept_engine::{Answer, AnswerReport, Citation, LayerRetention, Note, Source};
use serde::Serialize;

use crate::{bug, nul_terminated};

/// An answer.
pub struct KeptAnswer {
    pub(crate) text: CString,
    pub(crate) json: CString,
    answer: Answer,
    map: OnceLock<MapArrays>,
}

/// Which tokens of the prompt are kept, as arrays in row-major order.
#[repr(C)]
pub struct KeptMap {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads per layer.
    pub heads: usize,
    /// Tokens of the prompt: template, document, question.
    pub tokens: usize,
    /// `[layers][heads][tokens]`: 0 evicted, 1 kept, 2 merged into the row of another token.
    pub retention: *const u8,
    /// `[layers]`: how many last positions a sliding-window layer attends to, 0 for a recurrent layer, -1 for a
    /// global layer. Only global layers are compressed.
    pub windows: *const i64,
    /// `[tokens]`: share of the heads of all global layers that keep the token, 0 to 1.
    pub shares: *const f32,
    /// `[tokens][2]`: first byte of the token in the document's text, and one past its last; -1 and -1 for tokens
    /// outside the document.
    pub spans: *const i64,
}

/// The arrays of a [`KeptMap`].
struct MapArrays {
    retention: Vec<u8>,
    windows: Vec<i64>,
    shares: Vec<f32>,
    spans: Vec<[i64; 2]>,
}

const KEPT: u8 = 1;
const MERGED: u8 = 2;

impl MapArrays {
    fn of(answer: &Answer) -> Self {
        let map = &answer.map;
        let tokens = map.tokens;
        let mut retention = vec![0; map.layers.len() * map.kv_heads * tokens];
        let mut slots = retention.chunks_exact_mut(tokens.max(1));
        for (layer, merged) in map.layers.iter().zip(&map.merged) {
            for (head, slot) in (0..map.kv_heads).zip(&mut slots) {
                match layer {
                    LayerRetention::Everything => slot.fill(KEPT),
                    LayerRetention::Kept(heads) => {
                        heads[head].iter().for_each(|&p| slot[p as usize] = KEPT);
                    }
                }
                let merged = merged.get(head).into_iter().flatten();
                merged.for_each(|[position, _]| slot[*position as usize] = MERGED);
            }
        }
        let window = |window: &Option<usize>| window.map_or(-1, |w| w as i64);
        let span = |position| match answer.prompt.span(position) {
            Some(span) => [span.start as i64, span.end as i64],
            None => [-1, -1],
        };
        Self {
            retention,
            windows: map.windows.iter().map(window).collect(),
            shares: map.shares(),
            spans: (0..tokens).map(span).collect(),
        }
    }
}

/// [`KeptAnswer::json`].
#[derive(Serialize)]
struct AnswerJson<'a> {
    answer: &'a str,
    #[serde(flatten)]
    report: &'a AnswerReport,
    model: &'a str,
    rows_per_layer: &'a [usize],
    tokens_from_vault: usize,
    sources: &'a [Source],
    citations: &'a [Citation],
    notes: Vec<String>,
}

impl KeptAnswer {
    pub(crate) fn new(answer: Answer, model: &str) -> anyhow::Result<Self> {
        let json = serde_json::to_string(&AnswerJson {
            answer: &answer.text,
            report: &answer.report,
            model,
            rows_per_layer: &answer.rows_per_layer,
            tokens_from_vault: answer.vault.tokens_from_vault,
            sources: &answer.sources,
            citations: &answer.citations,
            notes: answer.notes.iter().map(Note::to_string).collect(),
        });
        Ok(Self {
            text: nul_terminated(&answer.text),
            json: nul_terminated(&json.map_err(|error| bug(&error.to_string()))?),
            map: OnceLock::new(),
            answer,
        })
    }

    /// The map; its arrays live as long as the answer.
    pub(crate) fn map(&self) -> KeptMap {
        let arrays = self.map.get_or_init(|| MapArrays::of(&self.answer));
        KeptMap {
            layers: self.answer.map.layers.len(),
            heads: self.answer.map.kv_heads,
            tokens: self.answer.map.tokens,
            retention: arrays.retention.as_ptr(),
            windows: arrays.windows.as_ptr(),
            shares: arrays.shares.as_ptr(),
            spans: arrays.spans.as_ptr().cast(),
        }
    }
}
