//! The inputs of a handler: the caller, the session's secret and the body from the request, and a client for
//! the calls of the service.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::request::Parts;
use http::{HeaderMap, header};
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item::What};
use serde::de::DeserializeOwned;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service;

use super::problem::{Problem, ProblemCode};
use super::sessions::Notices;
use super::{BODY_BYTES_MAX, SECRET_HEADER, SECRET_HELP};
use crate::front::callers::Caller;
use crate::front::calls::{self, route};
use crate::front::paths::SESSION_CALL;
use crate::front::statuses::LEADER_METADATA;
use crate::front::transport::{Arriving, BodyError, Connection, whole};
use crate::hex::unhex;
use crate::inbox::ReplicaStatus;

/// Time limit for the arrival of a body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// The origin of a request; attached to it by the connection.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) calls: Arc<calls::Calls>,
    pub(super) connection: Arc<Connection>,
    pub(super) routes: Routes,
    /// Makes drain barriers wait until a request that may belong to a session is passed to the replica.
    pub(super) arriving: Arc<Arriving>,
}

/// A client for the service in this process, on behalf of the caller of a request.
pub(super) type Calls = LockkeeperClient<InProcess>;

/// Answers calls as the gRPC port would: permissions, quotas, the audit trail and forwarding to the leader
/// are the same.
#[derive(Clone)]
pub(super) struct InProcess {
    origin: Origin,
    caller: Caller,
    authorization: Option<http::HeaderValue>,
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
        let Origin { calls, connection, routes, arriving } = origin;
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

/// An identified caller.
pub(super) struct Identified {
    pub(super) calls: Arc<calls::Calls>,
    pub(super) caller: Caller,
}

impl<S: Sync> FromRequestParts<S> for Identified {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Origin { calls, connection, .. } = origin(parts)?;
        let caller = connection.identify(&parts.headers)?;
        Ok(Self { calls, caller })
    }
}

fn origin(parts: &Parts) -> Result<Origin, Problem> {
    let origin = parts.extensions.get::<Origin>().cloned();
    origin.ok_or_else(|| Problem::new(ProblemCode::Internal, "the request came by no connection: a bug"))
}

/// The calls of the service, on behalf of an identified caller.
pub(super) struct Client(pub(super) Calls);

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Identified { caller, .. } = Identified::from_request_parts(parts, state).await?;
        Ok(Self(LockkeeperClient::new(in_process(parts, caller)?)))
    }
}

fn in_process(parts: &Parts, caller: Caller) -> Result<InProcess, Problem> {
    let authorization = parts.headers.get(header::AUTHORIZATION).cloned();
    Ok(InProcess { origin: origin(parts)?, caller, authorization })
}

/// The session calls, on behalf of a caller whose request contains the session's secret.
pub(super) struct SessionClient {
    service: InProcess,
    calls: Arc<calls::Calls>,
    pub(super) secret: Secret,
}

impl<S: Sync> FromRequestParts<S> for SessionClient {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Identified { calls, caller } = Identified::from_request_parts(parts, state).await?;
        Ok(Self { service: in_process(parts, caller)?, calls, secret: secret(&parts.headers)? })
    }
}

/// An answer to a session's request, and notices for the session's client.
pub(super) struct Answered {
    pub(super) session: u64,
    pub(super) what: What,
    pub(super) notices: Notices,
}

impl SessionClient {
    /// Sends a request of the session. Waits at most `poll_ms` while the request is queued.
    ///
    /// # Errors
    /// The request was refused, or there was no answer.
    pub(super) async fn ask(
        &self,
        session: u64,
        what: client_item::What,
        poll_ms: u64,
    ) -> Result<Answered, Problem> {
        let item = v1::ClientItem { session, what: Some(what) };
        let call = v1::SessionCallRequest { secret: self.secret.0.to_vec(), item: Some(item), poll_ms };
        let v1::SessionCallResponse { item, revoked, ended } = self.call(call).await?;
        let notices = Notices::new(revoked, ended);
        let session = item.as_ref().map_or(0, |item| item.session);
        match item.and_then(|item| item.what) {
            Some(What::Refused(refused)) => Err(refused.into()),
            Some(what) => Ok(Answered { session, what, notices }),
            None => Err(unexpected()),
        }
    }
}

impl SessionClient {
    /// While this node leads, the call bypasses the gRPC layer, which would cost more than the rest of the
    /// request. So this function makes the checks that `forward::route` makes, and goes through the gRPC
    /// layer (which forwards the call) if this node does not lead, or has just lost the leadership.
    async fn call(&self, mut call: v1::SessionCallRequest) -> Result<v1::SessionCallResponse, Status> {
        let leads = *self.calls.replica.state().borrow() == ReplicaStatus::Ready;
        if !leads {
            return by_grpc(self.service.clone(), call).await;
        }
        let InProcess { origin, caller, .. } = &self.service;
        let begun = Instant::now();
        self.calls.callers.authorize_session_call(caller, &call)?;
        let answer = self.calls.sessions.session_call(caller, &origin.arriving, call.clone()).await;
        let Err(status) = &answer else { return answer };
        if !status.metadata().contains_key(LEADER_METADATA) {
            return answer;
        }
        // The call is sent again, which is safe (P7). It is not authorized or counted again, and polls only
        // for the rest of its time.
        let waited = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        call.poll_ms = call.poll_ms.saturating_sub(waited);
        let mut service = self.service.clone();
        service.caller.is_checked = true;
        by_grpc(service, call).await
    }
}

async fn by_grpc(
    service: InProcess,
    call: v1::SessionCallRequest,
) -> Result<v1::SessionCallResponse, Status> {
    Ok(LockkeeperClient::new(service).session_call(call).await?.into_inner())
}

/// The error for an answer of the wrong kind.
pub(super) fn unexpected() -> Problem {
    Problem::new(ProblemCode::Internal, "the service has answered another question: a bug")
}

fn secret(headers: &HeaderMap) -> Result<Secret, Problem> {
    let shown = headers
        .get(SECRET_HEADER)
        .ok_or_else(|| Problem::invalid(format!("the header `{SECRET_HEADER}` is missing: {SECRET_HELP}")))?;
    // The value is not repeated: it may be a secret with a typing error.
    unhex(shown.as_bytes()).map(Secret).ok_or_else(|| {
        Problem::invalid(format!(
            "the header `{SECRET_HEADER}` is not of 32 hexadecimal digits: {SECRET_HELP}"
        ))
    })
}

/// A body in JSON.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let late = |_| {
            let text = format!("the body did not arrive whole within {} s", BODY_TIME.as_secs());
            Problem::new(ProblemCode::DeadlineExceeded, text)
        };
        let body = tokio::time::timeout(BODY_TIME, whole(body, BODY_BYTES_MAX)).await.map_err(late)?;
        let body = body.map_err(|error| match error {
            BodyError::TooLarge => {
                let text = format!("the body has more than {BODY_BYTES_MAX} bytes, which no call needs");
                Problem::new(ProblemCode::PayloadTooLarge, text)
            }
            BodyError::Broken => Problem::invalid("the body did not arrive whole"),
        })?;
        match Json::<T>::from_request(Request::from_parts(parts, body.into()), state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::MissingJsonContentType(_)) => Err(Problem::new(
                ProblemCode::UnsupportedMediaType,
                "the body is not declared as JSON: send `Content-Type: application/json` (`curl --json` does)",
            )),
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}

/// The parts of a path that vary.
pub(super) struct InPath<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        found
            .map(|Path(found)| Self(found))
            .map_err(|rejection: PathRejection| Problem::invalid(rejection.body_text()))
    }
}

/// The parameters after the path.
pub(super) struct InQuery<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        found
            .map(|Query(found)| Self(found))
            .map_err(|rejection: QueryRejection| Problem::invalid(rejection.body_text()))
    }
}

/// Refuses a query on a call without parameters: it may be the rest of a lock's name with an unencoded `?`.
pub(super) struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(query) => Err(Problem::invalid(format!(
                "this call takes no query, but has `?{query}`; write `?` in a name as `%3F`"
            ))),
        }
    }
}
