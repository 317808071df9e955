//! From a budget to rows per KV head.
//!
//! ```text
//! Budget --`budget_rows`: sliding windows and rows--> --`rows_for`: tables and the answer's buffers--> rows
//! ```
//!
//! `memory.rs` reduces the rows further if the question has a memory limit.

use kept_policies::{Budget, FULL, Method, PolicyError};

use super::memory::MemoryChoice;
use super::prefill::CHUNK;
use super::{PlanRequest, StreamPlan};
use crate::compact::F16_ROWS;
use crate::shape::shape_of;
use crate::{Engine, EngineError, MemoryLedger};

impl Engine {
    /// Rows per KV head of a prompt of `tokens` tokens without a budget, under a method without a default of its own.
    pub fn default_rows(tokens: usize) -> usize {
        (tokens / 4).max(Self::MIN_DEFAULT_BUDGET)
    }

    /// Rows per KV head for `budget` on a prompt of `tokens` tokens. Of a budget in bytes, sliding-window layers take
    /// theirs first.
    ///
    /// # Errors
    /// A budget of no rows, [`EngineError::BudgetBelowWindows`].
    pub fn budget_rows(&self, budget: Budget, tokens: usize) -> Result<usize, EngineError> {
        let row = self.bytes_per_row();
        let Budget::Bytes(bytes) = budget else {
            return Ok(budget.rows(tokens, row)?);
        };
        let windows = self.window_bytes(tokens);
        if windows > 0 && bytes < windows + row {
            return Err(EngineError::BudgetBelowWindows {
                bytes,
                windows,
                row,
            });
        }
        let left = bytes - windows;
        // The first rows of a quantised cache stay f16.
        let config = self.model().config();
        let wide = 2 * self.cache_type().wide().row_bytes(config.head_dim);
        let wide = (config.full_layers().count() * config.kv_heads * wide) as u64;
        if left <= F16_ROWS as u64 * wide {
            return Ok(Budget::Bytes(left).rows(tokens, wide)?);
        }
        let exact = F16_ROWS as u64 * wide.saturating_sub(row);
        Ok(Budget::Bytes(left - exact).rows(tokens, row)?)
    }

    /// Rows per KV head that `method` gets, without regard to a memory limit. A budget in bytes includes tables and the
    /// answer's buffers. Without a budget the method's own default applies if it has one. The full cache has no budget.
    ///
    /// # Errors
    /// As [`Engine::budget_rows`], [`EngineError::BudgetBytes`], and in streaming mode as [`StreamPlan::new`].
    pub fn rows_for(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
    ) -> Result<usize, EngineError> {
        if self.uses_streaming(request) {
            return Ok(self.stream_plan(method, request)?.rows);
        }
        let prompt = request.prompt;
        if method.name() == FULL {
            return Ok(prompt.tokens);
        }
        if let Some(budget) = request.budget {
            return self.rows_of_budget(method, request, budget, prompt.tokens);
        }
        let own = method.default_rows(&shape_of(self.model()), prompt);
        Ok(own.unwrap_or_else(|| Self::default_rows(prompt.tokens)))
    }

    /// The plan of streaming mode, without regard to a memory limit. A budget given as a share is limited to the rows
    /// that fit the context length.
    ///
    /// # Errors
    /// As [`StreamPlan::new`], and budgets of no rows.
    pub fn stream_plan(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
    ) -> Result<StreamPlan, EngineError> {
        let &PlanRequest { prompt, budget, .. } = request;
        // A share refers to the document, so that every question on it gets the same rows.
        let text = prompt.tokens - prompt.after;
        let rows = budget.map(|budget| self.rows_of_budget(method, request, budget, text));
        let rows = rows.transpose()?;
        match self.stream_plan_with(method, request, rows, None) {
            Err(EngineError::StreamBudget { rows, most, .. })
                if matches!(budget, Some(Budget::Share(_))) =>
            {
                let mut plan = self.stream_plan_with(method, request, Some(most), None)?;
                plan.wanted = Some(rows);
                Ok(plan)
            }
            plan => plan,
        }
    }

    /// The rows of `budget`, of which a share refers to `tokens` tokens.
    fn rows_of_budget(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        budget: Budget,
        tokens: usize,
    ) -> Result<usize, EngineError> {
        let rows = self.budget_rows(budget, tokens)?;
        match budget {
            Budget::Bytes(bytes) => {
                let most = rows.min(request.prompt.tokens).max(1);
                self.rows_in_bytes(method, request, bytes, most)
            }
            Budget::Rows(_) | Budget::Share(_) => Ok(rows),
        }
    }

    /// The most rows per KV head under `method`, up to `most`, whose cache, tables and answer buffers take at most
    /// `bytes`.
    ///
    /// # Errors
    /// [`EngineError::BudgetBytes`] with the missing bytes if not even the method's smallest number of rows fits.
    fn rows_in_bytes(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        bytes: u64,
        most: usize,
    ) -> Result<usize, EngineError> {
        let held = |ledger: MemoryLedger| ledger.kept() + ledger.decode;
        let found = self.most_rows(method, request, bytes, CHUNK, most, &held)?;
        found.map(|choice| choice.rows).map_err(|needed| {
            let windows = self.window_bytes(request.prompt.tokens);
            EngineError::BudgetBytes {
                bytes,
                missing: needed.saturating_sub(bytes),
                windows: (windows > 0).then_some(windows),
            }
        })
    }

    /// The most rows, up to `most`, whose `size` is at most `bytes`, by binary search; or the smallest size found if
    /// none fit.
    pub(super) fn most_rows(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        bytes: u64,
        chunk: usize,
        most: usize,
        size: &dyn Fn(MemoryLedger) -> u64,
    ) -> Result<Result<MemoryChoice, u64>, EngineError> {
        let sized = |rows: usize| -> Result<Sized, EngineError> {
            match self.ledger_with(method, request, rows, chunk) {
                Ok((ledger, chunk)) => Ok(Sized::Takes(size(ledger), chunk)),
                Err(EngineError::Policy(PolicyError::BudgetTooSmall { needed, .. })) => {
                    Ok(Sized::TooFew(needed))
                }
                // Streaming mode cannot hold that many rows.
                Err(EngineError::StreamBudget { .. }) => Ok(Sized::TooMany),
                Err(error) => Err(error),
            }
        };
        let (mut fitting, mut failing) = (None, most + 1);
        let mut low = 0;
        let choice = |rows, chunk, bytes| MemoryChoice {
            rows,
            chunk,
            cache: self.cache_type(),
            bytes,
        };
        if let Sized::Takes(takes, chunk) = sized(most)?
            && takes <= bytes
        {
            return Ok(Ok(choice(most, chunk, takes)));
        }
        let mut least: Option<u64> = None;
        while failing - low > 1 {
            let rows = low + (failing - low) / 2;
            match sized(rows)? {
                Sized::Takes(takes, chunk) if takes <= bytes => {
                    fitting = Some(choice(rows, chunk, takes));
                    low = rows;
                }
                Sized::Takes(takes, _) => {
                    least = Some(least.map_or(takes, |least| least.min(takes)));
                    failing = rows;
                }
                Sized::TooMany => failing = rows,
                Sized::TooFew(needed) => low = rows.max(needed.saturating_sub(1).min(failing - 1)),
            }
        }
        match (fitting, least) {
            (Some(fitting), _) => Ok(Ok(fitting)),
            (None, Some(least)) => Ok(Err(least)),
            // Too few rows for the method, or none fit the context length: `ledger_with` returns the specific error.
            (None, None) => self
                .ledger_with(method, request, most, chunk)
                .map(|(ledger, _)| Err(size(ledger))),
        }
    }
}

/// Result for a number of rows.
enum Sized {
    /// Bytes, and the chunk size in tokens.
    Takes(u64, usize),
    /// The method needs at least this many rows.
    TooFew(usize),
    /// The context length cannot hold as many rows.
    TooMany,
}
