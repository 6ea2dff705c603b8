//! The audit trail of a node, for people.

use crate::view::AuditTrailView;
use axum::Json;
use lockkeeper_wire::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::call::{Client, InQuery};
use crate::problem::Problem;
use crate::service::Origin;

/// The records of a node, in pages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditPage {
    /// The node whose trail is returned; absent or 0: the node that receives the call.
    #[serde(default)]
    #[param(required = false)]
    node: u64,
    /// Only records of the lock of this name and those below it.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// The most records; absent: 100.
    #[serde(default)]
    #[param(required = false, maximum = 1_000)]
    page_size: u32,
    /// `next_before` of the last page.
    #[serde(default)]
    #[param(required = false)]
    before: u64,
}

/// The newest records of a node's audit trail.
#[utoipa::path(get, path = "/v1/audit", tag = "cluster", params(AuditPage),
    responses((status = 200, body = AuditTrailView)))]
pub(crate) async fn audit<O: Origin>(
    Client(mut calls): Client<O>,
    InQuery(page): InQuery<AuditPage>,
) -> Result<Json<AuditTrailView>, Problem> {
    let AuditPage { node, prefix, page_size, before } = page;
    let trail = calls.audit(v1::AuditRequest { node, prefix, page_size, before }).await?.into_inner();
    Ok(Json(trail.into()))
}
