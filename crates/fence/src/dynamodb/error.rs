//! What can go wrong at a DynamoDB fence, and whose move is next.

use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a request was not made, or what its refusal means.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DynamoDbError {
    /// The rule said no; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No table has such a name, or no item such a key.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// An item without a key.
    #[error("the key of the item is empty; give its partition key and, if the table has one, its sort key")]
    NoKey,
    /// The effect can't be checked against the marks of every slot.
    #[error(
        "a permit of slot {slot} can't replace or delete the whole item: the marks of the other slots would go with it. \
         Use `Effect::Update`, or an item for each slot"
    )]
    WholeItem {
        /// The slot of the permit.
        slot: u32,
    },
    /// Something in the caller's part is the fence's alone.
    #[error(
        "`{what}` names what is the fence's own: attributes and placeholders that begin with `lk_`; rename it"
    )]
    Ours {
        /// What it is in.
        what: String,
    },
    /// A mark is no token. It is never read as "never seen".
    #[error(
        "the marks of the item are damaged: attribute `{attribute}` is {value}; nothing was done. Stop all writers, find \
         the last token granted, remove the attribute, and set the marks to it (`reset`)"
    )]
    Damaged {
        /// The attribute.
        attribute: String,
        /// What is in it, as JSON.
        value: String,
    },
    /// The fence let it pass; the caller's own condition did not hold. Nothing was done.
    #[error("the token is live, but the condition `{when}` did not hold; nothing was done")]
    When {
        /// The caller's condition.
        when: String,
    },
    /// The item came along as it is now, and the request passes there: it was refused for another reason.
    #[error(
        "the request was refused, though the item as it came with the refusal lets it pass; nothing was done. Ask for the \
         item with the refusal (ReturnValuesOnConditionCheckFailure: ALL_OLD), and hand it over"
    )]
    Unexplained,
    /// One of a transaction's requests did not pass; nothing was done.
    #[error("request {} of the transaction: {why}", index + 1)]
    Member {
        /// Which one, from 0.
        index: usize,
        /// Why.
        why: Box<DynamoDbError>,
    },
    /// A transaction was cancelled by something else than a condition; nothing was done.
    #[error(
        "the transaction was cancelled for `{code}` at request {}; nothing was done. {}", index + 1,
        if code == "TransactionConflict" { "Another one was at the item: send it again" }
        else { "See DynamoDB's TransactWriteItems for what the code means" }
    )]
    Cancelled {
        /// Which request, from 0.
        index: usize,
        /// DynamoDB's word for the reason.
        code: String,
    },
    /// A transaction that DynamoDB would not take.
    #[error("{what}; the limit is {limit}. {advice}")]
    Limit {
        /// What there is too much or too little of.
        what: String,
        /// How much there may be.
        limit: usize,
        /// What to do.
        advice: &'static str,
    },
}
