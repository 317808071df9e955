//! The protocol between the app and kept-worker, the engine in a process of its own.

pub mod protocol;
