//! The lock rules as one pure, deterministic state machine.
//!
//! [`Table::apply`] takes a [`Command`] and returns a [`Reply`] for its sender, plus [`Effects`] on other
//! requests and sessions. The same commands lead to the same state on every node: the crate uses no clock, no
//! randomness, no network, no file, no thread, and no order that depends on a hash. Replies are the same too,
//! except for the holder that `Busy` names (M2). The caller decides who leads, and runs the timers.
//!
//! Comments cite rules by the numbers of `docs/table-rules.md` (N1, R4 …) and promises as P1–P12
//! (`docs/SAFETY.md`).
//!
//! # Code map
//!
//! In reading order: [`types`], [`name`], [`command`] and [`reply`], [`validate`], then [`table`].
//!
//! - `table/mod.rs`: dispatches a command, then grants waiters in one pass
//! - `table/acquire.rs`, `table/grant.rs`, `table/pass.rs`: which requests may be granted
//! - `table/end.rs`, `table/sessions.rs`, `table/breaks.rs`: how a hold ends
//! - `table/caching.rs`: cached holds, their recall, and the requests that their answers decide
//! - `table/deadlock.rs`, `cycle.rs`: waits that would never end, and their description
//! - `table/session.rs`: the answers that a session keeps, which make a retry harmless (P7)
//! - `table/names.rs`, `table/crowd.rs`: a name, its ancestors and its descendants
//! - `table/work.rs`, `table/costs.rs`, `limits.rs`: the bounds on the work of a command and on its size, and
//!   the backlog (M2)
//! - `snapshot/mod.rs`, `snapshot/items.rs`: the table as plain data, its bytes and its digest
//! - `table/snapshot_iterator.rs`, `table/copy_on_write.rs`, `table/restore.rs`: snapshots in pieces between
//!   commands
//! - `invariants.rs`: what holds after every command
//!
//! # Invariants
//!
//! - `apply` does not depend on which node leads. It always returns its effects; a follower drops them.
//! - Only a grant in `apply` makes a token (P2).
//! - A command visits a bounded number of table entries, which it states (`Command::visits_max`). Work beyond
//!   the bound is the backlog; the driver of a table applies `Command::Resume` until `has_backlog` is false.
//! - Requests, sessions and names change only through their stores, which first copy the old state for a
//!   running snapshot iterator.
//! - Names arrive parsed, durations as milliseconds, tokens as non-zero integers below 2^53.

pub mod command;
pub mod cycle;
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
pub use cycle::{Cycle, CycleRequest};
pub use name::{LockName, NameError};
pub use reply::{Effect, Effects, End, Grant, PermitGrant, Rejection, Reply};
pub use snapshot::{Caching, Snapshot};
pub use table::{
    Description, HoldInfo, HoldState, Oldest, Page, Pending, PrefixLoad, Restorer, SessionInfo,
    SnapshotError, SnapshotProgress, SnapshotUnderWay, Table, TokenStatus, Usage, WaiterInfo,
};
pub use types::{Fingerprint, InvalidToken, Mode, ModeKind, Seq, SessionId, Slot, Ticket, Token, WallTime};
