//! The lease rules as an exhaustive model: one session, two or three leaders, and every order in which messages,
//! clocks, stalls, elections, closed streams and a break can meet. It checks P5, P6, P9, and P4 for breaks.
//!
//! Responsible for saying whether the rules of the deadline book (DESIGN section 5) suffice, and which of them are
//! needed: each is a switch in [`Rule`], and the model without it must fail. It is a model, not the code: it has the
//! rules in quarters of a ttl and leaves out everything else. What holds the code to the rules is the simulator
//! (`crates/sim`) and the tests of `crates/replica`; `docs/SAFETY.md` puts the three beside each other.
//!
//! Reading order: `rule` (what can be left out), `state` (what the world is made of), `action` (what can happen),
//! then `client`, `network`, `leader`, `election` and `clock` (when it can, and what comes of it), `model` (the
//! promises), `explore` (a run and its report).

mod action;
mod client;
mod clock;
mod election;
mod explore;
mod leader;
mod model;
mod network;
mod rule;
mod state;

pub use explore::{Report, explore, path};
pub use model::{Model, PROMISES};
pub use rule::Rule;
