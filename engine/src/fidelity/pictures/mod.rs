//! The figures as pictures: one SVG each, light and self-contained.
//!
//! | file | shows | after |
//! | --- | --- | --- |
//! | `overview.svg` | every run: divergence, agreement, recall, memory, speed, answer | |
//! | `recall.svg` | attention recall by layer | |
//! | `positions.svg` | where in the prompt the kept rows lie, with the entropy | HBW-KV, figure 3 |
//! | `similarity.svg` | how alike the layers' choices are | ChunkKV, figure 2 and table 3 |
//! | `heads.svg` | sparsity and redundancy of every kv head of the full cache | EMS, figure 3b |
//! | `wavelet.svg` | how much the full cache's signal changes, by position and scale | TreeKV, figure 2 |
//!
//! Not here: measuring.

mod full;
mod overview;
mod selection;
pub(crate) mod svg;

use super::{MethodRun, Reference};

/// One run with the words that name it.
pub struct Drawn<'a> {
    /// The method's label.
    pub method: &'a str,
    /// The budget, as it was asked for.
    pub budget: String,
    /// What came out.
    pub run: &'a MethodRun,
}

/// The room that the longest of the methods' names takes.
fn longest(runs: &[Drawn<'_>]) -> f64 {
    svg::width_for(runs.iter().map(|drawn| drawn.method))
}

/// All pictures that there is something to draw for, as file name and SVG.
pub fn pictures(reference: &Reference, runs: &[Drawn<'_>]) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    if !runs.is_empty() {
        files.push(("overview.svg", overview::overview(reference, runs)));
        files.push(("recall.svg", selection::recall(runs)));
        files.push(("positions.svg", selection::positions(reference, runs)));
        files.push(("similarity.svg", selection::similarity(runs)));
    }
    files.push(("heads.svg", full::heads(&reference.heads)));
    if let Some(wavelet) = &reference.wavelet {
        files.push(("wavelet.svg", full::wavelet(wavelet)));
    }
    files
}
