//! Locks that stay closed after a hold: the holder's key gets another lease, and is deleted with that.
//!
//! A key keeps its place in the queue if its lease is replaced. While an entry holds, its key has a lease
//! that is longer than the ttl by the time for which the lock is to stay closed after an expiry; with its
//! release it gets one for the rest. A waiter's key has a lease for its ttl only: a dead waiter closes
//! nothing.

use std::time::Duration;

use lockkeeper_backend::leased::{Entry, Note, Renewed, broken_at_grant};
use lockkeeper_core::End;
use tokio::time::Instant;

use super::api::{LeaseTimeToLiveRequest, TxnRequest};
use super::connection::EtcdFailure;
use super::layout::key;
use super::leases::EntryLease;
use super::store::{EtcdStore, put_unchanged, ranges, read, state, unreadable};

/// A write of a key that meets other ones is tried again so often.
const REWRITES_MAX: usize = 5;

impl EtcdStore {
    /// Gives the key of an entry that holds the longer lease, if its lock is to stay closed after an expiry.
    pub(super) async fn prepare_closing(
        &self,
        entry: &Entry,
        lease: EntryLease,
        deadline: Instant,
    ) -> Result<EntryLease, EtcdFailure> {
        let closes = entry.closed_after_expiry();
        if closes.is_zero() || lease.holds {
            return Ok(lease);
        }
        let closing = match lease.closing {
            // An earlier attempt got no answer.
            Some(closing) => closing,
            None => self.grant_lease(entry.ttl + closes, deadline).await?,
        };
        let lease = EntryLease { closing: Some(closing), ..lease };
        // From now on it is renewed, too.
        self.leases.set(&entry.id, lease);
        let closes_ms = u64::try_from(closes.as_millis()).unwrap_or(u64::MAX);
        let closes = |note: Note| Some(Note { closes_ms, ..note });
        match self.rewrite(entry, lease, Some(closing), closes, deadline).await? {
            // A renewal that began before it knew of this lease may be acknowledged by now.
            Renewed::Kept if self.keep_alive(&[closing], deadline).await? == [true] => Ok(lease),
            Renewed::Kept => Err(EtcdFailure::IN_DOUBT),
            Renewed::Revoked => Err(EtcdFailure::Refused(broken_at_grant())),
            // Another client deleted it: the next attempt creates another.
            Renewed::Gone => Err(EtcdFailure::NOT_DONE),
        }
    }

    /// Ends the hold of an entry whose lock stays closed then.
    pub(super) async fn close(
        &self,
        entry: &Entry,
        lease: EntryLease,
        doubt: bool,
        deadline: Instant,
    ) -> Result<End, EtcdFailure> {
        let left = self.grant_lease(entry.keep_closed, deadline).await?;
        let closed = |note: Note| Some(Note { closed: true, ..note });
        let was = self.rewrite(entry, lease, Some(left), closed, deadline).await?;
        if doubt {
            // A late attempt can't create another key.
            match self.end_lease(lease.id, deadline).await {
                Ok(()) | Err(EtcdFailure::Answered(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        // The key's name is in use: its first lease is not used again.
        self.leases.remove(&entry.id);
        if let Some(closing) = lease.closing {
            // If this fails, it expires.
            let _ = self.end_lease(closing, deadline).await;
        }
        Ok(match was {
            Renewed::Gone => End::Gone,
            Renewed::Revoked => End::Broken,
            Renewed::Kept => End::Released,
        })
    }

    /// Replaces the value of an entry's key, unless `change` returns none, and its lease if another is given.
    /// Returns the key's state before.
    pub(super) async fn rewrite(
        &self,
        entry: &Entry,
        lease: EntryLease,
        to: Option<i64>,
        change: impl Fn(Note) -> Option<Note>,
        deadline: Instant,
    ) -> Result<Renewed, EtcdFailure> {
        let own = key(&self.layout.folder(&entry.name), entry.mode, lease.id);
        for _ in 0..REWRITES_MAX {
            let found = self.txn(deadline, TxnRequest { success: vec![read(&own)], ..TxnRequest::default() });
            let found = ranges(found.await?.responses).into_iter().next().ok_or_else(unreadable)?;
            let Some(mine) = found.kvs.first().filter(|mine| Some(mine.create_revision) == lease.revision)
            else {
                return Ok(Renewed::Gone);
            };
            let Some(note) = Note::read(&mine.value) else { return Err(unreadable()) };
            let Some(note) = change(note) else { return Ok(state(&found)) };
            if self.txn(deadline, put_unchanged(mine, &note, to)).await?.succeeded {
                return Ok(state(&found));
            }
        }
        Err(EtcdFailure::IN_DOUBT)
    }

    /// Remaining time of a lease; zero if it has ended.
    pub(super) async fn left(&self, lease: i64, deadline: Instant) -> Result<Duration, EtcdFailure> {
        let asked = LeaseTimeToLiveRequest { id: lease };
        let left = self.link.call(deadline, asked, |connection, request| {
            let mut lease = connection.lease();
            Box::pin(async move { lease.lease_time_to_live(request).await })
        });
        Ok(Duration::from_secs(u64::try_from(left.await?.ttl).unwrap_or_default()))
    }
}
