//! The lock rules as one pure function.
//!
//! [`Table::apply`] takes a [`Command`] and answers with a [`Reply`] for the asker and [`Effects`] for everyone
//! else. Same commands, same bytes: there is no clock here, no randomness, no network, no file, no thread, and no
//! order that comes from a hash. Who leads and what time it is are other rooms' business.
//!
//! Rules are cited by the numbers of `docs/table-rules.md` (N1, R4 …), promises as P1–P12 (`docs/SAFETY.md`).
//!
//! Reading order: [`types`], [`name`], [`command`], [`validate`], [`reply`], then [`table`].

pub mod command;
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
    Description, HoldInfo, HoldState, Page, Pending, Restorer, SessionInfo, SnapshotError, Table,
    TokenStatus, WaiterInfo, WalkState, WalkUnderWay,
};
pub use types::{Mode, ModeKind, Seq, SessionId, Slot, Ticket, Token};
