//! Fidelity: what a method's cut cache says, beside what the full cache says, for one document and question.
//!
//! [`Engine::reference`] reads the document once with the full cache, answers greedily and notes what the figures need.
//! [`Engine::fidelity`] reads it with a method and runs the full cache's own answer through the cut cache, token by token,
//! evicting as the method does; at each token the two next-token distributions are compared.
//!
//! ```text
//! full     prompt --> a1 --> a2 --> a3 --> end      p1  p2  p3
//! method   prompt --> a1 --> a2 --> a3              q1  q2  q3     KL(p || q), same top token, attention recall
//! ```
//!
//! The distribution before a1 is the full cache's in every method that reads the prompt with all keys; it is told apart
//! (`first_kl`) and not part of the means. Figures of the selection alone are in `indices.rs`, of the full cache in `heads.rs` and
//! `wavelet.rs`; pictures in `pictures/`. Not here: scores of right and wrong answers, which need a question with a known one.

mod divergence;
mod heads;
mod indices;
mod observer;
pub(crate) mod pictures;
mod recall;
mod reference;
mod report;
mod run;
mod wavelet;

pub use divergence::{kl_divergence, same_top};
pub use heads::{HeadFigures, PROBED, SCORE_SHARE, SIMILAR};
pub use indices::{BINS, IndexFigures};
pub use pictures::{Drawn, pictures};
pub use reference::Reference;
pub use report::{ReferenceReport, RunReport};
pub use run::{Fidelity, MethodRun};
pub use wavelet::{LEVELS, MARGIN, WaveletFigures};

#[cfg(doc)]
use crate::Engine;
