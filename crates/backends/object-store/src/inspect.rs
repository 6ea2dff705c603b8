//! Inspection: holders, names in use; and an operator's break.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use lockkeeper_backend::leased::{Revocation, shown_holder};
use lockkeeper_backend::{
    BackendError, BackendErrorKind, BreakOrder, Broken, CallError, HolderInfo, LockInfo,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::time::Instant;

use super::objects::{Next, ObjectFailure, Objects};
use super::record::{HeldRecord, LockRecord, SUFFIX};

/// Time limit of one call; of a list, for each page and each lock.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest number of objects that a list reads, and how many at a time.
const LISTED_MAX: usize = 10_000;
const READS: usize = 16;

impl Objects {
    pub(super) fn explained(&self, failure: ObjectFailure) -> BackendError {
        match failure {
            ObjectFailure::Refused(error) => error,
            ObjectFailure::Silent(CallError { refusal: Some(refusal), .. }) => (*refusal).clone(),
            ObjectFailure::Answered(_) | ObjectFailure::Silent(_) => self.trouble().unwrap_or_else(|| {
                let what =
                    format!("{}: others change the object all the time; try again", self.settings.shown());
                BackendError::new(BackendErrorKind::Unreachable, what)
            }),
        }
    }

    async fn record(&self, name: &LockName) -> Result<LockRecord, BackendError> {
        let sight = self.sight(name, Instant::now() + LIMIT).await;
        sight.map(|sight| sight.record).map_err(|failure| self.explained(failure))
    }

    pub(super) async fn lock_info(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let record = self.record(&name).await?;
        let permits = record.holds.iter().find_map(|held| held.note.permit).map(|permit| permit.of);
        Ok(LockInfo { permits, ..LockInfo::held_by(name, record.holds.iter().map(shown).collect()) })
    }

    /// The locks below a prefix that are held.
    pub(super) async fn list(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        let names = self.names(SUFFIX, prefix).await?;
        let infos = stream::iter(names.into_iter().map(|name| self.lock_info(name))).buffered(READS);
        infos.try_filter(|info| std::future::ready(!info.holds.is_empty())).try_collect().await
    }

    /// The locks at or below `below` that have an object with this suffix, by name.
    pub(super) async fn names(
        &self,
        suffix: &str,
        below: Option<&LockName>,
    ) -> Result<Vec<LockName>, BackendError> {
        let prefix = self.path("")?;
        let mut objects = self.store.list((!prefix.as_ref().is_empty()).then_some(&prefix));
        let (mut names, mut count) = (BTreeSet::new(), 0);
        loop {
            let next = async { objects.next().await.transpose() };
            let next =
                self.by(Instant::now() + LIMIT, next).await.map_err(|failure| self.explained(failure))?;
            let Some(object) = next else { return Ok(names.into_iter().collect()) };
            count += 1;
            if count > LISTED_MAX {
                let what = format!(
                    "there are more than {LISTED_MAX} objects below {}; look at one lock by its name",
                    self.settings.shown()
                );
                return Err(BackendError::new(BackendErrorKind::Refused, what));
            }
            let key = object.location.as_ref().strip_prefix(prefix.as_ref()).unwrap_or_default();
            let name = key.trim_start_matches('/').strip_suffix(suffix);
            let name = name.and_then(|name| LockName::parse(name).ok());
            let is_wanted =
                |name: &LockName| below.is_none_or(|top| top == name || top.is_above(name.as_str()));
            names.extend(name.filter(is_wanted));
        }
    }

    pub(super) async fn check_token(
        &self,
        name: &LockName,
        token: Token,
    ) -> Result<TokenStatus, BackendError> {
        let record = self.record(name).await?;
        let live = live(&record);
        Ok(match token {
            token if live.contains(&token) => TokenStatus::Current,
            token if token.get() <= record.token => TokenStatus::NotCurrent { live },
            _ => TokenStatus::NeverIssued,
        })
    }

    pub(super) async fn break_hold(&self, order: &BreakOrder) -> Result<Broken, BackendError> {
        let broken = self.change(&order.name, None, Instant::now() + LIMIT, |seen| {
            let mut record = seen.record.clone();
            let Some(at) = record.holds.iter().position(|held| held.token() == Some(order.token)) else {
                return Next::Is(Broken::NotCurrent { live: live(&record) });
            };
            if order.now {
                record.holds.remove(at);
            } else if record.holds[at].is_revoked() {
                // The first order counts (B3).
                return Next::Is(Broken::Done);
            } else {
                let revocation = Revocation { by: order.by.clone(), reason: order.reason.clone() };
                record.holds[at].note.revoked = Some(revocation);
            }
            Next::Write(record, Broken::Done)
        });
        broken.await.map_err(|failure| self.explained(failure))
    }
}

/// The tokens of the holders, without those whose holds are being broken.
fn live(record: &LockRecord) -> Vec<Token> {
    let holders = record.holds.iter().filter(|held| !held.is_revoked());
    holders.filter_map(HeldRecord::token).collect()
}

fn shown(held: &HeldRecord) -> HolderInfo {
    let note = held.note.clone();
    let revoked = note.revoked.clone();
    shown_holder(held.token(), held.mode.kind(), note.owner.clone(), Some(note), revoked)
}
