//! Histories: what clients, fences and test harnesses write down of locks, one event a line, for
//! `lockkeeper verify`. The format is docs/verify.md.
//!
//! Responsible for the events, for their lines, and for appending lines to a file. Judges nothing: that is
//! `lockkeeper-verify`.
//!
//! Reading order: `event.rs`, `line.rs` (an event as JSON), `writer.rs`; `read.rs` with the feature `read`.
//!
//! # Invariants
//!
//! - A line is appended by one system call, so the lines of several processes never mix, and the file of a
//!   killed process ends after its last event.
//! - An event is written after what it tells of has happened. Its times are bounds: `asked` was read before
//!   the call, `at` after the answer.

mod event;
mod line;
#[cfg(feature = "read")]
mod read;
mod service;
mod writer;

pub use event::{
    ClockEvent, DeniedEvent, DowngradedEvent, EndedEvent, EnteredEvent, FaultEvent, FenceVerdict,
    GrantedEvent, HistoryEvent, HistoryLine, HoldEnd, HoldMode, ListedEvent, MarkedEvent, ReadEvent, SlotOf,
    StatusEvent, TokenAnswer, WriteOutcome, WriterEvent, WroteEvent,
};
#[cfg(feature = "read")]
pub use read::{LineError, parse};
pub use service::service_of;
pub use writer::{HistoryWriter, host_clock};

/// The version of the format, in the first line of each writer.
pub const FORMAT: u32 = 1;
