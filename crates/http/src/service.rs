//! What this package needs of the service behind it.

use std::convert::Infallible;

use axum::http::{HeaderMap, Request, Response};
use lockkeeper_wire::v1;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

/// The origin of a request: the connection on which it has arrived. The transport gives one to
/// [`crate::HttpInterface::answer`] with each request.
pub trait Origin: Clone + Send + Sync + 'static {
    /// See [`ServiceCalls`].
    type Calls: ServiceCalls;

    /// Identifies the caller by the connection and the headers of the request.
    ///
    /// # Errors
    /// The refusal of a caller that can't be identified or may not connect.
    fn identify(&self, headers: &HeaderMap) -> Result<Self::Calls, Status>;

    /// The checks of a probe, each with its name and whether it has passed. Answered at once and to
    /// everybody: they say nothing of locks, clients or addresses.
    fn checks(&self, probe: Probe) -> Vec<(&'static str, bool)>;
}

/// What a load balancer or an orchestrator asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Whether the process works; if not, a restart may help.
    Live,
    /// Whether clients should be sent to this node.
    Ready,
}

/// The calls of the service on behalf of an identified caller. As a tower service it answers gRPC calls
/// as the gRPC port would: permissions, quotas, the audit trail and forwarding to the leader are the
/// same.
pub trait ServiceCalls:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// Answers as the gRPC call `SessionCall` would, but without the gRPC layer if the service can do so:
    /// that layer costs more than the rest of the call.
    ///
    /// # Errors
    /// As the gRPC call.
    fn session_call(
        &self,
        call: v1::SessionCallRequest,
    ) -> impl Future<Output = Result<v1::SessionCallResponse, Status>> + Send;

    /// Counts a call that needs no particular permission, and checks that the caller has any permission.
    ///
    /// # Errors
    /// The refusal.
    fn authorize_any(&self) -> Result<(), Status>;

    /// The metrics page in Prometheus' text format; `None`: the process records none.
    ///
    /// # Errors
    /// The caller may not read all names, or there was no answer.
    fn metrics(&self) -> impl Future<Output = Result<Option<String>, Status>> + Send;
}
