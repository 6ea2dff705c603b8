//! Sessions on top of lock services that know none: each hold is an entry that ends by itself unless it is renewed.
//!
//! Redis, Redlock and lease rows differ in how an entry is made, renewed and ended ([`Store`]); what must be done with
//! them so that the promises hold is the same for all and stands in [`session`]. A lock service tells those who wait
//! that it may be their turn by [`Wakes`].

mod session;
mod store;
#[cfg(test)]
mod tests;
mod wakes;

pub(crate) use session::LeasedConn;
pub(crate) use store::{Attempt, Entry, EntryId, Renewed, Store, Tried};
pub(crate) use wakes::{Wake, Wakes};
