//! The pure parts of the client, for our own simulator. Not a stable interface.
//!
//! A simulated client is a [`Machine`] for each session and one [`Carrier`] for each connection:
//! [`Output::Call`]s of the machine go into [`Carrier::submit`] in their order, with the [`CallId`] as
//! handle; [`CarrierOutput::Resolved`] returns as [`Event::Answered`] or [`Event::Failed`],
//! [`CarrierOutput::Push`] as [`Event::Pushed`]. Each new session (`CallKind::Open { fresh: true }` after the
//! first) gets a key of its own ([`Carrier::add`] and [`Carrier::remove`]); outcomes for the earlier key are
//! ignored.

pub use crate::backends::service::addresses::{Address, Addresses};
pub use crate::backends::service::carrier::{
    Carrier, CarrierOutput, CarrierStats, SessionKey, StreamEnding, StreamId,
};
pub use crate::machine::cache::{AfterSection, Cache, CachedLock, CachedSection, RecallAnswer};
pub use crate::machine::{
    AcquireLimits, CallKind, Event, Key, Machine, NotAcquired, Output, Releasing, RunsOn,
};
pub use lockkeeper_backend::{
    AcquireRequest, Answer, Call, CallError, CallId, Granted, HoldChange, Push, Spec,
};
