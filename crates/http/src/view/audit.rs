//! The audit trail of a node.

use lockkeeper_wire::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A page of an audit trail.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditTrail)]
pub struct AuditTrailView {
    /// The node whose trail it is: each node has its own.
    pub node: u64,
    /// The records, the newest first.
    pub records: Vec<AuditRecordView>,
    /// `before` of the next page; absent: there is none. A node keeps its newest 1,000 records for this call;
    /// its file has more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
}

/// A record: what an operator has done, or who was refused.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub struct AuditRecordView {
    /// It rises with time, also over restarts of the node, after which a record may have another number.
    pub number: u64,
    /// The time, as in RFC 3339.
    pub time: String,
    /// What was done.
    pub what: String,
    /// The identity of the caller.
    pub identity: String,
    /// The address of the caller.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The lock's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The token of the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The parameters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The reason that the operator gave.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How it went.
    pub result: String,
}

impl From<v1::AuditResponse> for AuditTrailView {
    fn from(trail: v1::AuditResponse) -> Self {
        Self {
            node: trail.node,
            records: trail.records.into_iter().map(AuditRecordView::from).collect(),
            next_before: Some(trail.next_before).filter(|before| *before > 0),
        }
    }
}

impl From<v1::AuditRecord> for AuditRecordView {
    fn from(record: v1::AuditRecord) -> Self {
        let v1::AuditRecord { number, time, what, identity, address, name, token, detail, reason, result } =
            record;
        Self { number, time, what, identity, address, name, token, detail, reason, result }
    }
}
