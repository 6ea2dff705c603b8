//! The lock rules as one pure, deterministic state machine.
//!
//! [`Table::apply`] takes a [`Command`] and returns a [`Reply`] for its sender, plus [`Effects`] on other requests and
//! sessions. The same commands lead to the same state on every node: the crate uses no clock, no randomness, no
//! network, no file, no thread, and no order that depends on a hash. Replies are the same too, except for the holder
//! that `Busy` names (M2). The caller decides who leads, and runs the timers.
//!
//! Comments cite rules by the numbers of `docs/table-rules.md` (N1, R4 …) and promises as P1–P12 (`docs/SAFETY.md`).
//!
//! Reading order: [`types`], [`name`], [`command`], [`validate`], [`reply`], then [`table`].

pub mod command;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod invariants;
pub mod limits;
pub mod name;
pub mod reply;
pub mod snapshot;
pub mod table;
pub mod types;
pub mod validate;

pub use command::{Acquire, Break, Command, IfBusy, OpenSession};
pub use name::{LockName, NameError};
pub use reply::{Effect, Effects, End, Grant, PermitGrant, Rejection, Reply};
pub use snapshot::Snapshot;
pub use table::{
    Description, HoldInfo, HoldState, Page, Pending, PrefixLoad, Restorer, SessionInfo, SnapshotError,
    SnapshotProgress, SnapshotUnderWay, Table, TokenStatus, Usage, WaiterInfo,
};
pub use types::{Fingerprint, InvalidToken, Mode, ModeKind, Seq, SessionId, Slot, Ticket, Token};
