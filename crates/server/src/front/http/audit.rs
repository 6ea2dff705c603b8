//! The audit trail of a node, for people.

use axum::Json;
use lockkeeper_wire::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::call::{Client, InQuery};
use super::problem::Problem;

/// Which records.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditPage {
    /// The node whose trail is wanted; absent or 0: the one that is asked.
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

/// A page of an audit trail.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditTrail)]
pub(super) struct JsonAuditTrail {
    /// Whose trail it is: each node has its own.
    node: u64,
    /// The newest first.
    records: Vec<JsonAuditRecord>,
    /// `before` of the next page; absent: there is none. A node keeps its newest 1,000 records for this call;
    /// its file has more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_before: Option<u64>,
}

/// A record: what an operator has done, or who was refused.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub(super) struct JsonAuditRecord {
    /// Ascending in time, also over restarts of the node. The same record may have another number after one.
    number: u64,
    /// As RFC 3339 has it.
    time: String,
    what: String,
    identity: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    result: String,
}

impl From<v1::AuditRecord> for JsonAuditRecord {
    fn from(record: v1::AuditRecord) -> Self {
        let v1::AuditRecord { number, time, what, identity, address, name, token, detail, reason, result } =
            record;
        Self { number, time, what, identity, address, name, token, detail, reason, result }
    }
}

/// The newest records of a node's audit trail.
#[utoipa::path(get, path = "/v1/audit", tag = "cluster", params(AuditPage),
    responses((status = 200, body = JsonAuditTrail)))]
pub(super) async fn audit(
    Client(mut calls): Client,
    InQuery(page): InQuery<AuditPage>,
) -> Result<Json<JsonAuditTrail>, Problem> {
    let AuditPage { node, prefix, page_size, before } = page;
    let trail = calls.audit(v1::AuditRequest { node, prefix, page_size, before }).await?.into_inner();
    Ok(Json(JsonAuditTrail {
        node: trail.node,
        records: trail.records.into_iter().map(JsonAuditRecord::from).collect(),
        next_before: Some(trail.next_before).filter(|before| *before > 0),
    }))
}
