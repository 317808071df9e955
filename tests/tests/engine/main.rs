//! Prefill, decode, streaming, the vault and the worker process.

mod attention;
mod conversation_vault;
mod conversations;
mod evictions;
mod expected_queries;
mod fidelity;
mod numbers;
mod reading;
mod recurrent;
mod stream_checkpoints;
mod streamed;
mod streaming;
mod together;
mod vault;
mod vault_estimate;
mod vault_faults;
mod worker;
