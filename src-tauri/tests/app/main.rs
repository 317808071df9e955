//! Tests of the store, the protocol with the page and the supervision of the worker.

mod common;
mod contract;
mod store;
mod store_rights;
mod supervisor;
