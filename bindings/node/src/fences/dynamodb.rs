//! The DynamoDB fence: its requests as JSON, which `lib/fences/dynamodb.cjs` sends.

use lockkeeper_fence::Action;
use lockkeeper_fence::dynamodb::{
    DynamoDbFence, Effect, Guarded, Item, Resource, Update, Value, item_from_json,
};
use napi_derive::napi;
use serde_json::Value as Json;

use super::{SectionOf, action};
use crate::errors::{NativeError, throw};

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
        let (action, section) = (self::action(&action)?, section.checked().map_err(throw)?);
        let made = || {
            let resource = Resource::new(&table, item("key", &json(&key))?)?;
            Ok(match action {
                Action::Enter => DynamoDbFence.enter(&resource, section)?,
                Action::Write => DynamoDbFence.write(&resource, section, self::effect(&json(&effect))?)?,
                Action::CheckOnce => {
                    DynamoDbFence.check_once(&resource, section, self::effect(&json(&effect))?)?
                }
            })
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
        let refused = refused.map(|refused| item("item", &json(&refused))).transpose().map_err(throw)?;
        let next = self.0.clone().after_refusal(refused.as_ref());
        next.map(Self).map_err(|error| throw(error.into()))
    }
}

/// Written by `JSON.stringify`.
fn json(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_default()
}

fn invalid(option: &'static str, json: &Json) -> NativeError {
    NativeError::Option {
        option,
        value: json.to_string(),
        allowed: "give values as `{ N: \"7\" }` or `{ S: \"text\" }`",
    }
}

fn item(option: &'static str, json: &Json) -> Result<Item, NativeError> {
    item_from_json(json).ok_or_else(|| invalid(option, json))
}

fn effect(given: &Json) -> Result<Effect, NativeError> {
    if let Some(put) = given.get("put") {
        return Ok(Effect::Put(item("put", put)?));
    }
    if given.get("delete").is_some() {
        return Ok(Effect::Delete);
    }
    let texts = |name: &str| {
        let texts = given["update"][name].as_array().into_iter().flatten();
        texts.map(|text| text.as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let mut update = Update::new();
    update = texts("set").iter().fold(update, |update, action| update.set(action));
    update = texts("remove").iter().fold(update, |update, action| update.remove(action));
    update = texts("add").iter().fold(update, |update, action| update.add(action));
    update = texts("delete").iter().fold(update, |update, action| update.delete(action));
    if let Some(when) = given["update"]["when"].as_str() {
        update = update.when(when);
    }
    for (placeholder, name) in given["update"]["names"].as_object().into_iter().flatten() {
        update = update.name(placeholder, name.as_str().unwrap_or_default());
    }
    for (placeholder, value) in given["update"]["values"].as_object().into_iter().flatten() {
        let value = Value::from_json(value).ok_or_else(|| invalid("values", value))?;
        update = update.value(placeholder, value);
    }
    Ok(Effect::Update(update))
}
