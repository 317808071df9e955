//! Shared helpers of the tests: paths of golden files, running `kept`, comparing two answers.
//!
//! The numbers in `golden/` come from independent code (listed in `golden/make_golden.py`). These helpers do not repeat
//! the product's algorithms, with two exceptions, both written naively: attention of a synthetic case (`cases`) and a
//! model with a full cache (`slow`).

pub mod cases;
pub mod compare;
pub mod engine;
pub mod fetched;
pub mod gguf_edit;
pub mod golden;
pub mod hostile;
pub mod hub;
pub mod method_spec;
pub mod selecting;
pub mod slow;
mod slow_rows;
pub mod terminal;
pub mod vaults;
#[cfg(target_os = "linux")]
pub mod window;
pub mod worker;
