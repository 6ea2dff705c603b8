//! Closed holds: the key of an ended hold stays in the queue under another lease, which deletes it when the
//! lock may open.
//!
//! A key keeps its position in the queue when its lease is replaced:
//! - a waiter's key has a lease for the ttl, so a dead waiter closes nothing;
//! - a holder's key has a lease for the ttl plus the time for which the lock must stay closed after an
//!   expiry;
//! - at its release, the key gets a lease for the time for which the lock must stay closed then.

use std::time::Duration;

use lockkeeper_backend::leased::{Entry, Note, Renewed, broken_at_grant};
use lockkeeper_core::End;
use tokio::time::Instant;

use super::api::{LeaseTimeToLiveRequest, TxnRequest};
use super::connection::EtcdFailure;
use super::layout::key;
use super::leases::EntryLease;
use super::store::{EtcdStore, put_unchanged, ranges, read, state, unreadable};

/// Tries of a write that conflicts with other writes of the key.
const REWRITES_MAX: usize = 5;

impl EtcdStore {
    /// Gives the key of a holding entry the longer lease, if the lock must stay closed after an expiry.
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
            // Created by an earlier attempt that got no answer.
            Some(closing) => closing,
            None => self.grant_lease(entry.ttl + closes, deadline).await?,
        };
        let lease = EntryLease { closing: Some(closing), ..lease };
        // From now on keep-alives renew this lease too.
        self.leases.set(&entry.id, lease);
        let closes_ms = u64::try_from(closes.as_millis()).unwrap_or(u64::MAX);
        let closes = |note: Note| Some(Note { closes_ms, ..note });
        match self.rewrite(entry, lease, Some(closing), closes, deadline).await? {
            // Renews the lease at once: a keep-alive that began before `set` and did not include the lease
            // may be acknowledged by now.
            Renewed::Kept if self.keep_alive(&[closing], deadline).await? == [true] => Ok(lease),
            Renewed::Kept => Err(EtcdFailure::IN_DOUBT),
            Renewed::Revoked => Err(EtcdFailure::Refused(broken_at_grant())),
            // Another client deleted the key: the next attempt creates another.
            Renewed::Gone => Err(EtcdFailure::NOT_DONE),
        }
    }

    /// Ends a hold whose lock must then stay closed.
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
            // Then a delayed attempt can't create a key with this lease.
            match self.end_lease(lease.id, deadline).await {
                Ok(()) | Err(EtcdFailure::Answered(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        // The closed hold's key has the lease's id in its name, so the lease serves no other entry.
        self.leases.remove(&entry.id);
        if let Some(closing) = lease.closing {
            // A failure is ignored: the lease expires.
            let _ = self.end_lease(closing, deadline).await;
        }
        Ok(match was {
            Renewed::Gone => End::Gone,
            Renewed::Revoked => End::Broken,
            Renewed::Kept => End::Released,
        })
    }

    /// Replaces the value of an entry's key by what `change` returns (`None`: keep it), and its lease by
    /// `to`, if given. Returns the state of the entry before that.
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
