//! Changes of locks as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use crate::view::LockView;
use axum::response::sse::{Event, KeepAlive, Sse};
use lockkeeper_wire::v1::{self, WatchResponse, watch_response::What};
use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};
use utoipa::IntoParams;

use crate::call::{Client, InQuery};
use crate::problem::Problem;
use crate::service::Origin;

/// The time without an event after which a comment is sent, by which both sides notice a dead connection.
const COMMENT_AFTER: Duration = Duration::from_secs(15);

/// The locks that are watched.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WatchedNames {
    /// Only the lock of this name and those below it.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
}

/// The state of the locks at and below a name, then every change.
///
/// Events: `state`, once for each lock in use, then `synced`; changes may come in between. `changed`: the
/// state of a lock after a change; without holds it is free. `error`: a problem, after which the connection
/// ends; watch again. The data of `state` and `changed` is a `Lock`.
#[utoipa::path(get, path = "/v1/watch", tag = "locks", params(WatchedNames),
    responses((status = 200, body = LockView, content_type = "text/event-stream")))]
pub(crate) async fn watch<O: Origin>(
    Client(mut calls): Client<O>,
    InQuery(watched): InQuery<WatchedNames>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let changes = calls.watch(v1::WatchRequest { prefix: watched.prefix }).await?.into_inner();
    Ok(Sse::new(changes.map(|change| Ok(event(change)))).keep_alive(KeepAlive::new().interval(COMMENT_AFTER)))
}

fn event(change: Result<WatchResponse, Status>) -> Event {
    match change.map(|change| change.what) {
        Ok(Some(What::State(lock))) => json("state", &LockView::from(lock)),
        Ok(Some(What::Changed(lock))) => json("changed", &LockView::from(lock)),
        // An event without data is not delivered by browsers.
        Ok(Some(What::Synced(_))) => Event::default().event("synced").data("{}"),
        Ok(None) => json("error", &crate::call::unexpected()),
        Err(status) => json("error", &Problem::from(status)),
    }
}

fn json(event: &str, data: &impl Serialize) -> Event {
    // Never fails: these types have string keys only. JSON text has no newline.
    Event::default().event(event).json_data(data).unwrap_or_default()
}
