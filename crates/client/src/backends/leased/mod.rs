//! Sessions for lock services that have none: each hold is an entry that expires unless it is renewed.
//!
//! Redis, Redlock and lease rows differ in how an entry is created, renewed and ended ([`Store`]). The rules that
//! make the promises hold are the same for all and are in [`session`]. A lock service wakes waiters through
//! [`Wakes`].

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod ended;
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "zookeeper"))]
mod failure;
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "zookeeper"))]
mod note;
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "zookeeper"))]
mod permits;
mod requests;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod wakes;

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) use ended::EndedEntries;
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "zookeeper"))]
pub(crate) use failure::StoreFailure;
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "zookeeper"))]
pub(crate) use note::{Note, Revocation, broken_at_grant, is_revoked, shown_holder};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) use note::{shown_waiter, untold_holder};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) use permits::{
    NotePermit, PERMITS_MAX, PermitTurn, SLOT_PAUSE, other_limit, permit_turn, waiters_ahead,
};
pub(crate) use session::LeasedConn;
pub(crate) use store::{Attempt, Entry, EntryId, Renewed, Store, Tried};
pub(crate) use wakes::{Wake, Wakes};
