//! Recipes of the blocking API.

use std::ops::Deref;
use std::time::Duration;

use lockkeeper_backend::BackendError;

use super::{Guard, Lock, Locks, OwnRuntime};
use crate::error::{AcquireError, HoldError, ReleaseError};
use crate::kind::{Kind, Unfenced};
use crate::recipes::Leader;

/// See [`crate::Election`].
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until somebody campaigns"]
pub struct Election<F: Kind = Unfenced> {
    election: crate::Election<F>,
    runtime: OwnRuntime,
}

/// See [`crate::LeaderWatch`]. An iterator over the leaders, which does not end; [`Iterator::next`] waits for
/// the next one.
#[derive(Debug)]
#[must_use = "it tells nothing unless it is asked"]
pub struct LeaderWatch {
    watch: crate::LeaderWatch,
    runtime: OwnRuntime,
}

/// See [`crate::Striped`].
#[derive(Clone, Debug)]
#[must_use = "it locks nothing itself"]
pub struct Striped<F: Kind = Unfenced> {
    striped: crate::Striped<F>,
    runtime: OwnRuntime,
}

/// See [`crate::Partitions`].
#[derive(Debug)]
#[must_use = "nobody owns anything until members join"]
pub struct Partitions<F: Kind = Unfenced> {
    partitions: crate::Partitions<F>,
    runtime: OwnRuntime,
}

/// See [`crate::PartitionMember`].
#[derive(Debug)]
#[must_use = "a member leaves the group when it is dropped"]
pub struct PartitionMember<F: Kind = Unfenced> {
    member: crate::PartitionMember<F>,
    runtime: OwnRuntime,
}

/// See [`crate::Partition`]: work on it until [`is_leaving`](crate::Partition::is_leaving), on another thread
/// than the member's.
#[derive(Debug)]
#[must_use = "a partition is given up when it is dropped"]
pub struct Partition<F: Kind = Unfenced> {
    partition: crate::Partition<F>,
    runtime: OwnRuntime,
}

impl<F: Kind> Locks<F> {
    /// See [`crate::Locks::election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election<F> {
        Election { election: self.locks.election(name), runtime: self.runtime.clone() }
    }

    /// See [`crate::Locks::rate`].
    pub fn rate(&self, name: impl AsRef<str>, count: u32, per: Duration) -> Lock<F> {
        self.own(self.locks.rate(name, count, per))
    }

    /// See [`crate::Locks::striped`].
    ///
    /// # Panics
    /// If `stripes` is 0.
    pub fn striped(&self, name: impl AsRef<str>, stripes: u32) -> Striped<F> {
        Striped { striped: self.locks.striped(name, stripes), runtime: self.runtime.clone() }
    }

    /// See [`crate::Locks::partitions`].
    pub fn partitions(&self, name: impl AsRef<str>, count: u32) -> Partitions<F> {
        Partitions { partitions: self.locks.partitions(name, count), runtime: self.runtime.clone() }
    }
}

impl<F: Kind> Election<F> {
    /// See [`crate::Election::with`].
    pub fn with(self, change: impl FnOnce(crate::Lock<F>) -> crate::Lock<F>) -> Self {
        Self { election: self.election.with(change), runtime: self.runtime }
    }

    /// See [`crate::Election::campaign`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn campaign(&self, value: impl Into<Vec<u8>>) -> Result<Guard<F>, AcquireError> {
        let guard = self.runtime.wait(self.election.campaign(value))?;
        Ok(Guard { guard, runtime: self.runtime.clone() })
    }

    /// See [`crate::Election::leader`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn leader(&self) -> Result<Option<Leader>, BackendError> {
        self.runtime.wait(self.election.leader())
    }

    /// See [`crate::Election::observe`].
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch { watch: self.election.observe(), runtime: self.runtime.clone() }
    }
}

impl Iterator for LeaderWatch {
    type Item = Result<Option<Leader>, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.runtime.wait(self.watch.next()))
    }
}

impl<F: Kind> Striped<F> {
    /// See [`crate::Striped::stripe`].
    #[must_use]
    pub fn stripe(&self, key: impl AsRef<[u8]>) -> u32 {
        self.striped.stripe(key)
    }

    /// See [`crate::Striped::for_key`].
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Lock<F> {
        Lock { lock: self.striped.for_key(key), runtime: self.runtime.clone() }
    }
}

impl<F: Kind> Partitions<F> {
    /// See [`crate::Partitions::with`].
    pub fn with(self, options: impl Fn(crate::Lock<F>) -> crate::Lock<F> + Send + Sync + 'static) -> Self {
        Self { partitions: self.partitions.with(options), runtime: self.runtime }
    }

    /// See [`crate::Partitions::join`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn join(&self) -> Result<PartitionMember<F>, AcquireError> {
        let member = self.runtime.wait(self.partitions.join())?;
        Ok(PartitionMember { member, runtime: self.runtime.clone() })
    }
}

impl<F: Kind> PartitionMember<F> {
    /// Waits for the next partition, for at most `limit`; `None` if there was none. Call it again and again:
    /// the group's changes are followed within it. See [`crate::PartitionMember::next`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Partition<F>>, HoldError> {
        let Self { member, runtime } = self;
        let next = runtime.wait(async { tokio::time::timeout(limit, member.next()).await });
        match next {
            Ok(partition) => Ok(Some(Partition { partition: partition?, runtime: runtime.clone() })),
            Err(_) => Ok(None),
        }
    }

    /// See [`crate::PartitionMember::leave`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn leave(self) -> Result<(), ReleaseError> {
        self.runtime.wait(self.member.leave())
    }
}

impl<F: Kind> Deref for PartitionMember<F> {
    type Target = crate::PartitionMember<F>;

    fn deref(&self) -> &crate::PartitionMember<F> {
        &self.member
    }
}

impl<F: Kind> Partition<F> {
    /// See [`crate::Partition::release`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn release(self) -> Result<(), ReleaseError> {
        self.runtime.wait(self.partition.release())
    }
}

impl<F: Kind> Deref for Partition<F> {
    type Target = crate::Partition<F>;

    fn deref(&self) -> &crate::Partition<F> {
        &self.partition
    }
}
