//! The figures as pictures: one SVG each, light and self-contained.
//!
//! | file | shows | after |
//! | --- | --- | --- |
//! | `overview.svg` | every run: divergence, agreement, recall, memory, speed, answer | |
//! | `recall.svg` | attention recall by layer | |
//! | `positions.svg` | distribution of the kept rows over the prompt, with its entropy | HBW-KV, figure 3 |
//! | `similarity.svg` | similarity of the layers' selections | ChunkKV, figure 2 and table 3 |
//! | `heads.svg` | sparsity and redundancy of every KV head of the full cache | EMS, figure 3b |
//! | `wavelet.svg` | change of the full cache's signal, by position and scale | TreeKV, figure 2 |

mod full;
mod overview;
mod selection;
pub(crate) mod svg;

use super::{MethodRun, Reference};

/// One run with its labels.
pub struct Drawn<'a> {
    /// The method's label.
    pub method: &'a str,
    /// The budget, as the user entered it.
    pub budget: String,
    /// The result.
    pub run: &'a MethodRun,
}

/// Width of the longest method label.
fn longest(runs: &[Drawn<'_>]) -> f64 {
    svg::width_for(runs.iter().map(|drawn| drawn.method))
}

/// All pictures for which there are data, as file name and SVG.
pub fn pictures(reference: &Reference, runs: &[Drawn<'_>]) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    if !runs.is_empty() {
        files.push(("overview.svg", overview::overview(reference, runs)));
        files.push(("recall.svg", selection::recall(runs)));
        files.push(("positions.svg", selection::positions(reference, runs)));
        files.push(("similarity.svg", selection::similarity(runs)));
    }
    files.push(("heads.svg", full::heads(&reference.report.heads)));
    if let Some(wavelet) = &reference.report.wavelet {
        files.push(("wavelet.svg", full::wavelet(wavelet)));
    }
    files
}
