//! The service's calls for the HTTP interface: answered in this process, as the gRPC port would answer them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{HeaderMap, HeaderValue, header};
use lockkeeper_http::{Origin, Probe, ServiceCalls};
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service;

use super::Metrics;
use crate::access::Permission;
use crate::front::callers::Caller;
use crate::front::calls::{Calls, route};
use crate::front::paths::SESSION_CALL;
use crate::front::statuses::LEADER_METADATA;
use crate::front::transport::{Arriving, Connection};
use crate::inbox::ReplicaStatus;

/// The origin of a request.
#[derive(Clone)]
pub(in crate::front) struct RequestOrigin {
    pub(super) calls: Arc<Calls>,
    pub(super) connection: Arc<Connection>,
    pub(super) routes: Routes,
    pub(super) metrics: Option<Arc<Metrics>>,
    /// Makes drain barriers wait until a request that may belong to a session is passed to the replica.
    pub(super) arriving: Arc<Arriving>,
}

impl Origin for RequestOrigin {
    type Calls = InProcess;

    fn identify(&self, headers: &HeaderMap) -> Result<InProcess, Status> {
        let caller = self.connection.identify(headers)?;
        let authorization = headers.get(header::AUTHORIZATION).cloned();
        Ok(InProcess { origin: self.clone(), caller, authorization })
    }

    fn checks(&self, probe: Probe) -> Vec<(&'static str, bool)> {
        match probe {
            Probe::Live => self.calls.live(),
            Probe::Ready => self.calls.ready(),
        }
    }
}

/// The calls of an identified caller.
#[derive(Clone)]
pub(in crate::front) struct InProcess {
    origin: RequestOrigin,
    caller: Caller,
    authorization: Option<HeaderValue>,
}

impl Service<http::Request<Body>> for InProcess {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Self { origin, caller, authorization } = self.clone();
        let RequestOrigin { calls, connection, routes, arriving, .. } = origin;
        if request.uri().path() == SESSION_CALL {
            request.extensions_mut().insert(arriving);
        } else {
            arriving.handed_on();
        }
        if let Some(authorization) = authorization {
            // Without TLS, the leader identifies the caller of a forwarded call by its token.
            request.headers_mut().insert(header::AUTHORIZATION, authorization);
        }
        request.extensions_mut().insert(connection);
        request.extensions_mut().insert(caller.clone());
        Box::pin(async move { Ok(route(calls, routes, caller, request).await) })
    }
}

impl ServiceCalls for InProcess {
    /// While this node leads, the call bypasses the gRPC layer. So this function makes the checks that
    /// `forward::route` makes, and goes through the gRPC layer (which forwards the call) if this node
    /// does not lead, or has just lost the leadership.
    async fn session_call(
        &self,
        mut call: v1::SessionCallRequest,
    ) -> Result<v1::SessionCallResponse, Status> {
        let Self { origin, caller, .. } = self;
        let calls = &origin.calls;
        let leads = *calls.replica.state().borrow() == ReplicaStatus::Ready;
        if !leads {
            return by_grpc(self.clone(), call).await;
        }
        let begun = Instant::now();
        calls.callers.authorize_session_call(caller, &call)?;
        let answer = calls.sessions.session_call(caller, &origin.arriving, call.clone()).await;
        let Err(status) = &answer else { return answer };
        if !status.metadata().contains_key(LEADER_METADATA) {
            return answer;
        }
        // The call is sent again, which is safe (P7). It is not authorized or counted again, and polls only
        // for the rest of its time.
        let waited = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        call.poll_ms = call.poll_ms.saturating_sub(waited);
        let mut service = self.clone();
        service.caller.is_checked = true;
        by_grpc(service, call).await
    }

    fn authorize_any(&self) -> Result<(), Status> {
        self.origin.calls.callers.authorize_any(&self.caller)
    }

    async fn metrics(&self) -> Result<Option<String>, Status> {
        let RequestOrigin { calls, metrics, .. } = &self.origin;
        calls.callers.authorize_for(&self.caller, Permission::Read, None)?;
        match metrics {
            Some(metrics) => metrics.page(calls, &self.caller).await.map(Some),
            None => Ok(None),
        }
    }
}

async fn by_grpc(
    service: InProcess,
    call: v1::SessionCallRequest,
) -> Result<v1::SessionCallResponse, Status> {
    Ok(LockkeeperClient::new(service).session_call(call).await?.into_inner())
}
