//! Fidelity: compares a method's compact KV cache with the full cache, for one document and question.
//!
//! [`Reference::read`] reads the document once with the full cache, answers greedily and records what the figures
//! need. [`MethodRun::measure_each`] reads the document with a method and runs the full cache's answer through the compact
//! cache, token by token (teacher forcing), evicting as the method does; at each token the two next-token
//! distributions are compared.
//!
//! ```text
//! full     prompt --> a1 --> a2 --> a3 --> end      p1  p2  p3
//! method   prompt --> a1 --> a2 --> a3              q1  q2  q3     KL(p || q), same top token, attention recall
//! ```
//!
//! The distribution before a1 equals the full cache's for every method that reads the prompt with all keys; it is
//! reported separately (`first_kl`) and is not part of the means. Figures of the selection alone are in `indices.rs`,
//! of the full cache in `heads.rs` and `wavelet.rs`; pictures are in `pictures/`. Scores of right and wrong answers
//! need questions with known answers and are not part of this module.

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
