//! The engine on a GPU: the emulated one, or this computer's in a build with the feature `cuda`.

mod faults;
mod gpus;
mod graph;
mod kept_rows;
mod measurements;
mod methods;
mod rows;
#[cfg(target_os = "linux")]
mod scripts;
mod small_memory;
mod variants;
