//! Several fenced requests as one: all of them, or none (TransactWriteItems).

use serde_json::json;

use super::error::DynamoDbError;
use super::guarded::Guarded;
use super::value::Item;

/// Most requests of one transaction: DynamoDB's limit.
pub const MEMBERS_MAX: usize = 100;
/// Longest idempotency token that a caller may give, in bytes: DynamoDB's 36, less what tells the tries apart.
pub const IDEMPOTENCY_BYTES_MAX: usize = 32;

/// Why DynamoDB cancelled a member of a transaction: an entry of `CancellationReasons`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// `None`, `ConditionalCheckFailed`, `TransactionConflict`, …
    pub code: String,
    /// The item, if it came along.
    pub item: Option<Item>,
}

/// Fenced requests that happen together or not at all.
///
/// Send [`body`](Self::body) under [`TARGET`](Self::TARGET). If DynamoDB answers `TransactionCanceledException`, hand its
/// reasons to [`after_cancelled`](Self::after_cancelled): that is the refusal, or the transaction to be sent instead. Sent
/// again after a time-out, with the same [`idempotency_token`](Self::idempotency_token), it happens once within ten
/// minutes: here also `check_once` may be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a transaction does nothing before it is sent"]
pub struct Transaction {
    members: Vec<Guarded>,
    idempotency: String,
    tries: usize,
}

impl Transaction {
    /// The header `X-Amz-Target`.
    pub const TARGET: &'static str = "DynamoDB_20120810.TransactWriteItems";

    /// A transaction of `members`, each of another item. `idempotency`: 1 to 32 bytes of the caller's choice, another for
    /// each transaction.
    ///
    /// # Errors
    /// [`DynamoDbError::Limit`].
    pub fn new(members: Vec<Guarded>, idempotency: &str) -> Result<Self, DynamoDbError> {
        let limit = |what: String, limit, advice| Err(DynamoDbError::Limit { what, limit, advice });
        if members.is_empty() || members.len() > MEMBERS_MAX {
            let what = format!("a transaction of {} requests", members.len());
            return limit(what, MEMBERS_MAX, "Give at least one, and split larger ones");
        }
        if idempotency.is_empty() || idempotency.len() > IDEMPOTENCY_BYTES_MAX {
            let what = format!("an idempotency token of {} bytes", idempotency.len());
            return limit(what, IDEMPOTENCY_BYTES_MAX, "Give at least one byte; a UUID without dashes fits");
        }
        Ok(Self { members, idempotency: idempotency.to_owned(), tries: 0 })
    }

    /// The requests, in order.
    pub fn members(&self) -> &[Guarded] {
        &self.members
    }

    /// For `ClientRequestToken`: the caller's, and which try this is, since DynamoDB takes no other request under the same.
    #[must_use]
    pub fn idempotency_token(&self) -> String {
        format!("{}-{}", self.idempotency, self.tries)
    }

    /// The body, as JSON.
    #[must_use]
    pub fn body(&self) -> serde_json::Value {
        let members: Vec<_> = self.members.iter().map(|member| member.request().member()).collect();
        json!({ "TransactItems": members, "ClientRequestToken": self.idempotency_token() })
    }

    /// What a cancellation means; `reasons` has one entry for each request, in order. Gives the transaction that is to be
    /// sent instead.
    ///
    /// # Errors
    /// [`DynamoDbError::Member`] with what [`Guarded::after_refusal`] says of the first request that did not pass;
    /// [`DynamoDbError::Cancelled`] for another reason, of which a `TransactionConflict` may be sent again as it is.
    pub fn after_cancelled(mut self, reasons: &[Reason]) -> Result<Self, DynamoDbError> {
        let mut changed = false;
        for (index, (member, reason)) in self.members.iter_mut().zip(reasons).enumerate() {
            match reason.code.as_str() {
                "None" => {}
                "ConditionalCheckFailed" => {
                    let next = member.clone().after_refusal(reason.item.as_ref());
                    *member = next.map_err(|why| DynamoDbError::Member { index, why: Box::new(why) })?;
                    changed = true;
                }
                code => return Err(DynamoDbError::Cancelled { index, code: code.to_owned() }),
            }
        }
        if !changed {
            return Err(DynamoDbError::Unexplained);
        }
        // One try more for each member at most: none changes twice.
        self.tries += 1;
        Ok(self)
    }
}
