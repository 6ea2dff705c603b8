//! The DynamoDB fence: its requests, as JSON for Python's client.

use lockkeeper_bindings::fences;
use lockkeeper_fence::dynamodb::{
    DynamoDbFence, DynamoRequest, Guarded, Item, Operation, Resource, item_to_json,
};
use pyo3::prelude::*;

use super::Asked;
use crate::errors::exception;
use crate::options::token;

/// A fenced request.
#[pyclass(frozen)]
pub(crate) struct DynamoDbRequest(Guarded);

fn item(json: &str) -> PyResult<Item> {
    fences::dynamodb_item("item", json).map_err(exception)
}

fn resource(table: &str, key: &str) -> PyResult<Resource> {
    Resource::new(table, item(key)?).map_err(exception)
}

/// A request of `resource`. `effect` is JSON that Python has written.
#[pyfunction]
#[pyo3(signature = (table, key, asked, effect="{}"))]
pub(crate) fn dynamodb_request(
    table: &str,
    key: &str,
    asked: Asked<'_>,
    effect: &str,
) -> PyResult<DynamoDbRequest> {
    let (resource, (action, section)) = (resource(table, key)?, asked.parse()?);
    let effect = serde_json::from_str(effect).unwrap_or_default();
    let request = fences::dynamodb_request(action, &resource, section, &effect);
    request.map(DynamoDbRequest).map_err(exception)
}

/// The caller's own attributes of an item, as JSON; `None` if there are none.
#[pyfunction]
pub(crate) fn dynamodb_content(table: &str, key: &str, item: &str) -> PyResult<Option<String>> {
    let content = DynamoDbFence.content(&resource(table, key)?, &self::item(item)?);
    Ok(content.map(|content| item_to_json(&content).to_string()))
}

/// The request that sets the marks to a token, unconditionally.
#[pyfunction]
#[pyo3(signature = (table, key, to, item=None))]
pub(crate) fn dynamodb_reset(
    table: &str,
    key: &str,
    to: u64,
    item: Option<&str>,
) -> PyResult<(&'static str, String)> {
    let item = item.map(self::item).transpose()?;
    Ok(parts(&DynamoDbFence.reset(&resource(table, key)?, item.as_ref(), token(to)?)))
}

/// The name of the call, and its parameters as JSON.
fn parts(request: &DynamoRequest) -> (&'static str, String) {
    let call = match request.operation {
        Operation::PutItem { .. } => "put_item",
        Operation::UpdateItem { .. } => "update_item",
    };
    (call, request.body().to_string())
}

#[pymethods]
impl DynamoDbRequest {
    fn parts(&self) -> (&'static str, String) {
        parts(self.0.request())
    }

    /// The request to send after a refusal with this item.
    ///
    /// # Errors
    /// The refusal.
    fn after_refusal(&self, item: Option<&str>) -> PyResult<Self> {
        let item = item.map(self::item).transpose()?;
        let next = self.0.clone().after_refusal(item.as_ref());
        next.map(Self).map_err(exception)
    }
}
