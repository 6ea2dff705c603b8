//! Clients and locks.

use std::time::Duration;

use lockkeeper::{
    AcquireError, Capabilities, ConnectError, Fenced, Lock, Locks, ShutdownReport, Unfenced, Unsupported,
    Wait,
};

use crate::holds::AnyHold;
use crate::options::LockOptions;

/// One of two types, of locks without tokens and of fenced ones.
#[derive(Clone, Debug)]
pub enum Kinds<P, F> {
    Plain(P),
    Fenced(F),
}

/// A client of a lock service.
pub type AnyLocks = Kinds<Locks<Unfenced>, Locks<Fenced>>;

/// A lock that can be acquired.
pub type AnyLock = Kinds<Lock<Unfenced>, Lock<Fenced>>;

/// Runs code for either kind.
#[macro_export]
macro_rules! with {
    ($kinds:expr, $it:ident => $do:expr) => {
        match $kinds {
            $crate::Kinds::Plain($it) => $do,
            $crate::Kinds::Fenced($it) => $do,
        }
    };
}

macro_rules! each {
    ($kinds:expr, $it:ident => $do:expr) => {
        match $kinds {
            Kinds::Plain($it) => Kinds::Plain($do),
            Kinds::Fenced($it) => Kinds::Fenced($do),
        }
    };
}

impl AnyLocks {
    /// Connects to the lock service of a URL, with a label for people.
    ///
    /// # Errors
    /// As [`Locks::connect`].
    pub async fn connect(url: &str, label: Option<&str>) -> Result<Self, ConnectError> {
        Ok(Self::Plain(match label {
            Some(label) => Locks::connect_as(url, label).await?,
            None => Locks::connect(url).await?,
        }))
    }

    /// The same client, whose holds have tokens.
    ///
    /// # Errors
    /// The lock service has none.
    pub fn fenced(&self) -> Result<Self, Unsupported> {
        Ok(Self::Fenced(match self {
            Self::Plain(locks) => locks.clone().fenced()?,
            Self::Fenced(locks) => locks.clone(),
        }))
    }

    pub fn capabilities(&self) -> &Capabilities {
        with!(self, locks => locks.capabilities())
    }

    /// Ends the client's sessions, which releases its holds.
    pub async fn shutdown(self, limit: Duration) -> ShutdownReport {
        with!(self, locks => locks.shutdown(limit).await)
    }

    pub fn mutex(&self, name: &str, options: &LockOptions) -> AnyLock {
        each!(self, locks => options.on(locks.mutex(name)))
    }

    pub fn read(&self, name: &str, options: &LockOptions) -> AnyLock {
        each!(self, locks => options.on(locks.rw(name).read()))
    }

    pub fn write(&self, name: &str, options: &LockOptions) -> AnyLock {
        each!(self, locks => options.on(locks.rw(name).write()))
    }

    /// `permits`: their number; that in force if it is `None`.
    pub fn semaphore(&self, name: &str, permits: Option<u32>, options: &LockOptions) -> AnyLock {
        match permits {
            Some(permits) => each!(self, locks => options.on(locks.semaphore(name, permits))),
            None => each!(self, locks => options.on(locks.semaphore_in_force(name))),
        }
    }

    pub fn all(&self, names: &[String], options: &LockOptions) -> AnyLock {
        each!(self, locks => options.on(locks.all(names)))
    }

    pub fn rate(&self, name: &str, count: u32, per: Duration, options: &LockOptions) -> AnyLock {
        each!(self, locks => options.on(locks.rate(name, count, per)))
    }

    pub fn striped(&self, name: &str, stripes: u32, key: &[u8], options: &LockOptions) -> AnyLock {
        each!(self, locks => options.on(locks.striped(name, stripes).for_key(key)))
    }
}

impl AnyLock {
    /// The same lock, with another wait if one is given.
    #[must_use]
    pub fn wait(self, wait: Option<Wait>) -> Self {
        match wait {
            None => self,
            Some(wait) => each!(self, lock => lock.wait(wait)),
        }
    }

    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire(self) -> Result<AnyHold, AcquireError> {
        Ok(match self {
            Self::Plain(lock) => AnyHold::Plain(lock.acquire().await?),
            Self::Fenced(lock) => AnyHold::Fenced(lock.acquire().await?),
        })
    }

    /// Acquires the lock if it is free; else `None`.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_acquire(self) -> Result<Option<AnyHold>, AcquireError> {
        Ok(match self {
            Self::Plain(lock) => lock.try_acquire().await?.map(AnyHold::Plain),
            Self::Fenced(lock) => lock.try_acquire().await?.map(AnyHold::Fenced),
        })
    }
}
