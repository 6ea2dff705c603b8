//! The lease rules as an exhaustive model: one session, two or three leaders, and every order of messages,
//! clock ticks, stalls, elections, closed streams and a break. It checks P5, P6, P9, and P4 for breaks.
//!
//! Responsible for showing that the rules for session deadlines suffice, and which of them are necessary:
//! [`Rule`] lists the rules that can be left out, and in the model without a rule a promise must break
//! (except [`Rule::ExpiryRound`], see `docs/lease-rules.md`). The model shares no code with production: it
//! applies only these rules, with times in quarters of a ttl. The simulator (`crates/sim`) and the tests of
//! `crates/replica` check the code against the rules; `docs/lease-rules.md` compares what the model, the
//! simulator and those tests prove.
//!
//! Reading order: `rule` (the rules that can be left out), `state` (the model's state), `action` (the
//! events), then `client`, `network`, `leader`, `election` and `clock` (when each event is possible, and its
//! effect), `model` (the promises), `explore` (a run and its report).
//!
//! `cached` is a second model: the clients of one lock that keep their holds between sections (C2 to C7).
//!
//! This crate depends on no crate of ours: a model that shares the code would share its mistakes. It shows
//! whether the rules suffice, not whether the code follows them.

mod action;
mod cached;
mod client;
mod clock;
mod election;
mod explore;
mod leader;
mod model;
mod network;
mod rule;
mod state;

pub use cached::{CACHED_PROMISES, CachedAction, CachedModel, CachedRule};
pub use explore::{Exploration, explore, path};
pub use model::{Model, PROMISES};
pub use rule::Rule;
