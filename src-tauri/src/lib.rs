//! The window: commands, events and what survives a restart. The engine runs in kept-worker.
//!
//! [`state`] is the state and decides everything; [`library`] has the models on this computer and on their way; [`worker`] supervises the engine's process; [`store`] keeps what survives
//! a restart; [`effects`] carries between them; [`commands`], [`drop`] and [`window`] are the thin side towards Tauri. What is
//! absent: models, methods, documents' formats. This crate computes nothing about them.

pub mod arguments;
pub mod commands;
pub mod contract;
pub mod drop;
pub mod effects;
pub mod library;
mod map_views;
pub mod messages;
mod offsets;
mod sample;
pub mod state;
pub mod store;
pub mod window;
pub mod worker;
