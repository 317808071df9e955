//! Kernels on a GPU (in the emulator without the feature `cuda`) against the CPU kernels.

mod async_copy;
mod classes;
mod decode;
mod expected;
mod grids;
mod limits;
mod merging;
mod pieces;
mod pinned_memory;
mod prefill;
mod rates;
mod rows;
mod scale;
mod scores;
mod step;
mod step_attention;
mod support;
mod weights;
