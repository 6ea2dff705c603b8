//! Lease-store entries as holds in objects: attempts, renewals, and ends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use lockkeeper_backend::leased::{
    Attempt, Entry, NotePermit, Renewed, Store, Tried, broken_at_grant, other_limit,
};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, Busy, CallError};
use lockkeeper_core::{End, LockName, Mode, Token};
use tokio::time::Instant;

use super::objects::{Next, ObjectFailure, Objects};
use super::observed::Sight;
use super::record::{HOLDERS_MAX, HeldMode, HeldRecord, LockRecord};

/// Concurrent renewals.
const RENEWALS: usize = 16;

impl Store for Objects {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.try_hold(&attempt).await.or_else(ObjectFailure::of_attempt) })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let renewals = entries.into_iter().map(|entry| async move {
                self.change_hold(&entry, |_| {}).await.map_err(ObjectFailure::of_repeated)
            });
            stream::iter(renewals).buffered(RENEWALS).try_collect().await
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry, doubt).await.map_err(ObjectFailure::of_repeated) })
    }

    fn set_value(&self, entry: Arc<Entry>, value: Arc<[u8]>) -> BoxFuture<'_, Result<Renewed, CallError>> {
        Box::pin(async move {
            let set = |held: &mut HeldRecord| held.note = std::mem::take(&mut held.note).with_value(&value);
            self.change_hold(&entry, set).await.map_err(ObjectFailure::of_repeated)
        })
    }

    fn trouble(&self) -> Option<String> {
        Objects::trouble(self).map(|error| error.to_string())
    }
}

/// How a request can hold a lock.
enum Access {
    /// Beside the live holders, with this permit if it is one.
    Free(Option<NotePermit>),
    /// Not at present: a live hold ends in `left` at the earliest, unless it is released.
    Taken {
        left: Duration,
    },
    Refused(BackendError),
}

impl Objects {
    async fn try_hold(&self, attempt: &Attempt) -> Result<Tried, ObjectFailure> {
        let entry = &*attempt.entry;
        let known = self.observed.last(&entry.name).filter(|last| last.record.holds.is_empty());
        let tried = self.change(&entry.name, known, Instant::now() + entry.limit(), |seen| {
            if let Some(held) = seen.record.hold(&entry.id) {
                // An earlier put without an answer was executed. The renewal makes the hold last a whole ttl
                // from now.
                return match (held.is_revoked(), held.token()) {
                    (false, Some(token)) => {
                        let tried = Tried::granted(token, held.note.permit.and_then(NotePermit::grant));
                        Next::Write(changed(seen, entry, |_| {}), tried)
                    }
                    _ => Next::Is(Tried::Refused(broken_at_grant())),
                };
            }
            match access(&entry.name, entry.mode, seen) {
                Access::Free(permit) => {
                    let mut record = without_expired(seen);
                    match Token::new(record.grant(attempt, permit)) {
                        Some(token) => {
                            Next::Write(record, Tried::granted(token, permit.and_then(NotePermit::grant)))
                        }
                        None => Next::Is(Tried::Refused(no_more_tokens(&entry.name))),
                    }
                }
                Access::Refused(error) => Next::Is(Tried::Refused(error)),
                Access::Taken { left } if attempt.wait => {
                    let pause = self.settings.poll(entry.ttl).mul_f64(0.5 + fastrand::f64() / 2.0);
                    Next::Is(Tried::Waits { ahead: 1, again: pause.min(left) })
                }
                Access::Taken { .. } => {
                    let live = live(seen).next();
                    let holder = live.map(|held| held.note.owner.clone());
                    Next::Is(Tried::Busy(Busy { holder, queued_ahead: 0 }))
                }
            }
        });
        tried.await
    }

    /// Renews a hold, and changes it, unless it is broken.
    async fn change_hold(
        &self,
        entry: &Entry,
        change: impl Fn(&mut HeldRecord),
    ) -> Result<Renewed, ObjectFailure> {
        let known = self.observed.last(&entry.name).filter(|last| last.record.hold(&entry.id).is_some());
        let changed = self.change(&entry.name, known, Instant::now() + entry.limit(), |seen| {
            match seen.record.hold(&entry.id) {
                None => Next::Is(Renewed::Gone),
                Some(held) if held.is_revoked() => Next::Is(Renewed::Revoked),
                Some(_) => Next::Write(changed(seen, entry, &change), Renewed::Kept),
            }
        });
        changed.await
    }

    async fn end(&self, entry: &Entry, doubt: bool) -> Result<End, ObjectFailure> {
        let known = self.observed.last(&entry.name).filter(|last| last.record.hold(&entry.id).is_some());
        let mut first = None;
        let ended = self.change(&entry.name, known, Instant::now() + entry.limit(), |seen| {
            let mut record = seen.record.clone();
            let is_unchanged = *first.get_or_insert_with(|| seen.version.clone()) == seen.version;
            match record.release(&entry.id) {
                Some(held) if held.is_revoked() => Next::Write(record, End::Broken),
                Some(_) => Next::Write(record, End::Released),
                None if record.was_released(&entry.id) => Next::Is(End::Released),
                // An attempt may be on its way. It depends on the object that this write replaces, unless
                // another client has replaced it since.
                None if doubt && is_unchanged => Next::Write(record, End::Gone),
                None => Next::Is(End::Gone),
            }
        });
        ended.await
    }
}

/// The lock with one hold renewed and changed.
fn changed(seen: &Sight, entry: &Entry, change: impl Fn(&mut HeldRecord)) -> LockRecord {
    let mut record = seen.record.clone();
    if let Some(held) = record.hold_mut(&entry.id) {
        held.renewal += 1;
        change(held);
    }
    record
}

fn live(seen: &Sight) -> impl Iterator<Item = &HeldRecord> {
    seen.record.holds.iter().zip(&seen.left).filter(|(_, left)| !left.is_zero()).map(|(held, _)| held)
}

fn without_expired(seen: &Sight) -> LockRecord {
    let mut record = seen.record.clone();
    record.holds = live(seen).cloned().collect();
    record
}

fn access(name: &LockName, mode: Mode, seen: &Sight) -> Access {
    let left = seen.left.iter().copied().filter(|left| !left.is_zero()).min().unwrap_or_default();
    let count = live(seen).count();
    let all_are = |mode| live(seen).all(|held| held.mode == mode);
    let in_use = live(seen).find_map(|held| held.note.permit);
    let permit = match NotePermit::asked(name, mode, in_use.map(|permit| permit.of)) {
        Ok(permit) => permit,
        Err(error) => return Access::Refused(error),
    };
    match (permit, in_use) {
        (Some(asked), Some(used)) if asked.of != used.of => {
            return Access::Refused(other_limit(name, used.of, asked.of));
        }
        (Some(asked), _) if all_are(HeldMode::Permit) && count < (asked.of as usize).min(HOLDERS_MAX) => {
            let taken =
                |slot: &u32| live(seen).any(|held| held.note.permit.and_then(|one| one.slot) == Some(*slot));
            return Access::Free(Some(NotePermit { slot: (0..asked.of).find(|slot| !taken(slot)), ..asked }));
        }
        _ => {}
    }
    let is_free = match mode {
        Mode::Shared => all_are(HeldMode::Shared) && count < HOLDERS_MAX,
        _ => count == 0,
    };
    if is_free { Access::Free(None) } else { Access::Taken { left } }
}

fn no_more_tokens(name: &LockName) -> BackendError {
    BackendError::new(BackendErrorKind::Operator, format!("`{name}` has no tokens left; use another name"))
}
