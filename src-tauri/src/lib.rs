//! The desktop app: commands, events and stored state. The engine runs in kept-worker.
//!
//! - [`state`]: the app state, which makes every decision
//! - [`library`]: the models on this computer and downloads
//! - [`worker`]: supervises the engine's process
//! - [`store`]: stores what survives a restart
//! - [`effects`]: passes messages between them
//! - [`commands`], [`mod@drop`], [`window`]: the thin layer towards Tauri
//!
//! This crate computes nothing about models, methods or document formats. From a document's text it takes the outline.

pub mod arguments;
pub mod commands;
pub mod contract;
pub mod drop;
pub mod effects;
mod exported;
pub mod library;
mod map_views;
pub mod messages;
mod names;
mod offsets;
mod sample;
pub mod state;
pub mod store;
pub mod window;
pub mod worker;
