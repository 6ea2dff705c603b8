//! Partitions: a group divides numbered partitions among its members.
//!
//! The list of members determines the owner of each partition, by rendezvous hashing: each partition belongs
//! to the member with the highest weight for it. So when a member joins `m` others, it takes one in `m + 1`
//! partitions on average; when a member leaves, only its partitions move. Members may compute this from
//! different lists; a lock for each partition keeps two members from owning it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{Backend, BackendError, BackendErrorKind, HolderState, LockInfo, random_bytes};
use lockkeeper_core::LockName;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::follow::{FeedEvent, Followed, LockFeed};
use crate::error::{AcquireError, HoldError, ReleaseError};
use crate::guard::Guard;
use crate::kind::{Kind, Unfenced};
use crate::lock::Lock;
use crate::locks::Locks;

/// The pause before failed acquires are repeated.
const RETRY: Duration = Duration::from_secs(1);
/// The largest number of partitions.
const PARTITIONS_MAX: u32 = 65_536;

/// Numbered partitions that a group divides among its members ([`Locks::partitions`]).
///
/// Each member gets about the same number, and each partition has at most one owner. Ownership is a hold: a
/// [`Guard`], with a token where the lock service has tokens.
///
/// ```no_run
/// # async fn example(locks: lockkeeper::Locks<lockkeeper::Fenced>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut member = locks.partitions("shop/shards", 64).join().await?;
/// loop {
///     let shard = member.next().await?; // one more is ours
///     tokio::spawn(async move {
///         tokio::select! {
///             () = consume(shard.index(), shard.token()) => {}
///             () = shard.leaving() => {} // another member waits for it: stop
///         }
///         shard.release().await
///     });
/// }
/// # }
/// # async fn consume(_: u32, _: lockkeeper::Token) {}
/// ```
#[derive(Clone)]
#[must_use = "nobody owns anything until members join"]
pub struct Partitions<F: Kind = Unfenced> {
    locks: Locks<F>,
    backend: Arc<dyn Backend>,
    name: String,
    count: u32,
    options: Arc<dyn Fn(Lock<F>) -> Lock<F> + Send + Sync>,
}

impl<F: Kind> Partitions<F> {
    pub(crate) fn new(locks: Locks<F>, backend: Arc<dyn Backend>, name: &str, count: u32) -> Self {
        Self { locks, backend, name: name.to_owned(), count, options: Arc::new(|lock| lock) }
    }

    /// Sets options of the locks, such as their ttl. Use the same session options for all, so that a dead
    /// member loses all its partitions at once.
    pub fn with(self, options: impl Fn(Lock<F>) -> Lock<F> + Send + Sync + 'static) -> Self {
        Self { options: Arc::new(options), ..self }
    }

    /// Joins the group. All members give the same number of partitions.
    ///
    /// # Errors
    /// [`AcquireError`]; also if the group divides another number of partitions, or if the lock service can't
    /// list locks.
    pub async fn join(&self) -> Result<PartitionMember<F>, AcquireError> {
        if !(1..=PARTITIONS_MAX).contains(&self.count) {
            return Err(AcquireError::Invalid {
                option: "partitions",
                value: self.count.to_string(),
                allowed: format!("1 to {PARTITIONS_MAX} are allowed"),
            });
        }
        let members = LockName::parse(&format!("{}/members", self.name))?;
        self.check_others(&members).await?;
        let id = u64::from_be_bytes(random_bytes()?);
        let membership = self.lock(&format!("members/{}/{id:016x}", self.count)).acquire().await?;
        // Another member may have joined at the same time.
        self.check_others(&members).await?;
        Ok(PartitionMember {
            partitions: self.clone(),
            id,
            membership,
            feed: LockFeed::new(self.backend.clone(), Followed::Below(members)),
            members: BTreeSet::new(),
            shares: BTreeMap::new(),
            acquiring: JoinSet::new(),
            retry_at: None,
            returned: unbounded_channel(),
        })
    }

    /// Checks that the other members divide the same number of partitions.
    async fn check_others(&self, members: &LockName) -> Result<(), BackendError> {
        let others = self.backend.list(Some(members.clone())).await?;
        match others.iter().filter_map(member).find(|(_, count)| *count != self.count) {
            None => Ok(()),
            Some((_, have)) => {
                let (name, asked) = (&self.name, self.count);
                let what = format!(
                    "the group `{name}` divides {have} partitions, not {asked}; all members give the same number"
                );
                Err(BackendError::new(BackendErrorKind::Refused, what))
            }
        }
    }

    fn lock(&self, below: &str) -> Lock<F> {
        (self.options)(self.locks.mutex(format!("{}/{below}", self.name)))
    }
}

impl<F: Kind> fmt::Debug for Partitions<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions")
            .field("name", &self.name)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// A member of a group that divides partitions. Dropping it leaves the group; its partitions must then be
/// given up too.
#[must_use = "a member leaves the group when it is dropped"]
pub struct PartitionMember<F: Kind = Unfenced> {
    partitions: Partitions<F>,
    id: u64,
    membership: Guard<F>,
    feed: LockFeed,
    /// The other members, as of the last event.
    members: BTreeSet<u64>,
    /// The partitions that belong to this member, or that it has not given up yet.
    shares: BTreeMap<u32, Share>,
    /// The acquires of partitions.
    acquiring: JoinSet<(u32, Result<Guard<F>, AcquireError>)>,
    /// When failed acquires are repeated.
    retry_at: Option<Instant>,
    /// Reports partitions that were given up.
    returned: (UnboundedSender<u32>, UnboundedReceiver<u32>),
}

enum Share {
    Acquiring(AbortHandle),
    Owned(CancellationToken),
}

impl<F: Kind> PartitionMember<F> {
    /// Waits for the next partition of which this member becomes the owner. Must be called in a loop: it also
    /// processes the group's changes, including those after which a partition must be given up.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`HoldError::Lost`] once the membership is lost: the owned partitions are lost too, or will be. Join
    /// again. [`HoldError::NotAcquired`] if a partition can't be acquired; a later call tries again, after a
    /// second.
    pub async fn next(&mut self) -> Result<Partition<F>, HoldError> {
        let lost = self.membership.lost();
        loop {
            tokio::select! {
                biased;
                () = lost.cancelled() => {
                    self.give_up_all();
                    self.membership.valid_until()?;
                }
                Some(index) = self.returned.1.recv() => {
                    self.shares.remove(&index);
                    self.decide(index);
                }
                () = sleep_until(self.retry_at.unwrap_or_else(Instant::now)), if self.retry_at.is_some() => {
                    self.retry_at = None;
                    self.divide();
                }
                Some(acquired) = self.acquiring.join_next_with_id() => {
                    // An aborted acquire was removed before.
                    let Ok((task, (index, acquired))) = acquired else { continue };
                    let is_current =
                        |share: &Share| matches!(share, Share::Acquiring(acquiring) if acquiring.id() == task);
                    if !self.shares.get(&index).is_some_and(is_current) {
                        // The partition belongs to another member by now: the guard is dropped.
                        continue;
                    }
                    self.shares.remove(&index);
                    if acquired.is_err() {
                        self.retry_at = Some(Instant::now() + RETRY);
                    }
                    return Ok(self.own(index, acquired?));
                }
                seen = self.feed.next() => match seen {
                    Ok(seen) => self.seen(seen),
                    // Without news of the others, the division stays as it is while the membership lasts.
                    Err(error) if error.kind.may_pass() => {}
                    Err(error) => return Err(AcquireError::Backend(error).into()),
                },
            }
        }
    }

    /// Leaves the group, so that others need not wait for this member's ttl. Its partitions must be given up
    /// ([`Partition::leaving`]).
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub async fn leave(self) -> Result<(), ReleaseError> {
        let membership = self.membership.reenter();
        drop(self);
        membership.release().await
    }

    /// The number of partitions that it owns at present, including those that it must give up.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.shares.values().filter(|share| matches!(share, Share::Owned(_))).count()
    }

    fn own(&mut self, index: u32, guard: Guard<F>) -> Partition<F> {
        let leaving = CancellationToken::new();
        self.shares.insert(index, Share::Owned(leaving.clone()));
        Partition { index, guard: Some(guard), leaving, returned: self.returned.0.clone() }
    }

    fn seen(&mut self, seen: FeedEvent) {
        let mut members = match &seen {
            FeedEvent::All(_) => BTreeSet::new(),
            FeedEvent::Changed(_) => self.members.clone(),
        };
        let locks = match seen {
            FeedEvent::All(locks) => locks,
            FeedEvent::Changed(lock) => vec![lock],
        };
        for (lock, (id, _)) in locks.iter().filter_map(|lock| Some((lock, member(lock)?))) {
            let is_held = lock.holds.iter().any(|holder| !matches!(holder.state, HolderState::Closed { .. }));
            if is_held {
                members.insert(id)
            } else {
                members.remove(&id)
            };
        }
        members.remove(&self.id);
        if members != self.members || self.shares.is_empty() {
            self.members = members;
            self.divide();
        }
    }

    /// Acquires the partitions that belong to this member, and gives up the others.
    fn divide(&mut self) {
        for index in 0..self.partitions.count {
            self.decide(index);
        }
    }

    fn decide(&mut self, index: u32) {
        let own = weight(self.id, index);
        let is_ours = self.members.iter().all(|&other| weight(other, index) < own);
        match self.shares.get(&index) {
            None if is_ours => {
                let lock = self.partitions.lock(&index.to_string());
                let acquiring = self.acquiring.spawn(async move { (index, lock.acquire().await) });
                self.shares.insert(index, Share::Acquiring(acquiring));
            }
            Some(Share::Acquiring(acquiring)) if !is_ours => {
                acquiring.abort();
                self.shares.remove(&index);
            }
            Some(Share::Owned(leaving)) if !is_ours => leaving.cancel(),
            _ => {}
        }
    }

    fn give_up_all(&mut self) {
        self.acquiring.abort_all();
        for share in std::mem::take(&mut self.shares).into_values() {
            if let Share::Owned(leaving) = share {
                leaving.cancel();
            }
        }
    }
}

impl<F: Kind> Drop for PartitionMember<F> {
    fn drop(&mut self) {
        self.give_up_all();
    }
}

impl<F: Kind> fmt::Debug for PartitionMember<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionMember")
            .field("partitions", &self.partitions)
            .field("membership", &self.membership)
            .field("owned", &self.owned())
            .finish_non_exhaustive()
    }
}

/// A partition that this member owns; a [`Guard`] of its lock. Dropping it gives the partition up in the
/// background.
#[must_use = "a partition is given up when it is dropped"]
pub struct Partition<F: Kind = Unfenced> {
    index: u32,
    /// `None` only during the drop.
    guard: Option<Guard<F>>,
    leaving: CancellationToken,
    returned: UnboundedSender<u32>,
}

impl<F: Kind> Partition<F> {
    /// Its number, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether the partition must be given up.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled() || self.lost().is_cancelled()
    }

    /// Returns once the partition must be given up: it belongs to another member, which waits for it, or its
    /// hold is lost. Cancel-safe.
    pub async fn leaving(&self) {
        let lost = self.lost();
        tokio::select! {
            () = self.leaving.cancelled() => {}
            () = lost.cancelled() => {}
        }
    }

    /// Gives the partition up, and waits for the answer.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }
}

impl<F: Kind> Deref for Partition<F> {
    type Target = Guard<F>;

    fn deref(&self) -> &Guard<F> {
        self.guard.as_ref().expect("it is there until the partition is given up")
    }
}

impl<F: Kind> Drop for Partition<F> {
    fn drop(&mut self) {
        drop(self.guard.take());
        // The member may have left.
        let _ = self.returned.send(self.index);
    }
}

impl<F: Kind> fmt::Debug for Partition<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("index", &self.index)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}

/// The member to which a lock belongs, and the number of partitions that it divides.
fn member(lock: &LockInfo) -> Option<(u64, u32)> {
    let mut segments = lock.name.as_str().rsplit('/');
    let id = u64::from_str_radix(segments.next()?, 16).ok()?;
    Some((id, segments.next()?.parse().ok()?))
}

/// The weight of a partition for a member, by the finalizer of SplitMix64. All members must compute the same
/// weights, so this must never change.
fn weight(member: u64, partition: u32) -> u64 {
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(mix(member) ^ (u64::from(partition) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(members: &[u64]) -> Vec<u64> {
        (0..1024).map(|index| *members.iter().max_by_key(|&&member| weight(member, index)).unwrap()).collect()
    }

    /// Eight members with ids as drawn by chance.
    fn eight() -> Vec<u64> {
        (1..=8).map(|seed| weight(seed, 7)).collect()
    }

    #[test]
    fn members_that_stay_exchange_nothing() {
        let members = eight();
        let before = owners(&members);
        for gone in 0..8 {
            let rest: Vec<u64> = members.iter().copied().filter(|member| *member != members[gone]).collect();
            for (before, after) in before.iter().zip(owners(&rest)) {
                assert!(*before == after || *before == members[gone]);
            }
        }
    }

    #[test]
    fn shares_are_about_equal() {
        for member in eight() {
            let share = owners(&eight()).iter().filter(|owner| **owner == member).count();
            // 128, with a standard deviation of 10.6.
            assert!((90..=170).contains(&share), "{share}");
        }
    }

    #[test]
    fn weights_are_those_of_earlier_versions() {
        assert_eq!(weight(0, 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(weight(0x0123_4567_89ab_cdef, 42), 0xdb8b_7c9c_80b8_a2cc);
    }
}
