//! Entries as items: attempts, renewals, and ends.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeysAndAttributes, Put, ReturnValue, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use lockkeeper_core::{End, LockName, Token};
use tokio::time::{Instant, sleep};

use super::connection::{DynamoClients, DynamoFailure, UnmetCondition};
use super::items::{
    Attributes, BREAK, Item, LockItem, TOKEN, expires, last_token, owner, owner_text, refused_name,
};
use super::observed::Observed;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, Renewed, Store, Tried, broken_at_grant};
use crate::error::{BackendError, BackendErrorKind, Busy};
use crate::time::BootInstant;

/// Renewals under way at a time.
const RENEWALS: usize = 16;
/// Longest pause after another client's transaction was in the way; half of it on average.
const CONFLICT: Duration = Duration::from_millis(50);

/// The items of one client.
pub(super) struct DynamoStore(pub(super) Arc<DynamoTable>);

pub(super) struct DynamoTable {
    pub(super) link: DynamoClients,
    pub(super) attributes: Attributes,
    pub(super) observed: Observed,
    /// How often a waiter looks, on average.
    pub(super) poll: Duration,
}

impl Store for DynamoStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            if let Some(error) = refused_name(&attempt.entry.name) {
                return Ok(Tried::Refused(error));
            }
            match inner.attempt(&attempt).await {
                Ok(tried) => Ok(tried),
                Err(DynamoFailure::Silent(error)) => Err(error),
                Err(DynamoFailure::Answered(UnmetCondition)) => Err(CallError { sent: true }),
                Err(DynamoFailure::Refused(error)) => Ok(Tried::Refused(error)),
            }
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let renewals = entries.into_iter().map(|entry| {
                let inner = inner.clone();
                async move { inner.renew(&entry).await.map_err(DynamoFailure::of_repeated) }
            });
            stream::iter(renewals).buffered(RENEWALS).try_collect().await
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<Result<End, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.finish(&entry, doubt).await.map_err(DynamoFailure::of_repeated) })
    }

    fn trouble(&self) -> Option<String> {
        self.0.link.trouble().map(|error| error.to_string())
    }
}

/// Why a lock can be taken: the condition on its item.
enum Free {
    /// It has no item.
    Absent,
    /// It was released, or its holder has given up; the item has this version and owner.
    Ended { version: String, owner: String },
}

/// How a transaction ended that was to take a lock.
enum Taking {
    Taken,
    /// Another client has changed an item since it was read.
    Overtaken,
    /// Another client's transaction was under way.
    Conflict,
}

impl DynamoTable {
    async fn attempt(&self, attempt: &Attempt) -> Result<Tried, DynamoFailure> {
        let entry = &*attempt.entry;
        let deadline = Instant::now() + entry.limit();
        loop {
            let (item, last) = self.read(&entry.name, deadline).await?;
            let free = match &item {
                None => Free::Absent,
                Some(item) if item.owner == owner_text(&entry.id) && !item.is_released => {
                    // An earlier attempt without an answer. The lease must last for a whole ttl from this one on.
                    return match (self.renew(entry).await?, item.held_token()) {
                        (Renewed::Kept, Some(token)) => Ok(Tried::granted(token)),
                        (Renewed::Revoked, _) => Err(DynamoFailure::Refused(broken_at_grant())),
                        _ => Err(DynamoFailure::NOT_DONE),
                    };
                }
                Some(item) => {
                    let left = match item.is_released {
                        true => Duration::ZERO,
                        false => self.observed.see(item, BootInstant::now()),
                    };
                    match (left.is_zero(), attempt.wait) {
                        (true, _) => Free::Ended { version: item.version.clone(), owner: item.owner.clone() },
                        (false, true) => {
                            return Ok(Tried::Waits { ahead: 1, again: self.pause().min(left) });
                        }
                        (false, false) => {
                            let holder = Some(item.shown_owner());
                            return Ok(Tried::Busy(Busy { holder, queued_ahead: 0 }));
                        }
                    }
                }
            };
            let token = last.unwrap_or(0) + 1;
            match self.take(attempt, free, last, token, deadline).await? {
                Taking::Taken => {
                    self.observed.forget(entry.name.as_str());
                    let token = Token::new(token).ok_or(DynamoFailure::NOT_DONE)?;
                    return Ok(Tried::granted(token));
                }
                Taking::Overtaken => {}
                Taking::Conflict => sleep(CONFLICT.mul_f64(fastrand::f64())).await,
            }
            if Instant::now() >= deadline {
                return Err(DynamoFailure::NOT_DONE);
            }
        }
    }

    /// The time to the next look of a waiter: differs, so that waiters don't look at the same moments.
    fn pause(&self) -> Duration {
        self.poll.mul_f64(0.5 + fastrand::f64())
    }

    /// Reads the lock's item and its last token, both up to date.
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
            .map_err(|error| DynamoFailure::Refused(malformed(&error)))?;
        let client = self.link.client().await;
        let read = client.batch_get_item().request_items(&self.link.table, keys).send();
        let read = self.link.by(deadline, read).await?;
        if read.unprocessed_keys().is_some_and(|keys| !keys.is_empty()) {
            // The table's capacity is used up.
            return Err(DynamoFailure::NOT_DONE);
        }
        let items: &[Item] =
            read.responses().and_then(|tables| tables.get(&self.link.table)).map_or(&[], Vec::as_slice);
        let is_lock = |item: &&Item| {
            item.get(&self.attributes.key) == self.attributes.lock(name).get(&self.attributes.key)
        };
        let lock =
            items.iter().find(is_lock).map(|item| self.attributes.read(item).ok_or_else(|| foreign(name)));
        let last = items.iter().find(|item| !is_lock(item)).and_then(last_token);
        Ok((lock.transpose().map_err(DynamoFailure::Refused)?, last))
    }

    /// Takes the lock and its next token in one transaction.
    async fn take(
        &self,
        attempt: &Attempt,
        free: Free,
        last: Option<u64>,
        token: u64,
        deadline: Instant,
    ) -> Result<Taking, DynamoFailure> {
        let Attributes { key, version, owner, .. } = &self.attributes;
        let item = self.attributes.held(attempt, random_version(), token);
        let put = Put::builder().table_name(&self.link.table).set_item(Some(item));
        let put = match free {
            Free::Absent => {
                put.condition_expression("attribute_not_exists(#key)").expression_attribute_names("#key", key)
            }
            Free::Ended { version: seen, owner: by } => put
                .condition_expression("#version = :version AND #owner = :owner")
                .expression_attribute_names("#version", *version)
                .expression_attribute_names("#owner", *owner)
                .expression_attribute_values(":version", AttributeValue::S(seen))
                .expression_attribute_values(":owner", AttributeValue::S(by)),
        };
        let number = |number: u64| AttributeValue::N(number.to_string());
        let count = Update::builder()
            .table_name(&self.link.table)
            .set_key(Some(self.attributes.fence(&attempt.entry.name)))
            .update_expression("SET #token = :token")
            .expression_attribute_names("#token", TOKEN)
            .expression_attribute_values(":token", number(token));
        let count = match last {
            None => count.condition_expression("attribute_not_exists(#token)"),
            Some(last) => count
                .condition_expression("#token = :last")
                .expression_attribute_values(":last", number(last)),
        };
        let put = put.build().map_err(|error| DynamoFailure::Refused(malformed(&error)))?;
        let count = count.build().map_err(|error| DynamoFailure::Refused(malformed(&error)))?;
        let client = self.link.client().await;
        // The SDK's own retries send the same request token: DynamoDB executes the transaction once.
        let taking = client
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().put(put).build())
            .transact_items(TransactWriteItem::builder().update(count).build())
            .send();
        let taking = async { Ok::<_, SdkError<TransactWriteItemsError>>(taking.await) };
        let error = match self.link.by(deadline, taking).await? {
            Ok(_) => return Ok(Taking::Taken),
            Err(error) => error,
        };
        if let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        {
            let reasons = cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code());
            let codes: Vec<&str> = reasons.filter(|code| *code != "None").collect();
            return match codes.as_slice() {
                [] => Err(DynamoFailure::IN_DOUBT),
                codes if codes.contains(&"ConditionalCheckFailed") => Ok(Taking::Overtaken),
                codes if codes.contains(&"TransactionConflict") => Ok(Taking::Conflict),
                // Throttled.
                _ => Err(DynamoFailure::NOT_DONE),
            };
        }
        // Any other error is the call's.
        match self.link.by(deadline, std::future::ready(Err::<(), _>(error))).await {
            Ok(()) => Err(DynamoFailure::IN_DOUBT),
            Err(failure) => Err(failure),
        }
    }

    /// Renews the hold, by its owner, who is unique: also after a renewal without an answer, whose version may or may not be
    /// stored.
    async fn renew(&self, entry: &Entry) -> Result<Renewed, DynamoFailure> {
        let deadline = Instant::now() + entry.limit();
        let Attributes { owner: by, version, released, expiry, .. } = self.attributes;
        let client = self.link.client().await;
        let mut update = client
            .update_item()
            .table_name(&self.link.table)
            .set_key(Some(self.attributes.lock(&entry.name)))
            .expression_attribute_names("#owner", by)
            .expression_attribute_values(":owner", owner(&entry.id))
            .expression_attribute_names("#version", version)
            .expression_attribute_values(":version", AttributeValue::S(random_version()))
            .expression_attribute_names("#break", BREAK)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let mut condition = "#owner = :owner AND attribute_not_exists(#break)".to_owned();
        if let Some(released) = released {
            update = update.expression_attribute_names("#released", released);
            condition.push_str(" AND attribute_not_exists(#released)");
        }
        let mut set = "SET #version = :version".to_owned();
        if let Some(expiry) = expiry {
            update = update
                .expression_attribute_names("#expiry", expiry)
                .expression_attribute_values(":expiry", expires(entry));
            set.push_str(", #expiry = :expiry");
        }
        let renewed = update.update_expression(set).condition_expression(condition).send();
        match self.link.by(deadline, renewed).await {
            Ok(_) => Ok(Renewed::Kept),
            Err(DynamoFailure::Answered(UnmetCondition)) => {
                let (item, _) = self.read(&entry.name, deadline).await?;
                let own = item.filter(|item| item.owner == owner_text(&entry.id) && !item.is_released);
                Ok(if own.is_some() { Renewed::Revoked } else { Renewed::Gone })
            }
            Err(failure) => Err(failure),
        }
    }

    async fn finish(&self, entry: &Entry, doubt: bool) -> Result<End, DynamoFailure> {
        let deadline = Instant::now() + entry.limit();
        if doubt {
            self.skip_token(&entry.name, deadline).await?;
        }
        match self.release(&entry.name, owner_text(&entry.id), deadline).await {
            Ok(item) if item.as_ref().is_some_and(|item| item.revocation.is_some()) => Ok(End::Broken),
            Ok(_) => Ok(End::Released),
            Err(DynamoFailure::Answered(UnmetCondition)) => Ok(End::Gone),
            Err(failure) => Err(failure),
        }
    }

    /// Uses up the next token of a lock, so that a transaction fails that is still on its way with it.
    async fn skip_token(&self, name: &LockName, deadline: Instant) -> Result<(), DynamoFailure> {
        let client = self.link.client().await;
        let skipped = client
            .update_item()
            .table_name(&self.link.table)
            .set_key(Some(self.attributes.fence(name)))
            .update_expression("ADD #token :one")
            .expression_attribute_names("#token", TOKEN)
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .send();
        self.link.by(deadline, skipped).await.map(drop)
    }

    /// Releases the lock if it still has this owner. Returns its item before. Where the layout has an attribute for that, the item
    /// stays, so that a repeat finds what the first one has done.
    pub(super) async fn release(
        &self,
        name: &LockName,
        by: String,
        deadline: Instant,
    ) -> Result<Option<LockItem>, DynamoFailure> {
        let client = self.link.client().await;
        let was = match self.attributes.released {
            Some(released) => {
                let update = client
                    .update_item()
                    .table_name(&self.link.table)
                    .set_key(Some(self.attributes.lock(name)))
                    .update_expression("SET #released = :one")
                    .condition_expression("#owner = :owner")
                    .expression_attribute_names("#released", released)
                    .expression_attribute_names("#owner", self.attributes.owner)
                    .expression_attribute_values(":one", AttributeValue::S("1".to_owned()))
                    .expression_attribute_values(":owner", AttributeValue::S(by))
                    .return_values(ReturnValue::AllOld);
                self.link.by(deadline, update.send()).await?.attributes
            }
            None => {
                let delete = client
                    .delete_item()
                    .table_name(&self.link.table)
                    .set_key(Some(self.attributes.lock(name)))
                    .condition_expression("#owner = :owner")
                    .expression_attribute_names("#owner", self.attributes.owner)
                    .expression_attribute_values(":owner", AttributeValue::S(by))
                    .return_values(ReturnValue::AllOld);
                self.link.by(deadline, delete.send()).await?.attributes
            }
        };
        Ok(was.and_then(|item| self.attributes.read(&item)))
    }
}

/// A version that no other request has.
fn random_version() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn foreign(name: &LockName) -> BackendError {
    let what = format!(
        "the item `{name}` in this table is no lock, or one of another layout: check `attributes=`, or use another table"
    );
    BackendError::new(BackendErrorKind::Operator, what)
}

fn malformed(error: &aws_sdk_dynamodb::error::BuildError) -> BackendError {
    BackendError::new(BackendErrorKind::Refused, format!("the request can't be built: {error}"))
}
