//! Inspection: holders, names in use; and an operator's break.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_backend::leased::{Revocation, shown_holder};
use lockkeeper_backend::{
    BackendError, BackendErrorKind, BreakOrder, Broken, CallError, HolderInfo, LockInfo,
};
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use tokio::time::Instant;

use super::connection::DynamoFailure;
use super::items::{Attributes, Item, ItemHolder, LockItem, shown_owner};
use super::writes::DynamoStore;

/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(5);
/// Largest number of items that a list reads.
const ITEMS_MAX: usize = 100_000;

impl DynamoStore {
    pub(super) fn explained(&self, failure: DynamoFailure) -> BackendError {
        match failure {
            DynamoFailure::Refused(error) => error,
            DynamoFailure::Answered(_) => BackendError::new(
                BackendErrorKind::Operator,
                "the hold changed as it was to be broken; try again",
            ),
            DynamoFailure::Silent(CallError { refusal: Some(refusal), .. }) => (*refusal).clone(),
            DynamoFailure::Silent(_) => self.link.trouble().unwrap_or_else(|| {
                let what = format!("DynamoDB did not answer within {LIMIT:?}, or its capacity is used up");
                BackendError::new(BackendErrorKind::Unreachable, what)
            }),
        }
    }

    pub(super) async fn lock_info(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let read = self.read(&name, Instant::now() + LIMIT).await;
        let (item, _) = read.map_err(|failure| self.explained(failure))?;
        Ok(info(name, item.as_ref()))
    }

    pub(super) async fn list(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        let mut locks = BTreeMap::new();
        let mut count = 0;
        let mut from: Option<Item> = None;
        loop {
            let client = self.link.client().await;
            let page = client
                .scan()
                .table_name(&self.link.table)
                .consistent_read(true)
                .set_exclusive_start_key(from)
                .send();
            let page = self.link.by(Instant::now() + LIMIT, page).await;
            let page = page.map_err(|failure| self.explained(failure))?;
            count += page.items().len();
            if count > ITEMS_MAX {
                let what = format!("the table has more than {ITEMS_MAX} items; look at one lock by its name");
                return Err(BackendError::new(BackendErrorKind::Refused, what));
            }
            for item in page.items().iter().filter_map(|item| self.attributes.read(item)) {
                let Some(name) = Attributes::name_of(&item.name) else { continue };
                let is_wanted = prefix.is_none_or(|prefix| *prefix == name || prefix.is_above(name.as_str()));
                if is_wanted && !item.holds.is_empty() {
                    locks.insert(name.clone(), info(name, Some(&item)));
                }
            }
            match page.last_evaluated_key {
                Some(last) => from = Some(last),
                None => return Ok(locks.into_values().collect()),
            }
        }
    }

    pub(super) async fn check_token(
        &self,
        name: &LockName,
        token: Token,
    ) -> Result<TokenStatus, BackendError> {
        let read = self.read(name, Instant::now() + LIMIT).await;
        let (item, last) = read.map_err(|failure| self.explained(failure))?;
        let live = live(item.as_ref());
        Ok(match token {
            token if live.contains(&token) => TokenStatus::Current,
            token if last.is_some_and(|last| token.get() <= last) => TokenStatus::NotCurrent { live },
            _ => TokenStatus::NeverIssued,
        })
    }

    pub(super) async fn break_hold(&self, order: &BreakOrder) -> Result<Broken, BackendError> {
        self.break_inner(order).await.map_err(|failure| self.explained(failure))
    }

    async fn break_inner(&self, order: &BreakOrder) -> Result<Broken, DynamoFailure> {
        let deadline = Instant::now() + LIMIT;
        let (item, _) = self.read(&order.name, deadline).await?;
        let mut holders = item.iter().flat_map(|item| &item.holds);
        let Some((owner, held)) = holders.find(|(_, held)| held.token == Some(order.token)) else {
            return Ok(Broken::NotCurrent { live: live(item.as_ref()) });
        };
        let is_shared = held.mode == ModeKind::Shared;
        match (order.now, is_shared) {
            (true, true) => self.leave(&order.name, owner, deadline).await.map(drop)?,
            (true, false) => self.release(&order.name, owner, deadline).await.map(drop)?,
            (false, _) => {
                let revocation = Revocation { by: order.by.clone(), reason: order.reason.clone() };
                self.revoke(&order.name, owner, is_shared, &revocation, deadline).await?;
            }
        }
        Ok(Broken::Done)
    }
}

/// The tokens of the holders, without those whose holds are being broken.
fn live(item: Option<&LockItem>) -> Vec<Token> {
    let holders = item.iter().flat_map(|item| item.holds.values());
    holders.filter(|held| held.revocation.is_none()).filter_map(|held| held.token).collect()
}

/// `item`: the lock's item, if it has one. Waiters are unknown: they write nothing to DynamoDB.
fn info(name: LockName, item: Option<&LockItem>) -> LockInfo {
    let holder = |(owner, held): (&String, &ItemHolder)| {
        let shown = shown_owner(owner, held);
        shown_holder(held.token, held.mode, shown, held.note.clone(), held.revocation.clone())
    };
    let holders: Vec<HolderInfo> = item.iter().flat_map(|item| &item.holds).map(holder).collect();
    LockInfo::held_by(name, holders)
}
