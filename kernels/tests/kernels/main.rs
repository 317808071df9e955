//! Kernels against plain references.

mod classes;
mod decode;
mod elementwise;
mod measure;
mod prefill;
mod support;
mod window;
