//! Errors of the DynamoDB fence.

use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a request could not be built, or why it was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DynamoDbError {
    /// The rule refused the section; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text is not a valid table name.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// An item without a key.
    #[error("the key of the item is empty; give its partition key and, if the table has one, its sort key")]
    NoKey,
    /// A permit of one slot may not replace or delete the item: that would remove the marks of the other
    /// slots.
    #[error(
        "a permit of slot {slot} can't replace or delete the whole item: the marks of the other slots would go with it. \
         Use `Effect::Update`, or an item for each slot"
    )]
    WholeItem {
        /// The slot of the permit.
        slot: u32,
    },
    /// The caller's part of the request uses a name reserved for the fence.
    #[error(
        "`{what}` names what is the fence's own: attributes and placeholders that begin with `lk_`; rename it"
    )]
    Ours {
        /// The text with the reserved name.
        what: String,
    },
    /// A mark is not a valid token. The item is never treated as "never seen".
    #[error(
        "the marks of the item are damaged: attribute `{attribute}` is {value}; nothing was done. Stop all writers, find \
         the last token granted, remove the attribute, and set the marks to it (`reset`)"
    )]
    Damaged {
        /// The attribute.
        attribute: String,
        /// The attribute's value, as JSON.
        value: String,
    },
    /// The check passed, but the caller's own condition did not hold. Nothing was done.
    #[error("the token is live, but the condition `{when}` did not hold; nothing was done")]
    When {
        /// The caller's condition.
        when: String,
    },
    /// The refusal can't be explained. Either the request would pass on the item that the caller handed over,
    /// which then is not the item that came with the refusal; or the reasons of a cancelled transaction
    /// contain no refusal.
    #[error(
        "the request was refused, though the item as it came with the refusal lets it pass; nothing was done. Ask for the \
         item with the refusal (ReturnValuesOnConditionCheckFailure: ALL_OLD), and hand it over"
    )]
    Unexplained,
    /// A request of a transaction was refused; nothing was done.
    #[error("request {} of the transaction: {why}", index + 1)]
    Member {
        /// The index of the request, from 0.
        index: usize,
        /// The reason.
        why: Box<DynamoDbError>,
    },
    /// A transaction was cancelled for another reason than a condition; nothing was done.
    #[error(
        "the transaction was cancelled for `{code}` at request {}; nothing was done. {}", index + 1,
        if code == "TransactionConflict" { "Another one was at the item: send it again" }
        else { "See DynamoDB's TransactWriteItems for what the code means" }
    )]
    Cancelled {
        /// The index of the request, from 0.
        index: usize,
        /// DynamoDB's code of the reason.
        code: String,
    },
    /// A transaction beyond DynamoDB's limits.
    #[error("{what}; the limit is {limit}. {advice}")]
    Limit {
        /// The quantity beyond the limit.
        what: String,
        /// The limit.
        limit: usize,
        /// The remedy.
        advice: &'static str,
    },
}
