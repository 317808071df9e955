//! Selections, merges and evictions of every method, against fixtures, the oracle and kvpress.

mod baselines;
mod cam;
mod conduct;
mod ems;
mod evicted;
mod fixtures;
mod further_selections;
mod identities;
mod kvpress;
mod kvzip;
mod many_selections;
mod parameters;
mod positions;
mod registry;
mod reuse;
mod select;
mod token_dropping;
