//! The inputs of a handler: the caller, the session's secret and the body from the request, and a client for
//! the calls of the service.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item::What};
use serde::de::DeserializeOwned;

use crate::body::{BodyError, whole};
use crate::problem::{Problem, ProblemCode};
use crate::rejection;
use crate::service::{Origin, ServiceCalls as _};
use crate::sessions::Notices;

/// The header with a session's secret.
const SECRET_HEADER: &str = "lockkeeper-secret";
/// How to make a secret.
const SECRET_HELP: &str =
    "make one for each session, as by `openssl rand -hex 16`, and send it with every call of the session";
/// The limit of a body, in bytes. The largest acquire has a quarter of it.
pub(crate) const BODY_BYTES_MAX: usize = 256 << 10;
/// Time limit for the arrival of a body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// The calls of the service on behalf of the caller of a request, whom the service has identified.
pub(crate) struct Identified<O: Origin>(pub(crate) O::Calls);

impl<O: Origin, S: Sync> FromRequestParts<S> for Identified<O> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(origin) = parts.extensions.get::<O>() else {
            return Err(Problem::new(ProblemCode::Internal, "the request came by no connection: a bug"));
        };
        Ok(Self(origin.identify(&parts.headers)?))
    }
}

/// A gRPC client for the calls of the service.
pub(crate) struct Client<O: Origin>(pub(crate) LockkeeperClient<O::Calls>);

impl<O: Origin, S: Sync> FromRequestParts<S> for Client<O> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Identified(calls) = Identified::<O>::from_request_parts(parts, state).await?;
        Ok(Self(LockkeeperClient::new(calls)))
    }
}

/// The session calls, on behalf of a caller whose request contains the session's secret.
pub(crate) struct SessionClient<O: Origin> {
    calls: O::Calls,
    pub(crate) secret: Secret,
}

impl<O: Origin, S: Sync> FromRequestParts<S> for SessionClient<O> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Identified(calls) = Identified::<O>::from_request_parts(parts, state).await?;
        Ok(Self { calls, secret: secret(&parts.headers)? })
    }
}

/// An answer to a session's request, and notices for the session's client.
pub(crate) struct Answered {
    pub(crate) session: u64,
    pub(crate) what: What,
    pub(crate) granted: Vec<v1::GrantedRequest>,
    pub(crate) notices: Notices,
}

impl<O: Origin> SessionClient<O> {
    /// Sends a request of the session. Waits at most `poll_ms` while the request is queued.
    ///
    /// # Errors
    /// The request was refused, or there was no answer.
    pub(crate) async fn ask(
        &self,
        session: u64,
        what: client_item::What,
        poll_ms: u64,
    ) -> Result<Answered, Problem> {
        self.call(session, what, v1::SessionCallRequest { poll_ms, ..Default::default() }).await
    }

    /// Sends a request of the session; `call` has the other fields of the call.
    ///
    /// # Errors
    /// As [`SessionClient::ask`].
    pub(crate) async fn call(
        &self,
        session: u64,
        what: client_item::What,
        call: v1::SessionCallRequest,
    ) -> Result<Answered, Problem> {
        let item = Some(v1::ClientItem { session, what: Some(what) });
        let call = v1::SessionCallRequest { secret: self.secret.0.to_vec(), item, ..call };
        let v1::SessionCallResponse { item, revoked, ended, granted } = self.calls.session_call(call).await?;
        let notices = Notices::new(revoked, ended);
        let session = item.as_ref().map_or(0, |item| item.session);
        match item.and_then(|item| item.what) {
            Some(What::Refused(refused)) => Err(refused.into()),
            Some(what) => Ok(Answered { session, what, granted, notices }),
            None => Err(unexpected()),
        }
    }
}

/// The error for an answer of the wrong kind.
pub(crate) fn unexpected() -> Problem {
    Problem::new(ProblemCode::Internal, "the service has answered another question: a bug")
}

fn secret(headers: &HeaderMap) -> Result<Secret, Problem> {
    let shown = headers
        .get(SECRET_HEADER)
        .ok_or_else(|| Problem::invalid(format!("the header `{SECRET_HEADER}` is missing: {SECRET_HELP}")))?;
    // The value is not repeated: it may be a secret with a typing error.
    let digits =
        shown.to_str().ok().filter(|it| it.len() == 32 && it.bytes().all(|it| it.is_ascii_hexdigit()));
    let secret = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    secret.map(|secret| Secret(secret.to_be_bytes())).ok_or_else(|| {
        Problem::invalid(format!(
            "the header `{SECRET_HEADER}` is not of 32 hexadecimal digits: {SECRET_HELP}"
        ))
    })
}

/// A body in JSON.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = arrived(body).await?;
        match Json::<T>::from_request(Request::from_parts(parts, body.into()), state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::MissingJsonContentType(_)) => Err(Problem::new(
                ProblemCode::UnsupportedMediaType,
                "the body is not declared as JSON: send `Content-Type: application/json` (`curl --json` does)",
            )),
            Err(rejection) => Err(rejection::of_body(&rejection)),
        }
    }
}

/// A body in JSON, or none.
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = arrived(body).await?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        let JsonBody(body) = JsonBody::from_request(Request::from_parts(parts, body.into()), state).await?;
        Ok(Self(body))
    }
}

/// Reads a body.
async fn arrived(body: Body) -> Result<Bytes, Problem> {
    let late = |_| {
        let text = format!("the body did not arrive whole within {} s", BODY_TIME.as_secs());
        Problem::new(ProblemCode::DeadlineExceeded, text)
    };
    let body = tokio::time::timeout(BODY_TIME, whole(body, BODY_BYTES_MAX)).await.map_err(late)?;
    body.map_err(|error| match error {
        BodyError::TooLarge => {
            let text = format!("the body has more than {BODY_BYTES_MAX} bytes, which no call needs");
            Problem::new(ProblemCode::PayloadTooLarge, text)
        }
        BodyError::Broken => Problem::invalid("the body did not arrive whole"),
    })
}

/// The parts of a path that vary.
pub(crate) struct InPath<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        found.map(|Path(found)| Self(found)).map_err(|rejection| rejection::of_path(&rejection))
    }
}

/// The parameters after the path.
pub(crate) struct InQuery<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        found.map(|Query(found)| Self(found)).map_err(|rejection| rejection::of_query(&rejection))
    }
}

/// Refuses a query on a call without parameters: it may be the rest of a lock's name with an unencoded `?`.
pub(crate) struct NoQuery;

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
