//! The API for programs without an async runtime: a runtime of its own runs the async one. What only
//! operators of `lockkeeper://` need (members, backups) is in the async API; so is `once`, whose stores are
//! async.
//!
//! ```
//! use lockkeeper::blocking::Locks;
//!
//! let locks = Locks::connect("memory:").unwrap().fenced().unwrap();
//! let guard = locks.mutex("jobs/nightly").acquire().unwrap();
//! println!("token {}", guard.token());
//! guard.release().unwrap();
//! ```
//!
//! # Panics
//! Every call that waits for the lock service panics on a thread that drives async tasks, because it would
//! block them: use the async API there, or call from `tokio::task::spawn_blocking`.

mod recipes;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind, ConnectError, Unsupported};
use lockkeeper_core::TokenStatus;
use tokio::runtime::{Builder, Runtime};

use crate::error::{AcquireError, HoldError, Lost, ReleaseError, VerifyError};
use crate::kind::{Fenced, Kind, Unfenced};
use crate::lock::run_result;
use crate::{
    BreakOrder, Broken, Capabilities, ChangeError, EndSessionOrder, EndedSession, LockInfo, SessionInfo,
    ShutdownReport, Token, Wait, WatchEvent,
};

pub use recipes::{Election, LeaderWatch, Partition, PartitionMember, Partitions, Striped};

/// See [`crate::Locks`].
#[derive(Clone, Debug)]
pub struct Locks<F: Kind = Unfenced> {
    locks: crate::Locks<F>,
    runtime: OwnRuntime,
}

/// See [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<F: Kind = Unfenced> {
    lock: crate::Lock<F>,
    runtime: OwnRuntime,
}

/// See [`crate::Guard`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<F: Kind = Unfenced> {
    guard: crate::Guard<F>,
    runtime: OwnRuntime,
}

/// See [`crate::Watch`]. An iterator over the events; [`Iterator::next`] waits for the next one.
#[derive(Debug)]
#[must_use = "a watch ends when it is dropped"]
pub struct Watch {
    watch: crate::Watch,
    runtime: OwnRuntime,
}

/// The runtime on which all calls of a client run.
#[derive(Clone)]
struct OwnRuntime(Arc<RuntimeCell>);

impl std::fmt::Debug for OwnRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnRuntime")
    }
}

/// `None` only while it is dropped.
struct RuntimeCell(Option<Runtime>);

impl OwnRuntime {
    fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::new(RuntimeCell(Some(Builder::new_current_thread().enable_all().build()?)))))
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.0.0.as_ref().expect("it is there until the last handle is dropped");
        runtime.block_on(future)
    }
}

impl Drop for RuntimeCell {
    fn drop(&mut self) {
        // A runtime's own drop may block, and so panics in an async task, where a guard or client may well be
        // dropped.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Locks<Unfenced> {
    /// See [`crate::Locks::connect`].
    ///
    /// # Errors
    /// Those of the async method.
    ///
    /// # Panics
    /// On a thread that drives async tasks.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connected(crate::Locks::connect(url))
    }

    /// See [`crate::Locks::connect_as`].
    ///
    /// # Errors
    /// Those of the async method.
    ///
    /// # Panics
    /// On a thread that drives async tasks.
    pub fn connect_as(url: &str, label: &str) -> Result<Self, ConnectError> {
        Self::connected(crate::Locks::connect_as(url, label))
    }

    fn connected(
        connecting: impl Future<Output = Result<crate::Locks, ConnectError>>,
    ) -> Result<Self, ConnectError> {
        let runtime = OwnRuntime::new().map_err(|error| {
            BackendError::caused(BackendErrorKind::Operator, "no runtime could be created", error)
        })?;
        let locks = runtime.wait(connecting)?;
        Ok(Self { locks, runtime })
    }

    /// See [`crate::Locks::fenced`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn fenced(self) -> Result<Locks<Fenced>, Unsupported> {
        Ok(Locks { locks: self.locks.fenced()?, runtime: self.runtime })
    }
}

impl<F: Kind> Locks<F> {
    /// See [`crate::Locks::mutex`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock<F> {
        self.own(self.locks.mutex(name))
    }

    /// The readers' lock of [`crate::Locks::rw`].
    pub fn read(&self, name: impl AsRef<str>) -> Lock<F> {
        self.own(self.locks.rw(name).read())
    }

    /// The writer's lock of [`crate::Locks::rw`].
    pub fn write(&self, name: impl AsRef<str>) -> Lock<F> {
        self.own(self.locks.rw(name).write())
    }

    /// See [`crate::Locks::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock<F> {
        self.own(self.locks.semaphore(name, permits))
    }

    /// See [`crate::Locks::semaphore_in_force`].
    pub fn semaphore_in_force(&self, name: impl AsRef<str>) -> Lock<F> {
        self.own(self.locks.semaphore_in_force(name))
    }

    /// See [`crate::Locks::set_limit`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn set_limit(&self, name: impl AsRef<str>, permits: Option<u32>) -> Result<(), BackendError> {
        self.runtime.wait(self.locks.set_limit(name, permits))
    }

    /// See [`crate::Locks::all`].
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock<F> {
        self.own(self.locks.all(names))
    }

    /// See [`crate::Locks::capabilities`].
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.locks.capabilities()
    }

    /// See [`crate::Locks::inspect`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo, BackendError> {
        self.runtime.wait(self.locks.inspect(name))
    }

    /// See [`crate::Locks::list`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn list(&self, prefix: Option<&str>) -> Result<Vec<LockInfo>, BackendError> {
        self.runtime.wait(self.locks.list(prefix))
    }

    /// See [`crate::Locks::check_token`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn check_token(&self, name: impl AsRef<str>, token: Token) -> Result<TokenStatus, BackendError> {
        self.runtime.wait(self.locks.check_token(name, token))
    }

    /// See [`crate::Locks::break_hold`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn break_hold(&self, order: BreakOrder) -> Result<Broken, BackendError> {
        self.runtime.wait(self.locks.break_hold(order))
    }

    /// See [`crate::Locks::sessions`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, BackendError> {
        self.runtime.wait(self.locks.sessions())
    }

    /// See [`crate::Locks::end_session`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn end_session(&self, order: EndSessionOrder) -> Result<EndedSession, BackendError> {
        self.runtime.wait(self.locks.end_session(order))
    }

    /// See [`crate::Locks::watch`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn watch(&self, prefix: Option<&str>) -> Result<Watch, BackendError> {
        // A watch starts a task on the current runtime.
        let watch = self.runtime.wait(async { self.locks.watch(prefix) })?;
        Ok(Watch { watch, runtime: self.runtime.clone() })
    }

    /// See [`crate::Locks::shutdown`].
    pub fn shutdown(self, limit: Duration) -> ShutdownReport {
        self.runtime.wait(self.locks.shutdown(limit))
    }

    fn own(&self, lock: crate::Lock<F>) -> Lock<F> {
        Lock { lock, runtime: self.runtime.clone() }
    }
}

impl Iterator for Watch {
    type Item = Result<WatchEvent, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.wait(self.watch.next())
    }
}

/// Options of the async lock, by the same names.
macro_rules! options {
    ($($name:ident($($value:ident: $type:ty),*)),* $(,)?) => {
        $(
            #[doc = concat!("See [`crate::Lock::", stringify!($name), "`].")]
            pub fn $name(self $(, $value: $type)*) -> Self {
                Self { lock: self.lock.$name($($value),*), runtime: self.runtime }
            }
        )*
    };
}

impl<F: Kind> Lock<F> {
    options! {
        ttl(ttl: Duration),
        no_renew(),
        wait(wait: Wait),
        subtree(),
        max_hold(max: Duration),
        min_hold(min: Duration),
        keep_closed(duration: Duration),
        lock_delay(delay: Duration),
        linger(linger: Duration),
        holding_token(token: Token),
        min_validity(need: Duration),
        cached(),
        cache_for(idle: Duration),
        grace(grace: Duration),
        value(value: impl Into<Vec<u8>>),
        meta(key: impl Into<String>, value: impl Into<String>),
        on_queued(tell: impl Fn(u64) + Send + Sync + 'static),
        on_refused(tell: impl Fn(&BackendError) + Send + Sync + 'static),
    }

    /// See [`crate::Lock::holding`].
    pub fn holding<G: Kind>(self, guard: &Guard<G>) -> Self {
        Self { lock: self.lock.holding(&guard.guard), runtime: self.runtime }
    }

    /// See [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn acquire(&self) -> Result<Guard<F>, AcquireError> {
        let guard = self.runtime.wait(self.lock.acquire())?;
        Ok(Guard { guard, runtime: self.runtime.clone() })
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn try_acquire(&self) -> Result<Option<Guard<F>>, AcquireError> {
        let guard = self.runtime.wait(self.lock.try_acquire())?;
        Ok(guard.map(|guard| Guard { guard, runtime: self.runtime.clone() }))
    }

    /// Runs `body` under the lock and releases the lock afterwards. The body must check
    /// [`loss`](crate::Guard::loss) from time to time; a lost lock does not stop it.
    ///
    /// # Errors
    /// As [`crate::Lock::run`].
    pub fn run<T, E: From<HoldError>>(&self, body: impl FnOnce(&Guard<F>) -> Result<T, E>) -> Result<T, E> {
        let guard = self.acquire().map_err(HoldError::from)?;
        let result = body(&guard);
        let released = match guard.valid_until() {
            Err(lost) => Err(ReleaseError::AlreadyLost(lost)),
            Ok(_) => guard.release(),
        };
        run_result(Some(result), released)
    }
}

impl<F: Kind> Guard<F> {
    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn release(self) -> Result<(), ReleaseError> {
        self.runtime.wait(self.guard.release())
    }

    /// See [`crate::Guard::verify`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn verify(&self) -> Result<(), VerifyError> {
        self.runtime.wait(self.guard.verify())
    }

    /// See [`crate::Guard::check`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn check(&self, need: Duration) -> Result<(), Lost> {
        self.guard.check(need)
    }

    /// See [`crate::Guard::set_value`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn set_value(&self, value: impl Into<Vec<u8>>) -> Result<(), ChangeError> {
        self.runtime.wait(self.guard.set_value(value))
    }

    /// See [`crate::Guard::downgrade`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn downgrade(&self) -> Result<(), ChangeError> {
        self.runtime.wait(self.guard.downgrade())
    }

    /// See [`crate::Guard::reenter`].
    pub fn reenter(&self) -> Self {
        Self { guard: self.guard.reenter(), runtime: self.runtime.clone() }
    }
}

impl Guard<Fenced> {
    /// See [`crate::Guard::token`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.guard.token()
    }
}

impl<F: Kind> std::ops::Deref for Guard<F> {
    type Target = crate::Guard<F>;
    fn deref(&self) -> &crate::Guard<F> {
        &self.guard
    }
}
