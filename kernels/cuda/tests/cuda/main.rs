//! Kernels on a GPU (the emulated one without the feature `cuda`) against those of the CPU.

mod async_copy;
mod decode;
mod expected;
mod grids;
mod homes;
mod limits;
mod merging;
mod pieces;
mod prefill;
mod rates;
mod rows;
mod scores;
mod step;
mod support;
mod weights;
