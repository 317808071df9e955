//! Tests of the store, the protocol with the page, the supervision of the worker, and the icons.

mod common;
mod contract;
mod icons;
mod store;
mod store_rights;
mod supervisor;
