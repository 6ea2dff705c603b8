//! Distributed locks that stay safe even when a holder stalls.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = lockkeeper::Locks::connect("memory:").await?;
//! let guard = locks.mutex("jobs/nightly").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Enter before you read
//! A holder that stalls for longer than its lease does not notice that another client has acquired the lock.
//! Every write therefore carries the hold's fencing token, and the resource rejects tokens below the highest
//! one it has seen. Checking writes alone still loses updates, because the data read earlier may be stale. A
//! fenced section therefore *enters* the fence before it reads:
//!
//! ```
//! use std::time::Duration;
//! # struct Fence(std::cell::Cell<u64>);
//! # impl Fence {
//! #     async fn enter(&self, token: lockkeeper::Token) -> Result<(), Stale> {
//! #         (token.get() >= self.0.get()).then(|| self.0.set(token.get())).ok_or(Stale)
//! #     }
//! #     async fn read(&self) -> u64 { 41 }
//! #     async fn write(&self, token: lockkeeper::Token, _: u64) -> Result<(), Stale> {
//! self.enter(token).await }
//! # }
//! # #[derive(Debug, thiserror::Error)] #[error("stale")] struct Stale;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = Fence(std::cell::Cell::new(0));
//! let locks = lockkeeper::Locks::connect("memory:").await?.fenced()?;
//! let lock = locks.mutex("orders/42").ttl(Duration::from_secs(10));
//! lock.run(async |held| {
//!     store.enter(held.token()).await?; // from here on, older holders can't write
//!     let count = store.read().await;
//!     store.write(held.token(), count + 1).await?;
//!     anyhow::Ok(())
//! })
//! .await?;
//! # Ok(()) }
//! ```
//!
//! [`Locks::fenced`] checks once whether the lock service issues tokens, and returns an error if it does not.
//! `Guard::token` exists only on [`Guard`]`<`[`Fenced`]`>`, so code that needs a token does not compile
//! without one.
//!
//! # Loss
//! A hold depends on a lease, which a thread of the library renews. If no renewal is acknowledged in time,
//! the hold is lost at its deadline, before any other client can acquire the lock (P5): [`Guard::lost`]
//! fires, and [`Guard::check`] and [`Guard::valid_until`] return the loss without I/O. A loss is final: stop
//! the work and acquire again. [`Lock::run`] then returns [`HoldError::Lost`] unless its body has failed;
//! [`OnLost`] selects how the body is treated. A hold is also lost by an operator's break, after
//! [`Lock::max_hold`], and by [`Locks::shutdown`]; [`LossCause`] gives the reason.
//!
//! Deadlines are measured on [`BootInstant`], which keeps counting during suspend. No decision depends on a
//! wall clock.
//!
//! # Runtime and cancellation
//! The async API needs a tokio runtime with I/O and time enabled for waiting and for [`Locks::shutdown`].
//! Renewals run on a separate thread: a blocked or starved runtime does not lose locks. Guards may be dropped
//! anywhere, including outside of a runtime and after the runtime has ended; dropping never waits for a
//! network. Programs without a runtime use [`blocking`].
//!
//! After the future of [`Lock::acquire`] was dropped at any await point, the client ends the hold or the
//! queued request in the background, and likewise a dropped [`Guard`]. [`Locks::shutdown`] waits for that; if
//! the process ends first, they end with their ttl. Dropping the future of [`Guard::release`] lets the
//! release continue in the background. A future that is kept alive but not polled may hold the lock without
//! returning it.
//!
//! Promises are cited as P1–P12 (`docs/SAFETY.md`), rules by the numbers of `docs/table-rules.md` (N1, R4 …).
//!
//! # Code map
//!
//! For people who change the library.
//!
//! - `locks.rs`, `lock.rs`, `guard.rs`: the public types; `prepared.rs`: cached locks
//! - `machine/mod.rs`: sessions, leases, retries, loss: all decisions, pure
//! - `session.rs`, `session/hold.rs`, `session/cached.rs`: executes the decisions, on the caller's task and
//!   on the lease thread
//! - `backends/mod.rs`: the table of all lock services; `memory:` and our own are beside it, the others in
//!   `crates/backends`, over the traits of `crates/backend`
//! - `recipes/mod.rs`, `once/mod.rs`: elections, partitions, and work that is done once
//! - `error.rs`, `guard.rs`: errors and losses of a lock; those of a lock service are in `crates/backend`
//!
//! `crates/contract` has the contract that every lock service is tested against.

#![warn(missing_debug_implementations)]

/// Compiles the examples of the guide.
#[cfg(all(doctest, feature = "postgres", feature = "service"))]
#[doc = include_str!("../../../docs/recipes.md")]
pub struct Guide;

pub mod backends;
pub mod blocking;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod guard;
mod kind;
mod lock;
mod locks;
mod locks_core;
#[cfg(not(feature = "machine"))]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "public with the feature `machine` only")]
mod machine;
#[cfg(feature = "machine")]
#[allow(
    missing_docs,
    reason = "the fields of calls and answers are explained where the machine handles them"
)]
pub mod machine;
mod observe;
pub mod once;
mod prepared;
mod recipes;
mod recorder;
mod session;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;

pub use error::{AcquireError, ChangeError, HoldError, Lost, ReleaseError, VerifyError};
pub use guard::{Guard, Held};
pub use kind::{Fenced, Kind, Unfenced};
pub use lock::{Lock, OnLost, Wait};
pub use lockkeeper_backend::{
    BackendError, BackendErrorKind, Backup, BootInstant, BreakNotice, BreakOrder, Broken, Busy, Capabilities,
    ClusterInfo, ConnectError, EndSessionOrder, EndedSession, Fencing, Finding, HolderInfo, HolderState,
    LockInfo, LossCause, MembersChange, NodeDisk, NodeInfo, NodePart, NodeReport, NodeRole, Promise,
    Promises, Reach, ServiceStatus, SessionInfo, Unsupported, VirtualClock, WaiterInfo, Watch, WatchEvent,
};
pub use lockkeeper_core::{
    InvalidToken, LockName, ModeKind as Mode, NameError, PermitGrant, Rejection, Slot, Token, TokenStatus,
};
pub use locks::{Locks, RwLock, ShutdownReport};
pub use recipes::{Election, Leader, LeaderWatch, Partition, PartitionMember, Partitions, Striped};

/// URLs of lock services.
pub mod url {
    pub use lockkeeper_backend::{Host, Password, Url, UrlError, exposed};
}
