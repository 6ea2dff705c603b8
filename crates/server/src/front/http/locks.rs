//! Locks, as anybody with the permission sees them, and the orders of operators.

use axum::Json;
use lockkeeper_wire::v1;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::call::{Client, InPath, InQuery, JsonBody};
use super::content::shown;
use super::problem::Problem;
use super::sessions::Mode;

/// The state of a lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Lock)]
pub(super) struct JsonLock {
    name: String,
    /// The holds that cover the name, by token: at most 256, and at most 10 in lists and watches.
    holds: Vec<JsonHold>,
    /// The number of all holds that cover it.
    hold_count: u64,
    /// `holds_after` of the next page of holds; absent: these are all.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_holds_after: Option<u64>,
    /// The first requests that wait at it, in order of arrival.
    waiters: Vec<JsonWaiter>,
    /// The number of all of them.
    waiter_count: u64,
    /// The number of permits in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    /// That number was set by an operator.
    permits_stored: bool,
}

/// A hold of a lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
pub(super) struct JsonHold {
    token: u64,
    /// The holder's session; absent if the hold is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    /// The session's label.
    label: String,
    /// Who the session's client is, as the service has authenticated it; empty: unknown.
    identity: String,
    mode: Mode,
    /// It also covers everything below its name.
    subtree: bool,
    state: JsonHoldState,
    /// Of a permit: its slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    /// The time since the leader has applied the grant; absent if it was granted before the leader started.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_for_ms: Option<u64>,
    /// Of a closed hold: how long it stays closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    closed_for_ms: Option<u64>,
    /// The value that the holder publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    /// The purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta_base64: Option<String>,
    /// Who has ordered the break of a revoked hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    break_by: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    break_reason: Option<String>,
}

/// What a hold does.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = HoldState)]
pub(super) enum JsonHoldState {
    Held,
    /// Under a break that waits for its holder.
    Revoked,
    /// The holder is gone; the hold keeps the lock closed for some time.
    Closed,
}

/// A request that waits.
#[derive(Serialize, ToSchema)]
#[schema(as = Waiter)]
pub(super) struct JsonWaiter {
    session: u64,
    label: String,
    identity: String,
    mode: Mode,
    subtree: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta_base64: Option<String>,
}

impl From<v1::Lock> for JsonLock {
    fn from(lock: v1::Lock) -> Self {
        Self {
            name: lock.name,
            holds: lock.holds.into_iter().map(JsonHold::from).collect(),
            hold_count: lock.hold_count,
            next_holds_after: Some(lock.next_holds_after).filter(|after| *after > 0),
            waiters: lock.waiters.into_iter().map(JsonWaiter::from).collect(),
            waiter_count: lock.waiter_count,
            permits: lock.permits,
            permits_stored: lock.permits_stored,
        }
    }
}

impl From<v1::Hold> for JsonHold {
    fn from(hold: v1::Hold) -> Self {
        let mode = hold.mode().into();
        let state = match hold.state() {
            v1::HoldState::Held | v1::HoldState::Unspecified => JsonHoldState::Held,
            v1::HoldState::Revoked => JsonHoldState::Revoked,
            v1::HoldState::Closed => JsonHoldState::Closed,
        };
        let (value, value_base64) = shown(hold.value);
        let (meta, meta_base64) = shown(hold.meta);
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            token: hold.token,
            session: Some(hold.session).filter(|session| *session > 0),
            label: hold.label,
            identity: hold.identity,
            mode,
            subtree: hold.subtree,
            state,
            slot: hold.slot,
            held_for_ms: hold.held_for_ms,
            closed_for_ms: Some(hold.closed_for_ms).filter(|left| *left > 0),
            value,
            value_base64,
            meta,
            meta_base64,
            break_by: some(hold.break_by),
            break_reason: some(hold.break_reason),
        }
    }
}

impl From<v1::Waiter> for JsonWaiter {
    fn from(waiter: v1::Waiter) -> Self {
        let mode = waiter.mode().into();
        let (meta, meta_base64) = shown(waiter.meta);
        Self {
            session: waiter.session,
            label: waiter.label,
            identity: waiter.identity,
            mode,
            subtree: waiter.subtree,
            meta,
            meta_base64,
        }
    }
}

/// Which locks, and which page of them.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LocksPage {
    /// Only the lock of this name and those below it.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// The most entries of the page; absent: 100. A page may have fewer, or none, and not be the last.
    #[serde(default)]
    #[param(required = false, maximum = 1_000)]
    page_size: u32,
    /// `next_after` of the last page.
    #[serde(default)]
    #[param(required = false)]
    after: u64,
}

/// A page of the locks in use.
#[derive(Serialize, ToSchema)]
#[schema(as = Locks)]
pub(super) struct JsonLocks {
    locks: Vec<JsonLock>,
    /// `after` of the next page; absent: this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<u64>,
}

/// The locks in use at and below a name, unordered, in pages.
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(LocksPage), responses((status = 200, body = JsonLocks)))]
pub(super) async fn list(
    Client(mut calls): Client,
    InQuery(page): InQuery<LocksPage>,
) -> Result<Json<JsonLocks>, Problem> {
    let asked = v1::ListRequest { prefix: page.prefix, page_size: page.page_size, after: page.after };
    let page = calls.list(asked).await?.into_inner();
    let locks = page.locks.into_iter().map(JsonLock::from).collect();
    Ok(Json(JsonLocks { locks, next_after: Some(page.next_after).filter(|after| *after > 0) }))
}

/// How much of a lock.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LockPage {
    /// The most waiters; absent: 100.
    #[serde(default)]
    #[param(required = false, maximum = 1_000)]
    waiters_max: u32,
    /// `next_holds_after` of the last page.
    #[serde(default)]
    #[param(required = false)]
    holds_after: u64,
}

/// A lock: its holds, and who waits for it. A lock that is not in use has neither.
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock's name; it may contain `/`."), LockPage),
    responses((status = 200, body = JsonLock)))]
pub(super) async fn describe(
    Client(mut calls): Client,
    InPath(name): InPath<String>,
    InQuery(page): InQuery<LockPage>,
) -> Result<Json<JsonLock>, Problem> {
    let asked = v1::DescribeRequest { name, waiters_max: page.waiters_max, holds_after: page.holds_after };
    let lock = calls.describe(asked).await?.into_inner().lock.unwrap_or_default();
    Ok(Json(lock.into()))
}

/// Which token of which lock.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OfToken {
    /// The lock's name.
    name: String,
    token: u64,
}

/// What is known of a token.
#[derive(Serialize, ToSchema)]
pub(super) struct CheckedToken {
    status: TokenStatus,
    /// If it is not current: the tokens of the live holds that cover the name, ascending.
    live: Vec<u64>,
}

/// Whether a token is of a live hold.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TokenStatus {
    Current,
    NotCurrent,
    NeverIssued,
}

/// Whether a token is of a hold that covers a name now.
#[utoipa::path(get, path = "/v1/check-token", tag = "locks", params(OfToken),
    responses((status = 200, body = CheckedToken)))]
pub(super) async fn check_token(
    Client(mut calls): Client,
    InQuery(of): InQuery<OfToken>,
) -> Result<Json<CheckedToken>, Problem> {
    let asked = v1::CheckTokenRequest { name: of.name, token: of.token };
    let checked = calls.check_token(asked).await?.into_inner();
    let status = match checked.status() {
        v1::TokenStatus::Current => TokenStatus::Current,
        v1::TokenStatus::NotCurrent => TokenStatus::NotCurrent,
        v1::TokenStatus::NeverIssued | v1::TokenStatus::Unspecified => TokenStatus::NeverIssued,
    };
    Ok(Json(CheckedToken { status, live: checked.live }))
}

/// The end of a hold that is not its holder's.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakOrder {
    /// The lock's name.
    name: String,
    /// The token of the hold, as a list shows it.
    #[schema(minimum = 1)]
    token: u64,
    /// Why; the holder and the audit trail get it.
    #[schema(min_length = 1)]
    reason: String,
    /// Who orders it.
    #[serde(default)]
    by: String,
    /// Do not wait for the holder's release: nothing excludes it from the resource until it has stopped by
    /// itself.
    #[serde(default)]
    now: bool,
}

/// What a break has done.
#[derive(Serialize, ToSchema)]
pub(super) struct Broken {
    result: BreakResult,
    /// The tokens of the live holds that cover the name, if none has the given token.
    live: Vec<u64>,
}

/// How a break went.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BreakResult {
    /// The holder is told to stop, or the hold has already ended.
    Done,
    /// No live hold has that token and covers that name.
    NotCurrent,
    /// The hold has ended but stays closed; only `now` opens it.
    StillClosed,
}

/// Breaks a hold, and records the reason.
#[utoipa::path(post, path = "/v1/break", tag = "locks", request_body = BreakOrder,
    responses((status = 200, body = Broken)))]
pub(super) async fn break_hold(
    Client(mut calls): Client,
    JsonBody(asked): JsonBody<BreakOrder>,
) -> Result<Json<Broken>, Problem> {
    let BreakOrder { name, token, reason, by, now } = asked;
    let broken = calls.r#break(v1::BreakRequest { name, token, reason, by, now }).await?.into_inner();
    let result = match broken.result() {
        v1::BreakResult::Done => BreakResult::Done,
        v1::BreakResult::NotCurrent | v1::BreakResult::Unspecified => BreakResult::NotCurrent,
        v1::BreakResult::StillClosed => BreakResult::StillClosed,
    };
    Ok(Json(Broken { result, live: broken.live }))
}

/// A lock's number of permits.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetLimit {
    /// The lock's name.
    name: String,
    /// The number; `null` removes the one that is stored.
    #[serde(deserialize_with = "null_or_number")]
    #[schema(required = true, minimum = 1, maximum = 65_536)]
    permits: Option<u32>,
}

/// As an option, but an absent field is an error: it must not remove anything.
fn null_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Option::deserialize(deserializer)
}

/// The number is stored, or removed.
#[derive(Serialize, ToSchema)]
pub(super) struct LimitSet {}

/// Stores a lock's number of permits, or removes it.
#[utoipa::path(post, path = "/v1/set-limit", tag = "locks", request_body = SetLimit,
    responses((status = 200, body = LimitSet)))]
pub(super) async fn set_limit(
    Client(mut calls): Client,
    JsonBody(asked): JsonBody<SetLimit>,
) -> Result<Json<LimitSet>, Problem> {
    calls.set_limit(v1::SetLimitRequest { name: asked.name, permits: asked.permits }).await?;
    Ok(Json(LimitSet {}))
}
