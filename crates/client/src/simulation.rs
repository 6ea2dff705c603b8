//! The pure parts of the client, for our own simulator. No interface to rely on.
//!
//! A simulated client is a [`Machine`] for each session and one [`Carrier`] for each connection: [`Output::Call`]s of
//! the machine go into [`Carrier::submit`], with the [`CallId`] as handle, in the order in which they come out;
//! [`Outcome::Resolved`] goes back as [`Event::Answered`] or [`Event::Failed`], [`Outcome::Push`] as
//! [`Event::Pushed`]. A session that is opened anew (`What::Open { fresh: true }` after the first) gets a key of its
//! own ([`Carrier::add`] and [`Carrier::remove`]); what the earlier key still says is not listened to.

pub use crate::backend::{Call, CallError, Wanted};
pub use crate::backends::service::addresses::{Address, Addresses};
pub use crate::backends::service::carrier::{Carrier, Ending, Outcome, Seen, SessionKey, StreamId};
pub use crate::machine::{
    Answer, By, CallId, Event, Granted, Key, Machine, NotAcquired, Output, Push, Releasing, Spec, Want, What,
};
