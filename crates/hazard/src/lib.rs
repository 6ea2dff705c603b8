//! The hazards of locks, played under virtual time.
//!
//! [`play()`] lets two or three clients use a lock while something goes wrong (a pause, a clock that drifts,
//! a cut network, a delayed packet), and returns a [`Trace`]: what happened on each lane, and what the
//! resource contains in the end. The lock table, the client's state machine and the fence rule are the
//! production ones, so a trace is evidence, not a drawing. [`STORIES`] are settings with a lesson.
//!
//! Reading order: [`Settings`], `stories.rs`, `play/mod.rs`; then what it moves: `process.rs`, `locks.rs`,
//! `resource.rs`. [`page`] shows traces.
//!
//! The simulator (`crates/sim`) looks for mistakes in thousands of random worlds. This crate shows one chosen
//! world and must be read by newcomers, so the two share no code. The service does not depend on this crate,
//! which needs the client library; instead, `lockkeeper serve` passes the page to the service
//! (`HazardPlayer`).

mod client;
mod locks;
mod outcome;
pub mod page;
mod play;
mod process;
mod recorder;
mod redlock;
mod resource;
mod service;
mod settings;
mod stories;
#[cfg(test)]
mod tests;
mod text;
mod trace;

pub use play::play;
pub use settings::{Fence, KEYS, LockServiceKind, Others, Pause, Settings, SettingsError};
pub use stories::{STORIES, Story, story};
pub use text::{outcome_line, step_line};
pub use trace::{
    Account, DataVerdict, Lane, Message, MessageKind, Phase, PlayOutcome, Span, SpanKind, Step, StepKind,
    Trace,
};
