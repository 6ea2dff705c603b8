//! Nodes: the state of each, the members of the cluster, and orders to them.

use axum::Json;
use axum::http::header;
use axum::response::IntoResponse;
use lockkeeper_wire::v1;
use serde::{Deserialize, Serialize};
use tokio_util::bytes::Bytes;
use tonic::codegen::tokio_stream::StreamExt as _;
use utoipa::{IntoParams, ToSchema};

use super::call::{Client, InPath, InQuery, JsonBody};
use super::problem::Problem;

/// The state of a node.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeStatus {
    /// The software's version.
    version: String,
    node: u64,
    /// The random id of its data directory.
    incarnation: String,
    cluster: String,
    role: JsonRole,
    /// The leader's id; absent: none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    term: u64,
    /// Log positions.
    applied: u64,
    committed: u64,
    snapshot: u64,
    last_token: u64,
    sessions: u64,
    /// The number of holds, waiting requests and closed holds.
    requests: u64,
    streams: u64,
    /// The version of the table's rules.
    rules: u32,
    /// As far as this node knows.
    members: Vec<JsonMember>,
    /// Ids of former members.
    removed: Vec<u64>,
    /// When this node's certificate ends, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_ends: Option<u64>,
    /// The SHA-256 of this node's file of permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<String>,
    /// The bytes of this node's data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_used_bytes: Option<u64>,
    /// The bytes that are free on its disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_free_bytes: Option<u64>,
}

/// What a node does in the cluster.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Role)]
pub(super) enum JsonRole {
    Follower,
    Candidate,
    Leader,
}

/// A member of the cluster.
#[derive(Serialize, ToSchema)]
#[schema(as = Member)]
pub(super) struct JsonMember {
    node: u64,
    /// Where it listens to the other nodes.
    peer_address: String,
    /// Where it listens to clients.
    client_address: String,
    part: JsonPart,
    /// The leader has received a message from it within the last election time-out. Known to the leader only.
    answers: bool,
    /// The last log entry that it is known to have. Known to the leader only.
    matched: u64,
    /// The leader sends it a snapshot: it lags behind the start of the leader's log.
    receives_snapshot: bool,
}

/// What a member is for.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Part)]
pub(super) enum JsonPart {
    Voter,
    /// It receives the log, and becomes a voter once it has caught up.
    Learner,
    /// It is being removed.
    Leaving,
}

impl From<v1::ClusterNode> for JsonMember {
    fn from(node: v1::ClusterNode) -> Self {
        let part = match node.part() {
            v1::NodePart::Voter | v1::NodePart::Unspecified => JsonPart::Voter,
            v1::NodePart::Learner => JsonPart::Learner,
            v1::NodePart::Leaving => JsonPart::Leaving,
        };
        let v1::ClusterNode {
            node,
            peer_address,
            client_address,
            part: _,
            answers,
            matched,
            receives_snapshot,
        } = node;
        Self { node, peer_address, client_address, part, answers, matched, receives_snapshot }
    }
}

/// Which node.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OfNode {
    /// The node's id; absent or 0: the one that is asked.
    #[serde(default)]
    #[param(required = false)]
    node: u64,
}

/// The state of a node.
#[utoipa::path(get, path = "/v1/status", tag = "cluster", params(OfNode),
    responses((status = 200, body = NodeStatus)))]
pub(super) async fn status(
    Client(mut calls): Client,
    InQuery(of): InQuery<OfNode>,
) -> Result<Json<NodeStatus>, Problem> {
    let status = calls.status(v1::StatusRequest { node: of.node }).await?.into_inner();
    let role = match status.role() {
        v1::Role::Follower | v1::Role::Unspecified => JsonRole::Follower,
        v1::Role::Candidate => JsonRole::Candidate,
        v1::Role::Leader => JsonRole::Leader,
    };
    Ok(Json(NodeStatus {
        version: status.version,
        node: status.node,
        incarnation: status.incarnation,
        cluster: status.cluster,
        role,
        leader: Some(status.leader).filter(|leader| *leader > 0),
        term: status.term,
        applied: status.applied,
        committed: status.committed,
        snapshot: status.snapshot,
        last_token: status.last_token,
        sessions: status.sessions,
        requests: status.requests,
        streams: status.streams,
        rules: status.rules,
        members: status.members.into_iter().map(JsonMember::from).collect(),
        removed: status.removed,
        certificate_ends: Some(status.certificate_ends).filter(|ends| *ends > 0),
        permissions: Some(status.permissions).filter(|digest| !digest.is_empty()),
        disk_used_bytes: status.disk_used_bytes,
        disk_free_bytes: status.disk_free_bytes,
    }))
}

/// The members of the cluster and their progress.
#[derive(Serialize, ToSchema)]
#[schema(as = Members)]
pub(super) struct JsonMembers {
    nodes: Vec<JsonMember>,
    leader: u64,
    term: u64,
    /// The last entry of the leader's log.
    last: u64,
    /// A change of members is in progress.
    changing: bool,
    /// Ids of former members.
    removed: Vec<u64>,
}

/// The members of the cluster, as the leader knows them.
#[utoipa::path(get, path = "/v1/members", tag = "cluster", responses((status = 200, body = JsonMembers)))]
pub(super) async fn members(Client(mut calls): Client) -> Result<Json<JsonMembers>, Problem> {
    let v1::MembersResponse { nodes, leader, term, last, changing, removed } =
        calls.members(v1::MembersRequest {}).await?.into_inner();
    let nodes = nodes.into_iter().map(JsonMember::from).collect();
    Ok(Json(JsonMembers { nodes, leader, term, last, changing, removed }))
}

/// A node that waits to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMember {
    #[schema(minimum = 1)]
    node: u64,
    /// `HOST:PORT`, where it listens to other nodes.
    peer_address: String,
}

/// The change is in force.
#[derive(Serialize, ToSchema)]
pub(super) struct Changed {}

/// Adds a node; it votes once it has caught up.
#[utoipa::path(post, path = "/v1/members", tag = "cluster", request_body = NewMember,
    responses((status = 200, body = Changed)))]
pub(super) async fn add(
    Client(calls): Client,
    JsonBody(new): JsonBody<NewMember>,
) -> Result<Json<Changed>, Problem> {
    let new = v1::NewNode { node: new.node, peer_address: new.peer_address };
    change(calls, v1::change_members_request::What::Add(new)).await
}

/// Removes a node.
#[utoipa::path(delete, path = "/v1/members/{node}", tag = "cluster",
    params(("node" = u64, Path, description = "The node's id.")), responses((status = 200, body = Changed)))]
pub(super) async fn remove(
    Client(calls): Client,
    InPath(node): InPath<u64>,
) -> Result<Json<Changed>, Problem> {
    change(calls, v1::change_members_request::What::Remove(node)).await
}

async fn change(
    mut calls: super::call::Calls,
    what: v1::change_members_request::What,
) -> Result<Json<Changed>, Problem> {
    calls.change_members(v1::ChangeMembersRequest { what: Some(what) }).await?;
    Ok(Json(Changed {}))
}

/// To whom the leadership goes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    /// The node's id; absent: the voter with the most complete log.
    #[serde(default)]
    node: u64,
}

/// The leadership was transferred.
#[derive(Serialize, ToSchema)]
pub(super) struct Transferred {
    /// The leader's id now.
    leader: u64,
}

/// Transfers the leadership to another node.
#[utoipa::path(post, path = "/v1/transfer", tag = "cluster", request_body = Transfer,
    responses((status = 200, body = Transferred)))]
pub(super) async fn transfer(
    Client(mut calls): Client,
    JsonBody(asked): JsonBody<Transfer>,
) -> Result<Json<Transferred>, Problem> {
    let transferred = calls.transfer(v1::TransferRequest { node: asked.node }).await?.into_inner();
    Ok(Json(Transferred { leader: transferred.leader }))
}

/// The whole table, as a file for `lockkeeper restore`. The file is complete if its end was read: it has its
/// own checksums.
#[utoipa::path(get, path = "/v1/backup", tag = "cluster",
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(super) async fn backup(Client(mut calls): Client) -> Result<impl IntoResponse, Problem> {
    let parts = calls.backup(v1::BackupRequest {}).await?.into_inner();
    let parts = parts.map(|part| part.map(|part| Bytes::from(part.part)));
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"lockkeeper.backup\""),
    ];
    Ok((headers, axum::body::Body::from_stream(parts)))
}
