//! What the fences of a binding take, and the requests that its language sends.

use std::path::Path;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use lockkeeper_fence::dynamodb::{
    DynamoDbFence, Effect, Guarded, Item, Resource, Update, Value, item_from_json,
};
use lockkeeper_fence::http::{Fenced, Guarding, HttpFence, Pass, Rules, is_read};
use lockkeeper_fence::{Action, DurableMarks, ModeKind, Section, Slot, Token};
use serde_json::Value as Json;

use crate::errors::CallError;

/// # Errors
/// It is none of the three.
pub fn action(name: &str) -> Result<Action, CallError> {
    let actions = [Action::Enter, Action::Write, Action::CheckOnce];
    actions.into_iter().find(|known| known.to_string() == name).ok_or_else(|| CallError::Option {
        option: "action",
        value: name.to_owned(),
        allowed: "give enter, write, or check_once",
    })
}

/// The section of a hold.
///
/// # Errors
/// No lock is held in this mode, or it has no such slot.
pub fn section(mode: &str, slot: Option<Slot>, token: Token) -> Result<Section, CallError> {
    let modes = [ModeKind::Exclusive, ModeKind::Shared, ModeKind::Permit];
    let mode =
        modes.into_iter().find(|known| known.to_string() == mode).ok_or_else(|| CallError::Option {
            option: "mode",
            value: mode.to_owned(),
            allowed: "give exclusive, shared, or permit, as the lock is held",
        })?;
    Ok(Section::new(mode, slot, token)?)
}

/// A fenced request to DynamoDB. `effect` has one of `update` (lists `set`, `remove`, `add` and `delete`,
/// `when`, `names`, `values`), `put` (an item), and `delete`; it has no effect for `enter`.
///
/// # Errors
/// Of the fence, or a value has no type of DynamoDB.
pub fn dynamodb_request(
    action: Action,
    resource: &Resource,
    section: Section,
    effect: &Json,
) -> Result<Guarded, CallError> {
    Ok(match action {
        Action::Enter => DynamoDbFence.enter(resource, section)?,
        Action::Write => DynamoDbFence.write(resource, section, self::effect(effect)?)?,
        Action::CheckOnce => DynamoDbFence.check_once(resource, section, self::effect(effect)?)?,
    })
}

/// An item, as JSON with DynamoDB's types.
///
/// # Errors
/// A value has no type, or not its type's form.
pub fn dynamodb_item(option: &'static str, json: &str) -> Result<Item, CallError> {
    let parsed = serde_json::from_str(json).unwrap_or_default();
    item_from_json(&parsed).ok_or_else(|| untyped(option, &parsed))
}

fn untyped(option: &'static str, json: &Json) -> CallError {
    let allowed = "give values with their types, as in {\"id\": {\"S\": \"screws\"}}";
    CallError::Option { option, value: json.to_string(), allowed }
}

fn effect(given: &Json) -> Result<Effect, CallError> {
    if let Some(put) = given.get("put") {
        return Ok(Effect::Put(item_from_json(put).ok_or_else(|| untyped("put", put))?));
    }
    if given.get("delete").is_some() {
        return Ok(Effect::Delete);
    }
    let given = &given["update"];
    let texts = |name: &str| {
        let texts = given[name].as_array().into_iter().flatten();
        texts.map(|text| text.as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let mut update = Update::new();
    update = texts("set").iter().fold(update, |update, action| update.set(action));
    update = texts("remove").iter().fold(update, |update, action| update.remove(action));
    update = texts("add").iter().fold(update, |update, action| update.add(action));
    update = texts("delete").iter().fold(update, |update, action| update.delete(action));
    if let Some(when) = given["when"].as_str() {
        update = update.when(when);
    }
    for (placeholder, name) in given["names"].as_object().into_iter().flatten() {
        update = update.name(placeholder, name.as_str().unwrap_or_default());
    }
    for (placeholder, value) in given["values"].as_object().into_iter().flatten() {
        let value = Value::from_json(value).ok_or_else(|| untyped("values", value))?;
        update = update.value(placeholder, value);
    }
    Ok(Effect::Update(update))
}

/// The HTTP fence of a server, with its marks in a file.
pub type ServerFence = HttpFence<DurableMarks>;

/// Opens the marks in a file, which is created if it does not exist. `wait`: how long a request waits for
/// those with lower tokens.
///
/// # Errors
/// The file can't be used.
pub fn http_fence(path: &Path, wait: Duration) -> Result<ServerFence, CallError> {
    Ok(HttpFence::with(DurableMarks::open(path)?, Rules::default().wait_at_most(wait)))
}

/// The fence's decision on a request.
pub enum Admission {
    /// It has no token and needs none.
    Free,
    /// It is let through, until its handler has ended.
    Passed(Pass, Fenced),
    /// It is answered in place of the handler.
    Answered(Response<Vec<u8>>),
}

/// Checks a request. `token_required`: by default, whether its method may write.
pub async fn admit(
    fence: &ServerFence,
    request: Request<()>,
    token_required: Option<bool>,
    resource: Option<String>,
) -> Admission {
    let (mut parts, ()) = request.into_parts();
    let token_required = token_required.unwrap_or(!is_read(&parts.method));
    let request = match fence.read(&mut parts, Guarding { token_required, resource }) {
        Ok(None) => return Admission::Free,
        Ok(Some(request)) => request,
        Err(response) => return Admission::Answered(response.map(Vec::from)),
    };
    let (fenced, is_answered) = (request.fenced().clone(), request.is_answered_by_fence());
    let passed = match request.admit().await {
        Ok(admitted) => admitted.raise().await,
        Err(response) => Err(response),
    };
    match passed {
        Ok(_) if is_answered => {
            let mut response = Response::new(Vec::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            Admission::Answered(response)
        }
        Ok(pass) => Admission::Passed(pass, fenced),
        Err(response) => Admission::Answered(response.map(Vec::from)),
    }
}
