//! A fence in DynamoDB: the marks are attributes of the guarded item, the check is a condition of the write. Feature
//! `dynamodb`.
//!
//! Responsible for the requests and for what refusals mean. It sends nothing, and needs no SDK: a [`Request`] has the
//! parameters of DynamoDB's API as plain values, for whichever client sends it.
//!
//! ```
//! use lockkeeper_fence::dynamodb::{DynamoDbError, DynamoDbFence, Effect, Guarded, Item, Request, Resource, Update, Value};
//! use lockkeeper_fence::{Section, Token};
//!
//! /// What your client does: sends a request; on `ConditionalCheckFailedException` gives the item that came with it.
//! fn send(request: &Request) -> Result<Item, Option<Item>> {
//!     # let _ = request;
//!     # Ok(Item::new())
//! }
//!
//! /// Sends what is fenced, and once more if it must.
//! fn fenced(mut guarded: Guarded) -> Result<Item, DynamoDbError> {
//!     loop {
//!         match send(guarded.request()) {
//!             Ok(item) => return Ok(item),
//!             Err(item) => guarded = guarded.after_refusal(item.as_ref())?,
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), DynamoDbError> {
//! # let token = Token::MIN;
//! let stock = Resource::new("stock", [("id".to_owned(), Value::text("screws"))].into())?;
//! let section = Section::exclusive(token); // the token of the guard
//! let item = fenced(DynamoDbFence.enter(&stock, section)?)?; // the item as it is after the marks rose: this is the read
//! let pieces = item.get("pieces").and_then(Value::as_u64).unwrap_or(100) - 1;
//! let update = Update::new().set("pieces = :pieces").value(":pieces", Value::number(pieces));
//! fenced(DynamoDbFence.write(&stock, section, Effect::Update(update))?)?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Reads.** `enter` gives the item as it is after the marks rose. Another read must be consistent
//!   (`ConsistentRead`), or it may show what was before the mark.
//! - **A request without an answer** may have been done, or may be done later (P12). Repeating `enter` is
//!   safe. A `write` that lingers may take effect after later writes with the same token, and one that counts would count
//!   twice: switch off the client's own retries, and repeat it only as the last write of the section, or acquire again and
//!   enter with the new token, which shuts it out. Repeating `check_once` tells that the token was here, whether or not the first try brought it; in a
//!   [`Transaction`] it may be repeated.
//! - **Deletes** leave a tombstone: [`Effect::Delete`]. Queries leave it out by `attribute_not_exists(lk_deleted)`.
//!   `enter` on what does not exist makes an item of key and marks: [`DynamoDbFence::content`] tells what is there.
//! - **What survives**: everything acknowledged, as DynamoDB keeps it on several disks. Not a restore of an older backup,
//!   and not a global table with eventual consistency: two regions each have marks of their own, and the last writer wins.
//!   Write a resource in one region.
//! - **Only what goes through the fence is fenced.** A plain write goes round it, and so does `DeleteItem`, which takes the
//!   marks along; a policy can refuse both (`dynamodb:Attributes`).

mod error;
mod guarded;
mod marks;
mod request;
mod transaction;
mod update;
mod value;

pub use error::DynamoDbError;
pub use guarded::Guarded;
pub use marks::DELETED;
pub use request::{Operation, Request};
pub use transaction::{IDEMPOTENCY_BYTES_MAX, MEMBERS_MAX, Reason, Transaction};
pub use update::{Effect, Update};
pub use value::{Item, Value, item_from_json, item_to_json};

use crate::resource;
use crate::rule::{Action, Marks, Section};
use lockkeeper_core::Token;

/// A guarded item: its table and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    table: String,
    key: Item,
}

impl Resource {
    /// The item of `table` with `key`: its partition key and, if the table has one, its sort key.
    ///
    /// # Errors
    /// [`DynamoDbError::Resource`] for a name that no table has, [`DynamoDbError::NoKey`], [`DynamoDbError::Ours`].
    pub fn new(table: &str, key: Item) -> Result<Self, DynamoDbError> {
        resource::checked(table)?;
        if key.is_empty() {
            return Err(DynamoDbError::NoKey);
        }
        match key.keys().find(|name| marks::is_ours(name)) {
            Some(ours) => Err(DynamoDbError::Ours { what: ours.clone() }),
            None => Ok(Self { table: table.to_owned(), key }),
        }
    }

    /// Its table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &Item {
        &self.key
    }
}

/// Makes fenced requests. The full rule is kept, slots included: see the attributes in `docs/fencing.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DynamoDbFence;

impl DynamoDbFence {
    /// Raises the marks of `resource`, and gives the item as it is then: it is the read. An item that is not there comes
    /// into being, with its key and marks only.
    ///
    /// # Errors
    /// None before it is sent, so far; the refusal comes from [`Guarded::after_refusal`].
    pub fn enter(&self, resource: &Resource, section: Section) -> Result<Guarded, DynamoDbError> {
        Guarded::new(resource, Action::Enter, section, Effect::Update(Update::new()))
    }

    /// Checks, and writes in the same request.
    ///
    /// # Errors
    /// [`Refused::SharedWrite`](crate::Refused::SharedWrite); [`DynamoDbError::WholeItem`] for a put or a delete by a
    /// permit of a slot; [`DynamoDbError::Ours`] if the effect names attributes of the fence.
    pub fn write(
        &self,
        resource: &Resource,
        section: Section,
        effect: Effect,
    ) -> Result<Guarded, DynamoDbError> {
        Guarded::new(resource, Action::Write, section, effect)
    }

    /// As [`write`](Self::write), once per token and without `enter`: for one blind effect per grant (F-d).
    ///
    /// # Errors
    /// As `write`; and after it was sent, [`Refused::Repeated`](crate::Refused::Repeated) for a token that has been here,
    /// also if it came with a first try whose answer was lost.
    pub fn check_once(
        &self,
        resource: &Resource,
        section: Section,
        effect: Effect,
    ) -> Result<Guarded, DynamoDbError> {
        Guarded::new(resource, Action::CheckOnce, section, effect)
    }

    /// The marks of an item, as it was read; the default ones for none.
    ///
    /// # Errors
    /// [`DynamoDbError::Damaged`].
    pub fn marks(&self, item: Option<&Item>) -> Result<Marks, DynamoDbError> {
        item.map_or_else(|| Ok(Marks::default()), marks::marks)
    }

    /// What the callers have written into an item: without its key and marks. `None` if that is nothing: the item was
    /// only entered, or deleted.
    #[must_use]
    pub fn content(&self, resource: &Resource, item: &Item) -> Option<Item> {
        let own: Item = item
            .iter()
            .filter(|(name, _)| guarded::is_the_callers(name, resource))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        (!own.is_empty()).then_some(own)
    }

    /// Sets the marks of `resource` to `to`, for every slot, *whatever they were*: tokens below are out, tokens from `to`
    /// on pass. `item` as it was just read: its slots are forgotten. To be used on purpose only, when a lock service with
    /// lower tokens takes over or marks are damaged, with all writers stopped: lowering the marks lets in who was out.
    #[must_use]
    pub fn reset(&self, resource: &Resource, item: Option<&Item>, to: Token) -> Request {
        guarded::reset(resource, item, to)
    }
}
