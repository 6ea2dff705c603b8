//! The same API for programs without an async runtime. It creates a runtime internally.
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
//! Every call that waits for the lock service panics inside an async runtime, because it would block a worker thread:
//! use the async API there.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::TokenStatus;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{
    AcquireError, BackendError, ConnectError, Lost, ReleaseError, RunError, Unsupported, VerifyError,
};
use crate::kind::{Fenced, Kind, Unfenced};
use crate::{BreakOrder, Broken, Capabilities, LockInfo, LockName, ShutdownReport, Token};

/// See [`crate::Locks`].
#[derive(Clone)]
pub struct Locks<F: Kind = Unfenced> {
    locks: crate::Locks<F>,
    runtime: Own,
}

/// See [`crate::Lock`]. Options are set with [`Lock::with`].
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<F: Kind = Unfenced> {
    lock: crate::Lock<F>,
    runtime: Own,
}

/// See [`crate::Guard`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<F: Kind> {
    guard: crate::Guard<F>,
    runtime: Own,
}

/// The runtime on which all calls of a client run.
#[derive(Clone, Debug)]
struct Own(Arc<Runtime>);

impl Own {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        assert!(
            Handle::try_current().is_err(),
            "lockkeeper::blocking was called inside of an async runtime; use the async API of the same names there"
        );
        self.0.block_on(future)
    }
}

impl Locks<Unfenced> {
    /// See [`crate::Locks::connect`].
    ///
    /// # Errors
    /// Those of the async method.
    ///
    /// # Panics
    /// Inside an async runtime, and if no runtime can be created.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().expect("a runtime of one thread can be made");
        let runtime = Own(Arc::new(runtime));
        let locks = runtime.wait(crate::Locks::connect(url))?;
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
    pub fn inspect(&self, name: &LockName) -> Result<LockInfo, BackendError> {
        self.runtime.wait(self.locks.inspect(name))
    }

    /// See [`crate::Locks::list`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn list(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        self.runtime.wait(self.locks.list(prefix))
    }

    /// See [`crate::Locks::check_token`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn check_token(&self, name: &LockName, token: u64) -> Result<TokenStatus, BackendError> {
        self.runtime.wait(self.locks.check_token(name, token))
    }

    /// See [`crate::Locks::break_hold`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn break_hold(&self, order: BreakOrder) -> Result<Broken, BackendError> {
        self.runtime.wait(self.locks.break_hold(order))
    }

    /// See [`crate::Locks::shutdown`].
    pub fn shutdown(self, limit: Duration) -> ShutdownReport {
        self.runtime.wait(self.locks.shutdown(limit))
    }

    fn own(&self, lock: crate::Lock<F>) -> Lock<F> {
        Lock { lock, runtime: self.runtime.clone() }
    }
}

impl<F: Kind> Lock<F> {
    /// Sets options: `lock.with(|lock| lock.ttl(ttl).wait(Wait::No))`.
    pub fn with(self, change: impl FnOnce(crate::Lock<F>) -> crate::Lock<F>) -> Self {
        Self { lock: change(self.lock), runtime: self.runtime }
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

    /// Runs `body` under the lock and releases the lock afterwards. The body must check [`loss`](crate::Guard::loss)
    /// from time to time; a lost lock does not stop it.
    ///
    /// # Errors
    /// As [`crate::Lock::run`].
    pub fn run<T, E>(&self, body: impl FnOnce(&Guard<F>) -> Result<T, E>) -> Result<T, RunError<T, E>> {
        let guard = self.acquire()?;
        let result = body(&guard);
        if let Some(cause) = guard.loss() {
            return Err(RunError::Lost { cause, body: Some(result) });
        }
        match (result, guard.release()) {
            (Ok(value), Ok(())) => Ok(value),
            (Ok(value), Err(source)) => Err(RunError::ReleaseFailed { value, source }),
            (Err(error), _) => Err(RunError::Body(error)),
        }
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
