//! The DynamoDB fence: its requests as JSON, which `lib/fences/dynamodb.cjs` sends.

use lockkeeper_bindings::fences::{dynamodb_item, dynamodb_request};
use lockkeeper_fence::dynamodb::{Guarded, Resource};
use napi_derive::napi;

use super::{SectionOf, action};
use crate::errors::throw;

/// A fenced request.
#[napi]
pub struct DynamoDbRequest(Guarded);

#[napi]
impl DynamoDbRequest {
    /// `effect` has `update`, `put` or `delete`; nothing for `enter`.
    #[napi(constructor)]
    pub fn new(
        action: String,
        table: String,
        key: String,
        section: SectionOf,
        effect: String,
    ) -> napi::Result<Self> {
        let (action, section) = (self::action(&action)?, section.checked()?);
        let made = || {
            let resource = Resource::new(&table, dynamodb_item("key", &key)?)?;
            // Written by `JSON.stringify`.
            dynamodb_request(action, &resource, section, &serde_json::from_str(&effect).unwrap_or_default())
        };
        made().map(Self).map_err(throw)
    }

    /// `PutItem` or `UpdateItem`.
    #[napi(getter)]
    pub fn operation(&self) -> Option<&str> {
        self.0.request().target().rsplit('.').next()
    }

    /// The request's parameters.
    #[napi(getter)]
    pub fn body(&self) -> String {
        self.0.request().body().to_string()
    }

    /// The second try after a refusal, or an exception that says why. `refused` is the item that came with
    /// it.
    #[napi]
    pub fn after_refusal(&self, refused: Option<String>) -> napi::Result<DynamoDbRequest> {
        let refused = refused.map(|refused| dynamodb_item("item", &refused)).transpose().map_err(throw)?;
        let next = self.0.clone().after_refusal(refused.as_ref());
        next.map(Self).map_err(throw)
    }
}
