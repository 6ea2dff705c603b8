//! Sessions for lock services that have none: each hold is an entry that expires unless it is renewed.
//!
//! Redis, Redlock and lease rows differ in how an entry is created, renewed and ended ([`Store`]). The rules
//! that make the promises hold are the same for all and are in `session`. A lock service wakes waiters
//! through [`Wakes`].
//!
//! Invariant: a keep-alive renews every entry that holds, waits or may hold, and no entry that is being
//! released; it never creates an entry (P5). Otherwise it would acquire again a lock that was released or
//! lost.

mod ended;
mod failure;
mod note;
mod permits;
mod requests;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod wakes;

pub use ended::EndedEntries;
pub use failure::StoreFailure;
pub use note::{Note, Revocation, broken_at_grant, is_revoked, shown_holder, shown_waiter, untold_holder};
pub use permits::{NotePermit, PERMITS_MAX, PermitTurn, SLOT_PAUSE, other_limit, permit_turn, waiters_ahead};
pub use session::LeasedConn;
pub use store::{Attempt, Entry, EntryId, Renewed, Store, Tried};
pub use wakes::{Wake, Wakes};
