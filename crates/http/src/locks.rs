//! Locks, as anybody with the permission sees them, and the orders of operators.

use crate::view::{BreakView, LockView, TokenView};
use axum::Json;
use lockkeeper_wire::v1;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::call::{Client, InPath, InQuery, JsonBody};
use crate::problem::Problem;
use crate::service::Origin;

/// The locks at and below a name, in pages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LocksPage {
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
pub(crate) struct LocksView {
    /// The locks of this page.
    locks: Vec<LockView>,
    /// `after` of the next page; absent: this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<u64>,
}

/// The locks in use at and below a name, unordered, in pages.
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(LocksPage), responses((status = 200, body = LocksView)))]
pub(crate) async fn list<O: Origin>(
    Client(mut calls): Client<O>,
    InQuery(page): InQuery<LocksPage>,
) -> Result<Json<LocksView>, Problem> {
    let asked = v1::ListRequest { prefix: page.prefix, page_size: page.page_size, after: page.after };
    let page = calls.list(asked).await?.into_inner();
    let locks = page.locks.into_iter().map(LockView::from).collect();
    Ok(Json(LocksView { locks, next_after: Some(page.next_after).filter(|after| *after > 0) }))
}

/// The parts of a lock that are returned.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LockPage {
    /// The most waiters; absent: 100.
    #[serde(default)]
    #[param(required = false, maximum = 1_000)]
    waiters_max: u32,
    /// `next_holds_after` of the last page.
    #[serde(default)]
    #[param(required = false)]
    holds_after: u64,
}

/// A lock, with its holds and waiters. A lock that is not in use has neither.
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock's name; it may contain `/`."), LockPage),
    responses((status = 200, body = LockView)))]
pub(crate) async fn describe<O: Origin>(
    Client(mut calls): Client<O>,
    InPath(name): InPath<String>,
    InQuery(page): InQuery<LockPage>,
) -> Result<Json<LockView>, Problem> {
    let asked = v1::DescribeRequest { name, waiters_max: page.waiters_max, holds_after: page.holds_after };
    let lock = calls.describe(asked).await?.into_inner().lock.unwrap_or_default();
    Ok(Json(lock.into()))
}

/// A token of a lock.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfToken {
    /// The lock's name.
    name: String,
    token: u64,
}

/// Whether a token is of a hold that covers a name now.
#[utoipa::path(get, path = "/v1/check-token", tag = "locks", params(OfToken),
    responses((status = 200, body = TokenView)))]
pub(crate) async fn check_token<O: Origin>(
    Client(mut calls): Client<O>,
    InQuery(of): InQuery<OfToken>,
) -> Result<Json<TokenView>, Problem> {
    let asked = v1::CheckTokenRequest { name: of.name, token: of.token };
    let checked = calls.check_token(asked).await?.into_inner();
    Ok(Json(checked.into()))
}

/// An order to break a hold.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BreakOrder {
    /// The lock's name.
    name: String,
    /// The token of the hold, as a list shows it.
    #[schema(minimum = 1)]
    token: u64,
    /// The reason, for the holder and the audit trail.
    #[schema(min_length = 1)]
    reason: String,
    /// The name of the person who orders it, for the holder.
    #[serde(default)]
    by: String,
    /// End the hold without waiting for the holder's release. The holder may still use the resource: only
    /// a fence excludes it.
    #[serde(default)]
    now: bool,
}

/// Breaks a hold, and records the reason.
#[utoipa::path(post, path = "/v1/break", tag = "locks", request_body = BreakOrder,
    responses((status = 200, body = BreakView)))]
pub(crate) async fn break_hold<O: Origin>(
    Client(mut calls): Client<O>,
    JsonBody(asked): JsonBody<BreakOrder>,
) -> Result<Json<BreakView>, Problem> {
    let BreakOrder { name, token, reason, by, now } = asked;
    let broken = calls.r#break(v1::BreakRequest { name, token, reason, by, now }).await?.into_inner();
    Ok(Json(broken.into()))
}

/// A lock's number of permits.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetLimit {
    /// The lock's name.
    name: String,
    /// The number of permits; `null` removes the stored number.
    #[serde(deserialize_with = "null_or_number")]
    #[schema(required = true, minimum = 1, maximum = 65_536)]
    permits: Option<u32>,
}

/// As an option, but an absent field is an error: it must not remove anything.
fn null_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Option::deserialize(deserializer)
}

/// The number was stored or removed.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitSet {}

/// Stores a lock's number of permits, or removes it.
#[utoipa::path(post, path = "/v1/set-limit", tag = "locks", request_body = SetLimit,
    responses((status = 200, body = LimitSet)))]
pub(crate) async fn set_limit<O: Origin>(
    Client(mut calls): Client<O>,
    JsonBody(asked): JsonBody<SetLimit>,
) -> Result<Json<LimitSet>, Problem> {
    calls.set_limit(v1::SetLimitRequest { name: asked.name, permits: asked.permits }).await?;
    Ok(Json(LimitSet {}))
}
