//! The DynamoDB fence: its requests, as JSON for Python's client.

use std::collections::BTreeMap;

use lockkeeper_fence::dynamodb::{
    DynamoDbError, DynamoDbFence, Effect, Guarded, Item, Operation, Resource, Update, Value, item_from_json,
    item_to_json,
};
use lockkeeper_fence::{Action, dynamodb};
use pyo3::prelude::*;
use serde_json::Value as Json;

use super::{Asked, token};
use crate::errors;

/// A fenced request.
#[pyclass(frozen)]
pub(crate) struct DynamoDbRequest(Guarded);

/// The effect of a write: JSON in DynamoDB's form, or parts of expressions.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct NativeUpdate {
    set: Vec<String>,
    remove: Vec<String>,
    add: Vec<String>,
    delete: Vec<String>,
    when: Option<String>,
    names: BTreeMap<String, String>,
    values: String,
}

/// An update, or the item of a put; none of both is a deletion.
#[derive(FromPyObject)]
pub(crate) struct NativeEffect(Option<NativeUpdate>, Option<String>);

fn item(json: &str) -> PyResult<Item> {
    let invalid = || {
        errors::invalid_option("item", json, "give values with their types, such as {'id': {'S': 'screws'}}")
    };
    let parsed: Json = serde_json::from_str(json).map_err(|_| invalid())?;
    item_from_json(&parsed).ok_or_else(invalid)
}

fn resource(table: &str, key: &str) -> PyResult<Resource> {
    Resource::new(table, item(key)?).map_err(|error| errors::dynamodb_fence(&error))
}

impl NativeEffect {
    fn parse(self) -> PyResult<Effect> {
        Ok(match self {
            Self(None, None) => Effect::Delete,
            Self(None, Some(json)) => Effect::Put(item(&json)?),
            Self(Some(parts), _) => {
                let mut update = Update::new();
                update = parts.set.iter().fold(update, |update, action| update.set(action));
                update = parts.remove.iter().fold(update, |update, action| update.remove(action));
                update = parts.add.iter().fold(update, |update, action| update.add(action));
                update = parts.delete.iter().fold(update, |update, action| update.delete(action));
                update = parts.names.iter().fold(update, |update, (short, name)| update.name(short, name));
                let values: BTreeMap<String, Value> = item(&parts.values)?;
                update =
                    values.into_iter().fold(update, |update, (short, value)| update.value(&short, value));
                Effect::Update(parts.when.iter().fold(update, |update, condition| update.when(condition)))
            }
        })
    }
}

/// A request of `resource`.
#[pyfunction]
#[pyo3(signature = (table, key, asked, effect=None))]
pub(crate) fn dynamodb_request(
    table: &str,
    key: &str,
    asked: Asked,
    effect: Option<NativeEffect>,
) -> PyResult<DynamoDbRequest> {
    let (resource, (action, section)) = (resource(table, key)?, asked.parse()?);
    let effect = effect.map_or(Ok(Effect::Update(Update::new())), NativeEffect::parse)?;
    let request = match action {
        Action::Enter => DynamoDbFence.enter(&resource, section),
        Action::Write => DynamoDbFence.write(&resource, section, effect),
        Action::CheckOnce => DynamoDbFence.check_once(&resource, section, effect),
    };
    request.map(DynamoDbRequest).map_err(|error: DynamoDbError| errors::dynamodb_fence(&error))
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
fn parts(request: &dynamodb::DynamoRequest) -> (&'static str, String) {
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
        next.map(Self).map_err(|error| errors::dynamodb_fence(&error))
    }
}
