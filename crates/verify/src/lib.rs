//! The checker behind `lockkeeper verify`: reads a history (docs/verify.md), and finds every place that
//! contradicts what a lock promises.
//!
//! Tokens are unique and order the grants, so no search is needed: one pass over the lines, with a bounded
//! memory of each lock.
//!
//! Reading order: `checker.rs` (one line after the other), `clock.rs`, `holds.rs`, `order.rs`, `answers.rs`,
//! `resource.rs`, `merge.rs` (several files as one history); `timeline.rs` and `page.rs` (`--html`).
//!
//! # Invariants
//!
//! - **A violation is a proof.** It follows from the lines in its excerpt, whatever happened between them:
//!   a call took effect after `asked` and before `at`. So late, missing or reordered lines hide a
//!   violation, but make none.
//! - Memory does not grow with the length of a history: what a lock keeps is bounded, and so is the number of
//!   its zombies (holds whose clients died without a last line).

mod answers;
mod checker;
mod clock;
mod holds;
mod merge;
mod order;
mod page;
mod report;
mod resource;
mod timeline;

pub use checker::Checker;
pub use lockkeeper_history::{HistoryEvent, HistoryLine, HoldEnd, LineError, parse};
pub use merge::{MergeError, Merged};
pub use page::page;
pub use report::{Counts, Violation, ViolationKind};
pub use timeline::{
    Density, Overview, PlacedLine, PlacedViolation, Timeline, VIOLATIONS, WHOLE, WINDOW_LINES, WINDOW_NS,
    Windows,
};
