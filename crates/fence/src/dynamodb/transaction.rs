//! Several fenced requests, atomically (TransactWriteItems).

use serde_json::json;

use super::error::DynamoDbError;
use super::guarded::Guarded;
use super::value::Item;

/// Most requests of one transaction: DynamoDB's limit.
pub const MEMBERS_MAX: usize = 100;
/// Longest idempotency token that a caller may give, in bytes: DynamoDB's limit of 36, less the suffix with
/// the number of the try.
pub const IDEMPOTENCY_BYTES_MAX: usize = 32;

/// Why DynamoDB cancelled a member of a transaction: an entry of `CancellationReasons`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// `None`, `ConditionalCheckFailed`, `TransactionConflict`, …
    pub code: String,
    /// The item, if the response contains it.
    pub item: Option<Item>,
}

/// Fenced requests that take effect together or not at all.
///
/// Send [`body`](Self::body) under [`TARGET`](Self::TARGET). If DynamoDB returns
/// `TransactionCanceledException`, pass its reasons to [`after_cancelled`](Self::after_cancelled), which
/// returns the refusal, or the transaction to send instead. DynamoDB executes a transaction that is sent
/// again with the same [`idempotency_token`](Self::idempotency_token) only once, within ten minutes. So after
/// a time-out even a `check_once` may be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a transaction does nothing before it is sent"]
pub struct Transaction {
    members: Vec<Guarded>,
    idempotency: String,
    tries: usize,
}

impl Transaction {
    /// The value of the header `X-Amz-Target`.
    pub const TARGET: &'static str = "DynamoDB_20120810.TransactWriteItems";

    /// A transaction of `members`, each for a different item (DynamoDB rejects two for one item).
    /// `idempotency`: 1 to 32 bytes, unique for each transaction.
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

    /// The value of `ClientRequestToken`: the caller's token, and the number of the try, since DynamoDB
    /// rejects a different request under the same token.
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

    /// Interprets a cancellation; `reasons` has one entry per request, in order. Returns the transaction to
    /// send instead.
    ///
    /// # Errors
    /// [`DynamoDbError::Member`] with the error of [`Guarded::after_refusal`] for the first request that was
    /// refused; [`DynamoDbError::Cancelled`] for another reason (after a `TransactionConflict` the
    /// transaction may be sent again unchanged); [`DynamoDbError::Unexplained`] if `reasons` has no refusal.
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
        // A caller's loop ends: every pass changes at least one member, and a member changes at most once.
        self.tries += 1;
        Ok(self)
    }
}
