//! The keep-alive, which may wait for a change of any request of its session: so a client needs one waiting
//! call, however many requests it has.

use axum::Json;
use lockkeeper_wire::v1::{self, client_item, server_item::What};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::call::{InPath, NoQuery, OptionalJsonBody, SessionClient, unexpected};
use crate::problem::Problem;
use crate::service::Origin;
use crate::sessions::{HeldSlot, Notices, SecretHeader, slots};

/// What a keep-alive waits for. All fields, and the whole body, may be absent.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KeepAlive {
    /// How long this call waits until its answer has an entry, in milliseconds; absent: not at all. At most a
    /// third of the session's ttl, or other calls have to keep the session alive meanwhile.
    #[schema(maximum = 60_000)]
    poll_ms: u64,
    /// The requests whose grants the client waits for: those that were `queued`. The answer has those that
    /// are not queued any more. Numbers that the service has not received yet are ignored.
    #[schema(max_items = 4_096)]
    waiting: Vec<u64>,
    /// The requests that an earlier answer had in `revoked` or `ended`, and that are not deleted yet: the
    /// answer leaves them out.
    #[schema(max_items = 4_096)]
    known: Vec<u64>,
}

/// The session's lease is renewed: it ends a ttl after the call was sent.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeptAlive {
    /// Those of `waiting` that hold now; absent: none. At most 1,024: call again without these for more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    granted: Vec<GrantedRequest>,
    /// Also has those of `waiting` that have ended in any way.
    #[serde(flatten)]
    notices: Notices,
}

/// A request that waited and now holds its locks.
#[derive(Serialize, ToSchema)]
pub(crate) struct GrantedRequest {
    request: u64,
    /// The fencing token, which the resource has to check.
    token: u64,
    /// Of a hold of permits: one for each of its locks, in byte order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<HeldSlot>,
}

impl From<v1::GrantedRequest> for GrantedRequest {
    fn from(granted: v1::GrantedRequest) -> Self {
        let v1::Granted { token, permits, .. } = granted.grant.unwrap_or_default();
        Self { request: granted.seq, token, slots: slots(permits) }
    }
}

/// Renews the lease of a session, and waits for a change of its requests. Every other call of the session
/// renews it too, unless its answer is an error.
///
/// With `poll_ms`, the call waits until `granted`, `revoked` or `ended` has an entry. One call of a session
/// waits so: a later one, at any node, makes it answer at once. An answer that was lost is had by the same
/// call again.
#[utoipa::path(post, path = "/v1/sessions/{session}/keep-alive", tag = "sessions",
    params(("session" = u64, Path, description = "The session's id."), SecretHeader),
    request_body(content = KeepAlive, description = "May be absent."), responses((status = 200, body = KeptAlive)))]
pub(crate) async fn keep_alive<O: Origin>(
    client: SessionClient<O>,
    _: NoQuery,
    InPath(session): InPath<u64>,
    OptionalJsonBody(asked): OptionalJsonBody<KeepAlive>,
) -> Result<Json<KeptAlive>, Problem> {
    let KeepAlive { poll_ms, waiting, known } = asked;
    let call = v1::SessionCallRequest { poll_ms, waiting, known, ..Default::default() };
    let keep_alive = client_item::What::KeepAlive(v1::KeepAlive::default());
    let answered = client.call(session, keep_alive, call).await?;
    match answered.what {
        What::KeptAlive(_) => {
            let granted = answered.granted.into_iter().map(GrantedRequest::from).collect();
            Ok(Json(KeptAlive { granted, notices: answered.notices }))
        }
        What::SessionGone(_) => Err(Problem::session_gone()),
        _ => Err(unexpected()),
    }
}
