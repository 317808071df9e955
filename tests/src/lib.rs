//! What the tests share: where golden files are, how `kept` is run, and how two answers are compared.
//!
//! The numbers in `golden/` come from code that is not ours (`golden/make_golden.py` says which). Nothing here computes what
//! the product computes; the exceptions, attention of a drawn case (`cases`) and of a model that keeps everything (`slow`), are
//! written the slow and obvious way.

pub mod cases;
pub mod compare;
pub mod engine;
pub mod fetched;
pub mod gguf_edit;
pub mod golden;
pub mod hub;
pub mod selecting;
pub mod slow;
mod slow_rows;
pub mod terminal;
pub mod vaults;
#[cfg(target_os = "linux")]
pub mod window;
pub mod worker;
