//! The program `kept`, as a user runs it.

mod benchmarks;
mod chat;
mod commands;
mod compare;
mod docs;
mod eval;
mod found;
mod hostile;
mod max_context;
mod memory_limit;
mod pull;
mod pull_faults;
mod removal;
mod serve;
mod streaming;
mod vault;
