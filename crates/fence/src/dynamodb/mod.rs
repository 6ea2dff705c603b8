//! A fence in DynamoDB: the marks are attributes of the guarded item, the check is a condition of the write.
//! Feature `dynamodb`.
//!
//! Builds the requests and interprets refusals. The caller sends the requests: a [`DynamoRequest`] has the
//! parameters of DynamoDB's API as plain values, for any client, with or without an SDK.
//!
//! ```
//! use lockkeeper_fence::dynamodb::{DynamoDbError, DynamoDbFence, DynamoRequest, Effect, Guarded, Item, Resource, Update, Value};
//! use lockkeeper_fence::{Section, Token};
//!
//! /// Your client: sends a request. For `ConditionalCheckFailedException` it returns `Err` with the exception's item.
//! fn send(request: &DynamoRequest) -> Result<Item, Option<Item>> {
//!     # let _ = request;
//!     # Ok(Item::new())
//! }
//!
//! /// Sends a fenced request, and the second try if the fence returns one.
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
//! let item = fenced(DynamoDbFence.enter(&stock, section)?)?; // returns the item after the marks rose: this is the read
//! let pieces = item.get("pieces").and_then(Value::as_u64).unwrap_or(100) - 1;
//! let update = Update::new().set("pieces = :pieces").value(":pieces", Value::number(pieces));
//! fenced(DynamoDbFence.write(&stock, section, Effect::Update(update))?)?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Reads.** The response to `enter` contains the item after the marks rose. Any other read must be
//!   consistent (`ConsistentRead`), otherwise it may return a state from before `enter`.
//! - **A request without a response** may have taken effect, or may do so later (P12). Repeating `enter` is
//!   safe. A delayed `write` may take effect after later writes with the same token, and a repeated increment
//!   would count twice. So disable the client's own retries, and repeat a write only as the last one of the
//!   section; or acquire again and enter with the new token, after which the delayed write is refused. A
//!   repeated `check_once` is refused both if its first try took effect and if the token is stale, so a
//!   refusal leaves the outcome unknown; in a [`Transaction`] it may be repeated.
//! - **Deletes** leave a tombstone: [`Effect::Delete`]. Queries exclude it by
//!   `attribute_not_exists(lk_deleted)`. `enter` on a missing item creates one with key and marks only:
//!   [`DynamoDbFence::content`] returns the caller's attributes.
//! - **Durability**: acknowledged marks are as durable as DynamoDB's writes. They don't survive the restore
//!   of an older backup, and a global table with eventual consistency does not work: each region has its own
//!   marks, and the last writer wins. Write a resource in one region.
//! - **Only writes through the fence are checked.** A plain write bypasses it, and so does `DeleteItem`,
//!   which removes the marks too; a policy can refuse both (`dynamodb:Attributes`).

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
pub use request::{DynamoRequest, Operation};
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
    /// [`DynamoDbError::Resource`] for an invalid table name, [`DynamoDbError::NoKey`],
    /// [`DynamoDbError::Ours`].
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

    /// The table of the item.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> &Item {
        &self.key
    }
}

/// Builds fenced requests. Implements the full rule, including slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DynamoDbFence;

impl DynamoDbFence {
    /// Builds the request that raises the marks of `resource`. Its response contains the item after that, and
    /// serves as the read. A missing item is created, with its key and marks only.
    ///
    /// # Errors
    /// Currently none; a refusal is returned by [`Guarded::after_refusal`].
    pub fn enter(&self, resource: &Resource, section: Section) -> Result<Guarded, DynamoDbError> {
        Guarded::new(resource, Action::Enter, section, Effect::Update(Update::new()))
    }

    /// Builds the request that checks and writes in one step.
    ///
    /// # Errors
    /// [`Refused::SharedWrite`](crate::Refused::SharedWrite); [`DynamoDbError::WholeItem`] for a put or a
    /// delete by a permit of a slot; [`DynamoDbError::Ours`] if the effect names attributes of the fence.
    pub fn write(
        &self,
        resource: &Resource,
        section: Section,
        effect: Effect,
    ) -> Result<Guarded, DynamoDbError> {
        Guarded::new(resource, Action::Write, section, effect)
    }

    /// As [`write`](Self::write), but each token passes only once, and `enter` is not needed: for an effect
    /// that does not depend on anything read before, executed at most once per grant (rule F-d).
    ///
    /// # Errors
    /// As `write`; and by [`Guarded::after_refusal`], [`Refused::Repeated`](crate::Refused::Repeated) for a
    /// token that has passed before, even if that was a first try without a response.
    pub fn check_once(
        &self,
        resource: &Resource,
        section: Section,
        effect: Effect,
    ) -> Result<Guarded, DynamoDbError> {
        Guarded::new(resource, Action::CheckOnce, section, effect)
    }

    /// The marks of an item that was read; the default ones for `None`.
    ///
    /// # Errors
    /// [`DynamoDbError::Damaged`].
    pub fn marks(&self, item: Option<&Item>) -> Result<Marks, DynamoDbError> {
        item.map_or_else(|| Ok(Marks::default()), marks::marks)
    }

    /// The caller's attributes of an item, without key and marks. `None` if there are none: the item was only
    /// entered, or deleted.
    #[must_use]
    pub fn content(&self, resource: &Resource, item: &Item) -> Option<Item> {
        let own: Item = item
            .iter()
            .filter(|(name, _)| guarded::is_the_callers(name, resource))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        (!own.is_empty()).then_some(own)
    }

    /// Builds the request that sets the marks of `resource` to `to`, for every slot, *unconditionally*:
    /// tokens below `to` are stale, tokens from `to` on pass. `item` must be the current item, since the
    /// request names the slots whose marks it removes. Only for the case that a lock service with lower
    /// tokens takes over, or that marks are damaged, and with all writers stopped: lowering the marks lets
    /// stale sections pass.
    #[must_use]
    pub fn reset(&self, resource: &Resource, item: Option<&Item>, to: Token) -> DynamoRequest {
        guarded::reset(resource, item, to)
    }
}
