//! Inspection: the holder, names in use; and an operator's break.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use tokio::time::Instant;

use super::connection::DynamoFailure;
use super::items::{Attributes, BREAK, Item, LockItem};
use super::store::DynamoTable;
use crate::backend::{BreakOrder, Broken};
use crate::backends::leased::{Revocation, shown_holder};
use crate::error::{BackendError, BackendErrorKind};
use crate::info::{HolderInfo, LockInfo};

/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(5);
/// Largest number of items that a list reads.
const ITEMS_MAX: usize = 100_000;

impl DynamoTable {
    pub(super) fn explained(&self, failure: DynamoFailure) -> BackendError {
        match failure {
            DynamoFailure::Refused(error) => error,
            DynamoFailure::Answered(_) => BackendError::new(
                BackendErrorKind::Operator,
                "the hold changed as it was to be broken; try again",
            ),
            DynamoFailure::Silent(_) => self.link.trouble().unwrap_or_else(|| {
                let what = format!("DynamoDB did not answer within {LIMIT:?}, or its capacity is used up");
                BackendError::new(BackendErrorKind::Unreachable, what)
            }),
        }
    }

    pub(super) async fn look(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let read = self.read(&name, Instant::now() + LIMIT).await;
        let (item, _) = read.map_err(|failure| self.explained(failure))?;
        Ok(info(name, item.filter(|item| !item.is_released)))
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
                if is_wanted && !item.is_released {
                    locks.insert(name.clone(), info(name, Some(item)));
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
        let live: Vec<Token> = live(item.as_ref()).into_iter().collect();
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
        let held = item.filter(|item| !item.is_released);
        let Some(held) = held.as_ref().filter(|held| held.held_token() == Some(order.token)) else {
            return Ok(Broken::NotCurrent { live: live(held.as_ref()).into_iter().collect() });
        };
        if order.now {
            self.release(&order.name, held.owner.clone(), deadline).await?;
            return Ok(Broken::Done);
        }
        // The first order counts (B3).
        if held.revocation.is_none() {
            let revocation = Revocation { by: order.by.clone(), reason: order.reason.clone() };
            let revocation = serde_json::to_string(&revocation).unwrap_or_default();
            let client = self.link.client().await;
            let update = client
                .update_item()
                .table_name(&self.link.table)
                .set_key(Some(self.attributes.lock(&order.name)))
                .update_expression("SET #break = if_not_exists(#break, :break)")
                .condition_expression("#owner = :owner")
                .expression_attribute_names("#break", BREAK)
                .expression_attribute_names("#owner", self.attributes.owner)
                .expression_attribute_values(":break", AttributeValue::S(revocation))
                .expression_attribute_values(":owner", AttributeValue::S(held.owner.clone()))
                .send();
            self.link.by(deadline, update).await?;
        }
        Ok(Broken::Done)
    }
}

/// The token of the holder, unless its hold is being broken.
fn live(item: Option<&LockItem>) -> Option<Token> {
    item.filter(|item| !item.is_released && item.revocation.is_none())?.held_token()
}

/// `held`: the lock's item, if it is held. Waiters leave no trace at DynamoDB.
fn info(name: LockName, held: Option<LockItem>) -> LockInfo {
    let holder = |item: LockItem| {
        let (token, owner) = (item.held_token(), item.shown_owner());
        shown_holder(token, ModeKind::Exclusive, owner, item.note, item.revocation)
    };
    let holders: Vec<HolderInfo> = held.into_iter().map(holder).collect();
    LockInfo { name, holder_count: holders.len(), waiter_count: 0, holders, waiters: Vec::new(), limit: None }
}
