//! Kernels against the plain loops of the reference.

mod classes;
mod decode;
mod elementwise;
mod measure;
mod prefill;
mod support;
mod window;
