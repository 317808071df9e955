//! The window: commands, events and what survives a restart. The engine runs in kept-worker.
//!
//! [`desk`] is the state and decides everything; [`library`] has the models on this computer and on their way; [`worker`] supervises the engine's process; [`store`] keeps what survives
//! a restart; [`wiring`] carries between them; [`commands`], [`drop`] and [`window`] are the thin side towards Tauri. What is
//! absent: models, methods, documents' formats. This crate computes nothing about them.

pub mod arguments;
pub mod commands;
pub mod contract;
pub mod desk;
pub mod drop;
pub mod library;
mod map_views;
mod offsets;
mod sample;
pub mod sentences;
pub mod store;
pub mod window;
pub mod wiring;
pub mod worker;
