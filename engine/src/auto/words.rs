//! The reasons of `--method auto`, and what methods cost, as sentences.

use kept_kernels::{CacheType, format_bytes};

use super::table::{MeasuredModel, StreamedRun, measured};
use super::{Candidate, Case};
use crate::{Engine, MethodSpec};

impl Engine {
    /// [`Engine::costs`] as a sentence.
    pub(crate) fn costs_in_words(
        &self,
        method: &MethodSpec,
        share: f64,
        cache: CacheType,
    ) -> String {
        format!(
            "in our measurements with {} that costs {}{:.4} nats of KL divergence from the full cache",
            self.measured().basis(),
            if self.measured().has_measured(&method.name) {
                ""
            } else {
                "at most "
            },
            self.costs(&method.name, share, cache)
        )
    }
}

/// How well `method` reads beyond the context length, as a sentence.
pub(crate) fn streaming_in_words(method: &MethodSpec) -> String {
    let table = measured();
    let lowest = |runs: &mut dyn Iterator<Item = &StreamedRun>| {
        runs.map(|run| run.perplexity).reduce(f64::min)
    };
    let best = lowest(&mut table.streaming.iter()).expect("the table names methods");
    let own = lowest(&mut (table.streaming.iter()).filter(|run| run.method == method.name));
    let own = own.map_or_else(
        || "was not measured".to_owned(),
        |own| format!("was {own:.0}"),
    );
    format!(
        "in our measurements with {} its perplexity along a long text {own}, the best method's {best:.0}",
        table.models[0].name
    )
}

/// Why a method that evicts was chosen. `was_measured`: at its share of the prompt's rows or a smaller one.
pub(super) fn evicting(
    table: &MeasuredModel,
    found: &Candidate,
    tokens: usize,
    was_measured: bool,
) -> String {
    let &Candidate {
        run,
        rows,
        cache,
        kl,
    } = found;
    let figures = match was_measured {
        true => format!(
            "at {:.0} % it answers {:.0} % of the {} facts that the full cache answers, {:.3} nats from it",
            100.0 * run.share,
            100.0 * run.right,
            table.answered,
            run.kl,
        ),
        false => format!(
            "fewer rows than {:.0} % were not tried; by estimate that is {kl:.1} nats from the full cache",
            100.0 * run.share
        ),
    };
    let percent = 100.0 * rows as f64 / tokens.max(1) as f64;
    let long = match tokens > table.longest() {
        true => "; no prompt this long was measured",
        false => "",
    };
    format!(
        "{}, {rows} rows per head ({percent:.*} % of the prompt), {cache}: in our measurements with {} {figures}, and {cache} costs {:.4}{long}",
        run.method,
        usize::from(percent < 1.0),
        table.basis(),
        measured().rounding_kl(cache.name()),
    )
}

/// What the choice fits into.
pub(super) fn free(case: &Case<'_>) -> String {
    match (case.request.limits.memory, case.free) {
        (Some(memory), _) => format!("; fits {} of memory", format_bytes(memory)),
        (None, Some(free)) => format!("; fits {} free", format_bytes(free)),
        (None, None) => String::new(),
    }
}
