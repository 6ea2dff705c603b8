//! Lease-store entries as items: attempts, renewals, and ends.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::KeysAndAttributes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lockkeeper_backend::leased::{Attempt, Entry, Renewed, Store, Tried, broken_at_grant};
use lockkeeper_backend::{BackendError, BackendErrorKind, BootInstant, BoxFuture, Busy, CallError};
use lockkeeper_core::{End, LockName, Mode, Token};
use tokio::time::{Instant, sleep};

use super::connection::DynamoFailure;
use super::items::{Item, LockItem, last_token, owner, refused_name};
use super::writes::{DynamoStore, Taking, malformed};

/// Concurrent renewals.
const RENEWALS: usize = 16;
/// Tries of a renewal whose condition is not met although the entry holds: an attempt was executed in
/// between.
const RENEWALS_MAX: usize = 2;
/// Longest pause after another client's transaction was in the way; half of it on average.
const CONFLICT: Duration = Duration::from_millis(50);
/// Largest number of a lock's shared holders: each of their renewals writes the whole item, of at most 400
/// KiB at DynamoDB.
const READERS_MAX: usize = 100;
/// Dead shared holders that a new one removes at a time: bounded by DynamoDB's limit for the length of a
/// condition.
const DEAD_MAX: usize = 10;

impl Store for DynamoStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move {
            if let Some(error) = refused_name(&attempt.entry.name) {
                return Ok(Tried::Refused(error));
            }
            self.try_hold(&attempt).await.or_else(DynamoFailure::of_attempt)
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let renewals = entries
                .into_iter()
                .map(|entry| async move { self.renew_one(&entry).await.map_err(DynamoFailure::of_repeated) });
            stream::iter(renewals).buffered(RENEWALS).try_collect().await
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry, doubt).await.map_err(DynamoFailure::of_repeated) })
    }

    fn trouble(&self) -> Option<String> {
        self.link.trouble().map(|error| error.to_string())
    }
}

/// How an entry can hold a lock that has an item.
enum Way<'a> {
    /// All holders are gone or dead.
    TakeOver,
    /// As a further shared holder, in place of these dead ones.
    Join { dead: Vec<&'a str> },
    /// Not at present: a live lease ends in `left` at the earliest, unless the lock is released.
    None { left: Duration },
}

impl DynamoStore {
    async fn try_hold(&self, attempt: &Attempt) -> Result<Tried, DynamoFailure> {
        let entry = &*attempt.entry;
        let deadline = Instant::now() + entry.limit();
        loop {
            let (item, last) = self.read(&entry.name, deadline).await?;
            if let Some(held) = item.as_ref().and_then(|item| item.holds.get(&owner(&entry.id))) {
                // An earlier attempt without an answer was executed. Renew, so that the lease lasts a whole
                // ttl from now.
                return match (self.renew_one(entry).await?, held.token) {
                    (Renewed::Kept, Some(token)) => Ok(Tried::granted(token, None)),
                    (Renewed::Revoked, _) => Err(DynamoFailure::Refused(broken_at_grant())),
                    _ => Err(DynamoFailure::NOT_DONE),
                };
            }
            let token = last.unwrap_or(0) + 1;
            let taking = match item.as_ref().map(|item| (item, self.way(entry.mode, item))) {
                None => self.take(attempt, None, last, token, deadline).await?,
                Some((item, Way::TakeOver)) => self.take(attempt, Some(item), last, token, deadline).await?,
                Some((item, Way::Join { dead })) => {
                    self.join(attempt, item, &dead, last, token, deadline).await?
                }
                Some((_, Way::None { left })) if attempt.wait => {
                    return Ok(Tried::Waits { ahead: 1, again: self.pause().min(left) });
                }
                Some((item, Way::None { .. })) => {
                    return Ok(Tried::Busy(Busy { holder: item.shown_owner(), queued_ahead: 0 }));
                }
            };
            match taking {
                Taking::Taken => return granted(token),
                Taking::Overtaken => {}
                Taking::Conflict => sleep(CONFLICT.mul_f64(fastrand::f64())).await,
            }
            if Instant::now() >= deadline {
                return Err(DynamoFailure::NOT_DONE);
            }
        }
    }

    fn way<'a>(&self, mode: Mode, item: &'a LockItem) -> Way<'a> {
        let seen = self.observed.see(item, BootInstant::now());
        let left = seen.iter().map(|(_, left)| *left).max().unwrap_or_default();
        if left.is_zero() {
            return Way::TakeOver;
        }
        let dead = seen.iter().filter(|(_, left)| left.is_zero()).map(|(owner, _)| *owner);
        let dead: Vec<&str> = dead.take(DEAD_MAX).collect();
        match mode == Mode::Shared && item.is_shared() && seen.len() - dead.len() < READERS_MAX {
            true => Way::Join { dead },
            false => Way::None { left },
        }
    }

    /// The time until a waiter's next poll. Random, so that waiters don't poll at the same time.
    fn pause(&self) -> Duration {
        self.poll.mul_f64(0.5 + fastrand::f64())
    }

    /// Reads the lock item and the last token, with consistent reads.
    pub(super) async fn read(
        &self,
        name: &LockName,
        deadline: Instant,
    ) -> Result<(Option<LockItem>, Option<u64>), DynamoFailure> {
        let keys = KeysAndAttributes::builder()
            .keys(self.attributes.lock(name))
            .keys(self.attributes.fence(name))
            .consistent_read(true)
            .build()
            .map_err(malformed)?;
        let client = self.link.client().await;
        let read = client.batch_get_item().request_items(&self.link.table, keys).send();
        let read = self.link.by(deadline, read).await?;
        if read.unprocessed_keys().is_some_and(|keys| !keys.is_empty()) {
            // DynamoDB has throttled the read.
            return Err(DynamoFailure::NOT_DONE);
        }
        let items: &[Item] =
            read.responses().and_then(|tables| tables.values().next()).map_or(&[], Vec::as_slice);
        let is_lock = |item: &&Item| {
            item.get(&self.attributes.key) == self.attributes.lock(name).get(&self.attributes.key)
        };
        let lock =
            items.iter().find(is_lock).map(|item| self.attributes.read(item).ok_or_else(|| foreign(name)));
        let last = items.iter().find(|item| !is_lock(item)).and_then(last_token);
        Ok((lock.transpose().map_err(DynamoFailure::Refused)?, last))
    }

    async fn renew_one(&self, entry: &Entry) -> Result<Renewed, DynamoFailure> {
        let deadline = Instant::now() + entry.limit();
        for _ in 0..RENEWALS_MAX {
            match self.write_renewal(entry, deadline).await {
                Ok(()) => return Ok(Renewed::Kept),
                Err(DynamoFailure::Answered(_)) => {}
                Err(failure) => return Err(failure),
            }
            let (item, _) = self.read(&entry.name, deadline).await?;
            match item.as_ref().and_then(|item| item.holds.get(&owner(&entry.id))) {
                None => return Ok(Renewed::Gone),
                Some(held) if held.revocation.is_some() => return Ok(Renewed::Revoked),
                // An attempt was executed between the renewal and the read.
                Some(_) => {}
            }
        }
        Err(DynamoFailure::IN_DOUBT)
    }

    async fn end(&self, entry: &Entry, doubt: bool) -> Result<End, DynamoFailure> {
        let deadline = Instant::now() + entry.limit();
        if doubt {
            self.skip_token(&entry.name, deadline).await?;
        }
        let by = owner(&entry.id);
        let was = match entry.mode {
            Mode::Shared => self.leave(&entry.name, &by, deadline).await,
            _ => self.release(&entry.name, &by, deadline).await,
        };
        match was {
            Ok(item) => {
                let held = item.as_ref().and_then(|item| item.holds.get(&by));
                Ok(match held.is_some_and(|held| held.revocation.is_some()) {
                    true => End::Broken,
                    false => End::Released,
                })
            }
            Err(DynamoFailure::Answered(_)) => Ok(End::Gone),
            Err(failure) => Err(failure),
        }
    }
}

fn granted(token: u64) -> Result<Tried, DynamoFailure> {
    Token::new(token).map(|token| Tried::granted(token, None)).ok_or(DynamoFailure::NOT_DONE)
}

fn foreign(name: &LockName) -> BackendError {
    let what = format!(
        "the item `{name}` in this table is no lock, or one of another layout: check `attributes=`, or use another table"
    );
    BackendError::new(BackendErrorKind::Operator, what)
}
