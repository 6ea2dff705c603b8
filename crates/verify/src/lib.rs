//! The checker behind `lockkeeper verify`: reads a history (docs/history.md), and finds every place that
//! contradicts what a lock promises.
//!
//! Tokens are unique and order the grants, so no search is needed: one pass over the lines, with a bounded
//! memory of each lock.
//!
//! Reading order: `checker.rs` (one line after the other), `clock.rs`, `holds.rs`, `order.rs`, `answers.rs`,
//! `resource.rs`, `merge.rs` (several files as one history).
//!
//! # Invariants
//!
//! - **A violation is a proof.** It follows from the lines in its excerpt, whatever happened between them: a
//!   call took effect after `asked` and before `at`. So late, missing or reordered lines hide a violation, but
//!   make none.
//! - Memory does not grow with the length of a history: what a lock keeps is bounded, and so is the number of
//!   its zombies (holds whose clients died without a last line).

mod answers;
mod checker;
mod clock;
mod holds;
mod merge;
mod order;
mod report;
mod resource;

pub use checker::Checker;
pub use lockkeeper_history::{Event, HoldEnd, Line, LineError, parse};
pub use merge::{MergeError, Merged};
pub use report::{Counts, Kind, Violation};
