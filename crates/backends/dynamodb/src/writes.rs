//! The writes of items, each on the condition that the item is as expected.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::config::{self, retry::RetryConfig};
use aws_sdk_dynamodb::error::{BuildError, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{AttributeValue, Put, ReturnValue, TransactWriteItem, Update};
use lockkeeper_backend::leased::{Attempt, Entry, Revocation};
use lockkeeper_backend::{BackendError, BackendErrorKind};
use lockkeeper_core::{LockName, Mode};
use tokio::time::Instant;

use super::connection::{DynamoClients, DynamoFailure};
use super::items::{
    Attributes, BREAK, Item, LockItem, READER_VERSION, READERS, SHARED, TOKEN, expires, observed_lease,
    owner, reader,
};
use super::observed::Observed;

/// The items of one client.
pub(super) struct DynamoStore {
    pub(super) link: DynamoClients,
    pub(super) attributes: Attributes,
    pub(super) observed: Observed,
    /// Mean polling interval of a waiter.
    pub(super) poll: Duration,
}

/// The outcome of a transaction that takes a lock.
pub(super) enum Taking {
    Taken,
    /// Another client has changed an item since it was read.
    Overtaken,
    /// Another client's transaction was under way.
    Conflict,
}

/// A change of an item, in DynamoDB's expressions: their names begin with `#`, their values with `:`.
#[derive(Default)]
struct Change {
    key: Item,
    update: String,
    condition: String,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
    /// The SDK must not retry: a retry after an executed change would fail the condition or return the
    /// changed item.
    once: bool,
}

impl Change {
    fn of(key: Item, update: &str, condition: &str) -> Self {
        Self { key, update: update.to_owned(), condition: condition.to_owned(), ..Self::default() }
    }

    fn name(mut self, placeholder: impl Into<String>, attribute: &str) -> Self {
        self.names.insert(placeholder.into(), attribute.to_owned());
        self
    }

    fn value(mut self, placeholder: impl Into<String>, value: AttributeValue) -> Self {
        self.values.insert(placeholder.into(), value);
        self
    }

    fn text(self, placeholder: impl Into<String>, value: &str) -> Self {
        self.value(placeholder, AttributeValue::S(value.to_owned()))
    }

    /// Converts the change to a part of a transaction.
    fn in_transaction(self, table: &str) -> Result<TransactWriteItem, DynamoFailure> {
        let update = Update::builder()
            .table_name(table)
            .set_key(Some(self.key))
            .update_expression(self.update)
            .condition_expression(self.condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(Some(self.values));
        Ok(TransactWriteItem::builder().update(update.build().map_err(malformed)?).build())
    }
}

impl DynamoStore {
    /// Takes a lock and its next token in one transaction. `seen`: the lock's item, if it has one, whose
    /// holders are gone or dead.
    pub(super) async fn take(
        &self,
        attempt: &Attempt,
        seen: Option<&LockItem>,
        last: Option<u64>,
        token: u64,
        deadline: Instant,
    ) -> Result<Taking, DynamoFailure> {
        let Attributes { key, version, owner, .. } = &self.attributes;
        let item = self.attributes.held(attempt, random_version(), token);
        let put = Put::builder().table_name(&self.link.table).set_item(Some(item));
        let put = match seen {
            None => {
                put.condition_expression("attribute_not_exists(#key)").expression_attribute_names("#key", key)
            }
            Some(seen) => put
                .condition_expression("#version = :version AND #owner = :owner")
                .expression_attribute_names("#version", *version)
                .expression_attribute_names("#owner", *owner)
                .expression_attribute_values(":version", AttributeValue::S(seen.version.clone()))
                .expression_attribute_values(":owner", AttributeValue::S(seen.owner.clone())),
        };
        let put = TransactWriteItem::builder().put(put.build().map_err(malformed)?).build();
        let taking = self.with_token(&attempt.entry.name, put, last, token, deadline).await?;
        if matches!(taking, Taking::Taken) {
            self.observed.forget(attempt.entry.name.as_str());
        }
        Ok(taking)
    }

    /// Joins the shared holders of a lock, in place of dead ones, and takes its next token, in one
    /// transaction.
    pub(super) async fn join(
        &self,
        attempt: &Attempt,
        seen: &LockItem,
        dead: &[&str],
        last: Option<u64>,
        token: u64,
        deadline: Instant,
    ) -> Result<Taking, DynamoFailure> {
        let entry = &*attempt.entry;
        let new = random_version();
        let mut change = self
            .of_reader(
                &entry.name,
                &owner(&entry.id),
                "SET #readers.#reader = :reader, #version = :version, #lease = :lease",
                "",
            )
            .name("#version", self.attributes.version)
            .text(":version", &new)
            // No other client may take over before the last of the holders is dead.
            .name("#lease", self.attributes.lease)
            .value(":lease", self.attributes.lease_of(seen.lease.max(observed_lease(entry))))
            .value(":reader", AttributeValue::M(reader(attempt, new.clone(), token)));
        for (at, &owner) in dead.iter().enumerate() {
            let Some(holder) = seen.holds.get(owner) else { continue };
            change.update.push_str(if at == 0 { " REMOVE " } else { ", " });
            change.update.push_str(&format!("#readers.#dead{at}"));
            change.condition.push_str(&format!(" AND #readers.#dead{at}.#readerVersion = :dead{at}"));
            change = change.name(format!("#dead{at}"), owner).text(format!(":dead{at}"), &holder.version);
        }
        if !dead.is_empty() {
            change = change.name("#readerVersion", READER_VERSION);
        }
        let join = self.unless_released(self.with_expiry(change, entry)).in_transaction(&self.link.table)?;
        self.with_token(&entry.name, join, last, token, deadline).await
    }

    /// Executes a write of a lock's item together with one of its last token.
    async fn with_token(
        &self,
        name: &LockName,
        write: TransactWriteItem,
        last: Option<u64>,
        token: u64,
        deadline: Instant,
    ) -> Result<Taking, DynamoFailure> {
        let number = |number: u64| AttributeValue::N(number.to_string());
        let count = match last {
            None => {
                Change::of(self.attributes.fence(name), "SET #token = :token", "attribute_not_exists(#token)")
            }
            Some(last) => Change::of(self.attributes.fence(name), "SET #token = :token", "#token = :last")
                .value(":last", number(last)),
        };
        let count = count.name("#token", TOKEN).value(":token", number(token));
        let count = count.in_transaction(&self.link.table)?;
        let client = self.link.client().await;
        // The SDK's own retries send the same request token: DynamoDB executes the transaction once.
        let taking = async {
            match client.transact_write_items().transact_items(write).transact_items(count).send().await {
                Ok(_) => Ok(Ok(Taking::Taken)),
                Err(error) => cancelled(&error).ok_or(error),
            }
        };
        match self.link.by(deadline, taking).await {
            Ok(taking) => taking,
            // The SDK may have retried after a try without an answer.
            Err(failure) => Err(failure.in_doubt()),
        }
    }

    /// A change of the shared holder `#readers.#reader`, on the condition that the item's owner is
    /// [`SHARED`]: other clients that take a lock over replace the owner, but may leave the map of holders.
    fn of_reader(&self, name: &LockName, reader: &str, update: &str, condition: &str) -> Change {
        let condition = format!("#owner = :shared{condition}");
        Change::of(self.attributes.lock(name), update, &condition)
            .name("#owner", self.attributes.owner)
            .text(":shared", SHARED)
            .name("#readers", READERS)
            .name("#reader", reader)
    }

    /// Adds the condition that the item is not marked as free.
    fn unless_released(&self, mut change: Change) -> Change {
        let Some(released) = self.attributes.released else { return change };
        change.condition.push_str(" AND attribute_not_exists(#released)");
        change.name("#released", released)
    }

    /// Adds to the change, which must begin with `SET`, the time at which DynamoDB may delete the item.
    fn with_expiry(&self, mut change: Change, entry: &Entry) -> Change {
        let Some(expiry) = self.attributes.expiry else { return change };
        change.update = change.update.replacen("SET ", "SET #expiry = :expiry, ", 1);
        change.name("#expiry", expiry).value(":expiry", expires(entry))
    }

    async fn update(
        &self,
        change: Change,
        returned: ReturnValue,
        deadline: Instant,
    ) -> Result<Option<LockItem>, DynamoFailure> {
        let client = self.link.client().await;
        let update = client
            .update_item()
            .table_name(&self.link.table)
            .set_key(Some(change.key))
            .update_expression(change.update)
            .set_condition_expression(Some(change.condition).filter(|condition| !condition.is_empty()))
            .set_expression_attribute_names(Some(change.names))
            .set_expression_attribute_values(Some(change.values).filter(|values| !values.is_empty()))
            .return_values(returned);
        let repeats = repeats(change.once);
        let send = || update.clone().customize().config_override(repeats.clone()).send();
        let updated = self.link.patiently(deadline, send).await?;
        Ok(updated.attributes.and_then(|item| self.attributes.read(&item)))
    }

    /// Renews a hold unless it is broken. The condition is on its owner, since a renewal without an answer
    /// may have changed the version.
    pub(super) async fn write_renewal(&self, entry: &Entry, deadline: Instant) -> Result<(), DynamoFailure> {
        let by = owner(&entry.id);
        let change = if entry.mode == Mode::Shared {
            self.of_reader(
                &entry.name,
                &by,
                "SET #version = :version, #readers.#reader.#readerVersion = :version",
                " AND attribute_exists(#readers.#reader) AND attribute_not_exists(#readers.#reader.#break)",
            )
            .name("#readerVersion", READER_VERSION)
        } else {
            let condition = "#owner = :owner AND attribute_not_exists(#break)";
            Change::of(self.attributes.lock(&entry.name), "SET #version = :version", condition)
                .name("#owner", self.attributes.owner)
                .text(":owner", &by)
        };
        let change = change
            .name("#version", self.attributes.version)
            .text(":version", &random_version())
            .name("#break", BREAK);
        let change = self.unless_released(self.with_expiry(change, entry));
        self.update(change, ReturnValue::None, deadline).await.map(drop)
    }

    /// Consumes the next token of a lock, so that a delayed transaction with that token fails.
    pub(super) async fn skip_token(&self, name: &LockName, deadline: Instant) -> Result<(), DynamoFailure> {
        let change = Change::of(self.attributes.fence(name), "ADD #token :one", "")
            .name("#token", TOKEN)
            .value(":one", AttributeValue::N("1".to_owned()));
        self.update(change, ReturnValue::None, deadline).await.map(drop)
    }

    /// Ends a shared hold, and releases the lock if it was the last one. Returns the item before.
    pub(super) async fn leave(
        &self,
        name: &LockName,
        by: &str,
        deadline: Instant,
    ) -> Result<Option<LockItem>, DynamoFailure> {
        let change = self
            .of_reader(
                name,
                by,
                "SET #version = :version REMOVE #readers.#reader",
                " AND attribute_exists(#readers.#reader)",
            )
            .name("#version", self.attributes.version)
            .text(":version", &random_version());
        let was = self.update(Change { once: true, ..change }, ReturnValue::AllOld, deadline).await;
        // `Answered` also follows an end that was executed without an answer: the holder is no longer in the
        // map.
        let is_last = match &was {
            Ok(was) => was.as_ref().is_some_and(|was| was.holds.len() == 1),
            Err(failure) => matches!(failure, DynamoFailure::Answered(_)),
        };
        if is_last {
            // Not if another holder has joined meanwhile. A failure is ignored: the next attempt finds no
            // holders.
            let no_readers = " AND size(#readers) = :none";
            let _ = self.release_if(name, SHARED, no_readers, deadline).await;
        }
        was
    }

    /// Releases the lock if it still has this owner, and returns the item as it was before. A layout with the
    /// attribute `released` keeps the item, so that a retry detects its first execution.
    pub(super) async fn release(
        &self,
        name: &LockName,
        by: &str,
        deadline: Instant,
    ) -> Result<Option<LockItem>, DynamoFailure> {
        self.release_if(name, by, "", deadline).await
    }

    async fn release_if(
        &self,
        name: &LockName,
        by: &str,
        condition: &str,
        deadline: Instant,
    ) -> Result<Option<LockItem>, DynamoFailure> {
        let mut change = Change::of(self.attributes.lock(name), "SET #released = :one", "#owner = :owner")
            .name("#owner", self.attributes.owner)
            .text(":owner", by);
        if !condition.is_empty() {
            change.condition.push_str(condition);
            change = change.name("#readers", READERS).value(":none", AttributeValue::N("0".to_owned()));
        }
        if let Some(released) = self.attributes.released {
            let change = change.name("#released", released).text(":one", "1");
            return self.update(change, ReturnValue::AllOld, deadline).await;
        }
        let client = self.link.client().await;
        let delete = client
            .delete_item()
            .table_name(&self.link.table)
            .set_key(Some(change.key))
            .condition_expression(change.condition)
            .set_expression_attribute_names(Some(change.names))
            .set_expression_attribute_values(Some(change.values))
            .return_values(ReturnValue::AllOld);
        let repeats = repeats(true);
        let send = || delete.clone().customize().config_override(repeats.clone()).send();
        let was = self.link.patiently(deadline, send).await?.attributes;
        Ok(was.and_then(|item| self.attributes.read(&item)))
    }

    /// Writes an operator's break into a hold. The first order counts (B3).
    pub(super) async fn revoke(
        &self,
        name: &LockName,
        by: &str,
        is_shared: bool,
        revocation: &Revocation,
        deadline: Instant,
    ) -> Result<(), DynamoFailure> {
        let change = match is_shared {
            true => self.of_reader(
                name,
                by,
                "SET #readers.#reader.#break = if_not_exists(#readers.#reader.#break, :break)",
                " AND attribute_exists(#readers.#reader)",
            ),
            false => Change::of(
                self.attributes.lock(name),
                "SET #break = if_not_exists(#break, :break)",
                "#owner = :owner",
            )
            .name("#owner", self.attributes.owner)
            .text(":owner", by),
        };
        let revocation = serde_json::to_string(revocation).unwrap_or_default();
        let change = change.name("#break", BREAK).text(":break", &revocation);
        self.update(change, ReturnValue::None, deadline).await.map(drop)
    }
}

/// Classifies the error of a cancelled transaction; `None`: it was not cancelled.
fn cancelled(error: &SdkError<TransactWriteItemsError>) -> Option<Result<Taking, DynamoFailure>> {
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = error.as_service_error()? else {
        return None;
    };
    let reasons = cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code());
    let codes: Vec<&str> = reasons.filter(|code| *code != "None").collect();
    Some(match codes.as_slice() {
        [] => Err(DynamoFailure::IN_DOUBT),
        codes if codes.contains(&"ConditionalCheckFailed") => Ok(Taking::Overtaken),
        codes if codes.contains(&"TransactionConflict") => Ok(Taking::Conflict),
        codes if codes.contains(&"ValidationError") => Err(DynamoFailure::Refused(BackendError::new(
            BackendErrorKind::Refused,
            format!("DynamoDB refuses the items of the lock: {cancelled}"),
        ))),
        // Throttled. The SDK may have retried after a try without an answer.
        codes => {
            let told = format!("DynamoDB cancels the transaction: {}", codes.join(", "));
            Err(DynamoFailure::passing(told).in_doubt())
        }
    })
}

/// SDK settings: `once` disables the SDK's retries.
fn repeats(once: bool) -> config::Builder {
    match once {
        true => config::Builder::new().retry_config(RetryConfig::disabled()),
        false => config::Builder::new(),
    }
}

/// A unique version.
fn random_version() -> String {
    format!("{:032x}", fastrand::u128(..))
}

pub(super) fn malformed(error: BuildError) -> DynamoFailure {
    let what = format!("the request can't be built: {error}");
    DynamoFailure::Refused(BackendError::new(BackendErrorKind::Refused, what))
}
