//! Whether a model fits: what it can read with the free memory, computed from the file's header alone. Opening a
//! model maps the file and reads no weights.
//!
//! The cost of one question is in `plan/estimate.rs`; this file evaluates it for documents of growing length.

use kept_policies::{Budget, FULL, PromptShape};
use serde::{Deserialize, Serialize};

use crate::backend;
use crate::{Engine, MethodSpec, Prompt};

/// Tokens on a page of a printed book: about 300 words.
pub const TOKENS_PER_PAGE: usize = 400;

/// Answer length that is included, in tokens.
const MAX_NEW_TOKENS: usize = Engine::DEFAULT_MAX_TOKENS;

/// What can be read with one budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct FitLine {
    /// Rows per KV head and layer that are kept; `None` for the full cache.
    pub rows: Option<usize>,
    /// The longest prompt, in tokens; 0 if not even a short one fits.
    pub tokens: usize,
    /// The longest prompt in pages of [`TOKENS_PER_PAGE`].
    pub pages: usize,
    /// Peak bytes of the longest prompt, weights included.
    pub peak_bytes: u64,
    /// Whether the context length limits the prompt, not memory.
    pub whole_context: bool,
}

/// Whether a model fits, and how much it can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// Free memory, in bytes.
    pub free_bytes: u64,
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// Minimum bytes in addition to the weights: those of a prompt of one page.
    pub least_bytes: u64,
    /// One line for the full cache, then for decreasing numbers of kept rows.
    pub lines: Vec<FitLine>,
}

impl Fit {
    /// Bytes that are missing to read a single page; 0 if the model fits.
    pub fn missing_bytes(&self) -> u64 {
        (self.weights_bytes + self.least_bytes).saturating_sub(self.free_bytes)
    }
}

/// Share of [`product_rate`](kept_kernels::product_rate) that a prefill of 2,048 tokens reaches, counted with all
/// parameters. Measured: 0.90 and 0.78 with models of 1.2 and 0.5 billion; 0.42 with SmolLM2 135M, 1.31 with Gemma 3
/// 270M, of which most is the embedding.
const SHARE: f64 = 0.85;

/// Pages of [`TOKENS_PER_PAGE`] that the CPU reads in a minute with a model of `parameters` parameters per token, about:
/// estimated from the CPU's `product_rate`, without opening the model.
pub fn pages_per_minute(parameters: u64, product_rate: f64) -> f64 {
    60.0 * SHARE * product_rate / parameters as f64 / TOKENS_PER_PAGE as f64
}

/// With fewer [`pages_per_minute`] a model is slow for documents: thirty pages take more than five minutes.
pub const FEW_PAGES_PER_MINUTE: f64 = 6.0;

impl Engine {
    /// What this model can read with `free` bytes of memory (GPU memory if it computes on a GPU; weights included):
    /// with the full cache, and with a few budgets of `method`.
    pub fn fit(&self, free: u64, method: &MethodSpec) -> Fit {
        let full = MethodSpec::plain(FULL);
        // Models without a usable chat template have no tail; their memory can still be computed.
        let tail = Prompt::tail_of(self.model()).unwrap_or(0);
        let prompt = |tokens: usize| PromptShape {
            tail: tail.min(tokens),
            ..PromptShape::of(tokens)
        };
        let peak = |tokens: usize, method: &MethodSpec, rows: Option<usize>| {
            let budget = rows.map(Budget::Rows);
            let ledger = self.expected_ledger(&prompt(tokens), method, budget, MAX_NEW_TOKENS);
            ledger.ok().map(|ledger| ledger.worst())
        };
        let longest = self.model().config().context.saturating_sub(1).max(1);
        let line = |rows: Option<usize>| -> Option<FitLine> {
            let method = if rows.is_some() { method } else { &full };
            let fits = |tokens: usize| peak(tokens, method, rows).is_some_and(|peak| peak <= free);
            // A method that does not work with so few rows has no line.
            peak(longest, method, rows)?;
            // Memory grows monotonically with the prompt: binary search for the longest prompt that fits.
            let (mut fitting, mut failing) = (0, longest + 1);
            while failing - fitting > 1 {
                let middle = fitting + (failing - fitting) / 2;
                if fits(middle) {
                    fitting = middle
                } else {
                    failing = middle
                }
            }
            Some(FitLine {
                rows,
                tokens: fitting,
                pages: fitting / TOKENS_PER_PAGE,
                peak_bytes: peak(fitting.max(1), method, rows)?,
                whole_context: fitting == longest,
            })
        };
        let budgets = [8192, 4096, 2048, 1024, 512, 256];
        let smaller = budgets.iter().filter(|&&rows| rows < longest);
        let lines = std::iter::once(None).chain(smaller.map(|&rows| Some(rows)));
        let model = self.model();
        let backend = backend::of(model);
        let weights_bytes = if backend.has_own_memory() {
            backend.weights_on_device()
        } else {
            model.weights_bytes()
        };
        let a_page = peak(TOKENS_PER_PAGE.min(longest), &full, None);
        Fit {
            free_bytes: free,
            weights_bytes,
            least_bytes: a_page.map_or(0, |peak| peak - weights_bytes),
            lines: lines.filter_map(line).collect(),
        }
    }
}
