//! Locks that stay closed after a hold: the holder's key gets another lease, and is deleted with that.
//!
//! A key keeps its place in the queue if its lease is replaced. While an entry holds, its key has a lease that is longer than the ttl by
//! the time for which the lock is to stay closed after an expiry; with its release it gets one for the rest. A waiter's key has
//! a lease for its ttl only: a dead waiter closes nothing.

use std::time::Duration;

use lockkeeper_core::End;
use tokio::time::Instant;

use super::api::request_op::Request as Op;
use super::api::{LeaseTimeToLiveRequest, PutRequest, RequestOp, TxnRequest};
use super::connection::EtcdFailure;
use super::layout::key;
use super::leases::EntryLease;
use super::store::{Inner, created_at, ranges, read, state, unchanged, unreadable};
use crate::backends::leased::{Entry, Note, Renewed};
use crate::time::BootInstant;

/// A closing that meets other writes of the key is tried again so often.
const CLOSINGS_MAX: usize = 5;

impl Inner {
    /// Gives the key of an entry that holds the longer lease, if its lock is to stay closed after an expiry.
    pub(super) async fn prepare_closing(
        &self,
        entry: &Entry,
        lease: EntryLease,
        created: i64,
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
        self.move_key(entry, lease, created, closing, |note| note, deadline).await?;
        Ok(lease)
    }

    /// Ends the hold of an entry whose lock stays closed then.
    pub(super) async fn close(
        &self,
        entry: &Entry,
        lease: EntryLease,
        doubt: bool,
        deadline: Instant,
    ) -> Result<End, EtcdFailure> {
        let Some(created) = lease.revision else { return Ok(End::Gone) };
        let left = self.grant_lease(entry.keep_closed, deadline).await?;
        let closed = |note: Note| Note { closed: true, ..note };
        let was = self.move_key(entry, lease, created, left, closed, deadline).await?;
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
            self.leases.keep(closing, entry.ttl + entry.closed_after_expiry(), BootInstant::now());
        }
        Ok(match was {
            Renewed::Gone => End::Gone,
            Renewed::Revoked => End::Broken,
            Renewed::Kept => End::Released,
        })
    }

    /// Replaces the lease of an entry's key, and changes its value.
    async fn move_key(
        &self,
        entry: &Entry,
        lease: EntryLease,
        created: i64,
        to: i64,
        change: impl Fn(Note) -> Note,
        deadline: Instant,
    ) -> Result<Renewed, EtcdFailure> {
        let own = key(&self.layout.folder(&entry.name), entry.mode, lease.id);
        for _ in 0..CLOSINGS_MAX {
            let found = self.txn(deadline, TxnRequest { success: vec![read(&own)], ..TxnRequest::default() });
            let found = ranges(found.await?.responses).into_iter().next().ok_or_else(unreadable)?;
            let Some(mine) = found.kvs.first().filter(|mine| mine.create_revision == created) else {
                return Ok(Renewed::Gone);
            };
            let Some(note) = Note::read(&mine.value) else { return Err(unreadable()) };
            let value = change(note).bytes();
            let put = PutRequest { key: own.clone(), value, lease: to, ..PutRequest::default() };
            let txn = TxnRequest {
                compare: vec![created_at(&own, created), unchanged(mine)],
                success: vec![RequestOp { request: Some(Op::RequestPut(put)) }],
                failure: Vec::new(),
            };
            if self.txn(deadline, txn).await?.succeeded {
                return Ok(state(&found));
            }
        }
        Err(EtcdFailure::IN_DOUBT)
    }

    /// What is left of a lease; zero if it has ended.
    pub(super) async fn left(&self, lease: i64, deadline: Instant) -> Result<Duration, EtcdFailure> {
        let asked = LeaseTimeToLiveRequest { id: lease };
        let left = self.link.call(deadline, async |connection| {
            connection.lease().lease_time_to_live(connection.request(asked)).await
        });
        Ok(Duration::from_secs(u64::try_from(left.await?.ttl).unwrap_or_default()))
    }
}
