//! What is peculiar to a majority of Redis servers, on real ones: which of them may fail, what is left where, and what
//! Redlock does not survive. What every backend promises is in the contract suite; the quorum's own rules are tried
//! over every fault in `src/backends/redlock/tests`.

#![cfg(feature = "redlock")]

mod connecting;
mod faults;
mod leftovers;
mod not_promised;
mod people;
mod support;
