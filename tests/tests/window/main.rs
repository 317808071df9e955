//! The app in a real window, driven through WebDriver.

#![cfg(target_os = "linux")]

mod accessible;
mod answer;
mod cache;
mod command_line;
mod compare;
mod conversations;
mod device;
mod documents;
mod earlier;
mod engine;
mod explained;
mod files;
mod find;
mod instructions;
mod library;
mod long;
mod map;
mod memory;
mod models_download;
mod models_found;
mod open;
mod queue;
mod reading;
mod restart;
mod slow_models;
mod streaming;
mod thinking;
mod vault;
