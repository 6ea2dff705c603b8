//! Nodes: the state of each, the members of the cluster, and orders to them.

use crate::view::{MembersView, NodeView};
use axum::Json;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use lockkeeper_wire::v1;
use serde::{Deserialize, Serialize};
use tonic::codegen::tokio_stream::StreamExt as _;
use utoipa::{IntoParams, ToSchema};

use crate::call::{Client, InPath, InQuery, JsonBody};
use crate::problem::Problem;
use crate::service::Origin;

/// A node.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfNode {
    /// The node's id; absent or 0: the node that receives the call.
    #[serde(default)]
    #[param(required = false)]
    node: u64,
}

/// The state of a node.
#[utoipa::path(get, path = "/v1/status", tag = "cluster", params(OfNode),
    responses((status = 200, body = NodeView)))]
pub(crate) async fn status<O: Origin>(
    Client(mut calls): Client<O>,
    InQuery(of): InQuery<OfNode>,
) -> Result<Json<NodeView>, Problem> {
    let status = calls.status(v1::StatusRequest { node: of.node }).await?.into_inner();
    Ok(Json(status.into()))
}

/// The members of the cluster, as the leader knows them.
#[utoipa::path(get, path = "/v1/members", tag = "cluster", responses((status = 200, body = MembersView)))]
pub(crate) async fn members<O: Origin>(Client(mut calls): Client<O>) -> Result<Json<MembersView>, Problem> {
    Ok(Json(calls.members(v1::MembersRequest {}).await?.into_inner().into()))
}

/// A node that was started to join.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMember {
    /// The node's id.
    #[schema(minimum = 1)]
    node: u64,
    /// The address on which it listens for other nodes, `HOST:PORT`.
    peer_address: String,
}

/// The members were changed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Changed {}

/// Adds a node; it votes once it has caught up.
#[utoipa::path(post, path = "/v1/members", tag = "cluster", request_body = NewMember,
    responses((status = 200, body = Changed)))]
pub(crate) async fn add<O: Origin>(
    client: Client<O>,
    JsonBody(new): JsonBody<NewMember>,
) -> Result<Json<Changed>, Problem> {
    let new = v1::NewNode { node: new.node, peer_address: new.peer_address };
    change(client, v1::change_members_request::What::Add(new)).await
}

/// Removes a node.
#[utoipa::path(delete, path = "/v1/members/{node}", tag = "cluster",
    params(("node" = u64, Path, description = "The node's id.")), responses((status = 200, body = Changed)))]
pub(crate) async fn remove<O: Origin>(
    client: Client<O>,
    InPath(node): InPath<u64>,
) -> Result<Json<Changed>, Problem> {
    change(client, v1::change_members_request::What::Remove(node)).await
}

async fn change<O: Origin>(
    Client(mut calls): Client<O>,
    what: v1::change_members_request::What,
) -> Result<Json<Changed>, Problem> {
    calls.change_members(v1::ChangeMembersRequest { what: Some(what) }).await?;
    Ok(Json(Changed {}))
}

/// The node that is to lead.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transfer {
    /// The node's id; absent: the voter with the most complete log.
    #[serde(default)]
    node: u64,
    /// For the audit trail.
    #[serde(default)]
    #[schema(max_length = 256)]
    reason: String,
}

/// The leadership was transferred.
#[derive(Serialize, ToSchema)]
pub(crate) struct Transferred {
    /// The leader's id now.
    leader: u64,
}

/// Transfers the leadership to another node.
#[utoipa::path(post, path = "/v1/transfer", tag = "cluster", request_body = Transfer,
    responses((status = 200, body = Transferred)))]
pub(crate) async fn transfer<O: Origin>(
    Client(mut calls): Client<O>,
    JsonBody(asked): JsonBody<Transfer>,
) -> Result<Json<Transferred>, Problem> {
    let asked = v1::TransferRequest { node: asked.node, reason: asked.reason };
    let transferred = calls.transfer(asked).await?.into_inner();
    Ok(Json(Transferred { leader: transferred.leader }))
}

/// The whole table, as a file for `lockkeeper restore`, which checks by checksums that the file is complete.
#[utoipa::path(get, path = "/v1/backup", tag = "cluster",
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn backup<O: Origin>(Client(mut calls): Client<O>) -> Result<impl IntoResponse, Problem> {
    let parts = calls.backup(v1::BackupRequest {}).await?.into_inner();
    let parts = parts.map(|part| part.map(|part| Bytes::from(part.part)));
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"lockkeeper.backup\""),
    ];
    Ok((headers, axum::body::Body::from_stream(parts)))
}
