//! Errors as `application/problem+json` (RFC 9457), with the same codes in every answer.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockkeeper_wire::v1::{self, End, RefusedCode};
use serde::Serialize;
use tonic::{Code, Status};
use utoipa::ToSchema;

/// The media type of a [`Problem`].
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Why a call failed.
#[derive(Clone, Serialize, ToSchema, Debug)]
pub(crate) struct Problem {
    /// The meaning of the HTTP status.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    code: ProblemCode,
    /// What was wrong, and what to do; for people.
    detail: String,
    /// With `busy`: the session of the conflicting hold with the lowest token; absent if only waiters and
    /// closed holds conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<u64>,
    /// With `busy`: that session's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_label: Option<String>,
    /// With `busy`: how many waiting requests overlap this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_ahead: Option<u64>,
    /// With `ended`: how the request has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<RequestEnd>,
}

/// What kind of problem it is; programs decide by this. Those that gRPC has too are named as there.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProblemCode {
    /// The request is invalid: change it.
    InvalidArgument,
    /// The caller did not show who it is, or a node does not know it.
    Unauthenticated,
    /// The caller may not do this.
    PermissionDenied,
    /// There is no such resource.
    NotFound,
    /// The resource has no such method.
    MethodNotAllowed,
    /// `Host` names another server.
    Misdirected,
    /// The body is not JSON by its `Content-Type`.
    UnsupportedMediaType,
    /// The body is too large.
    PayloadTooLarge,
    /// The state does not allow it: another number of permits is in force, the request does not hold, its
    /// number or the session's secret is in use for something else, or an operator must act.
    FailedPrecondition,
    /// A limit or quota is reached: release something, or retry later.
    ResourceExhausted,
    /// No node leads at the moment, or this one shuts down: repeat the call, here or at another node.
    Unavailable,
    /// There was no answer in time, and whether the call had an effect is unknown: repeat it.
    DeadlineExceeded,
    /// A bug of the service.
    Internal,
    /// It is done, but there is no record of it.
    DataLoss,
    /// The lock is not free, and the request does not wait.
    Busy,
    /// The request has waited for as long as it was to wait.
    TimedOut,
    /// The request would wait for a hold that its caller keeps: those who have it, or who wait for it before,
    /// wait for that. Give the hold back first.
    Deadlock,
    /// The request has ended.
    Ended,
    /// The session is not live: all its requests have ended.
    SessionGone,
}

/// How a request has ended.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestEnd {
    /// It waited, and its client left the queue.
    Left,
    /// It held, and its client released it.
    Released,
    /// It held, and an operator's break ended it.
    Broken,
    /// It waited for as long as it was to wait.
    TimedOut,
    /// It never held or waited: the lock was busy, or the request was refused.
    NotAcquired,
    /// Unknown: never received, or forgotten after `done_through` passed it.
    Gone,
}

impl From<End> for RequestEnd {
    fn from(end: End) -> Self {
        match end {
            End::Left => Self::Left,
            End::Released => Self::Released,
            End::Broken => Self::Broken,
            End::TimedOut => Self::TimedOut,
            End::NotAcquired => Self::NotAcquired,
            End::Gone | End::Unspecified => Self::Gone,
        }
    }
}

impl ProblemCode {
    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::FailedPrecondition | Self::Busy | Self::TimedOut | Self::Deadlock => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal | Self::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Ended | Self::SessionGone => StatusCode::GONE,
        }
    }
}

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        let status = code.status();
        Self {
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            holder: None,
            holder_label: None,
            queued_ahead: None,
            end: None,
        }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::InvalidArgument, detail)
    }

    pub(crate) fn busy(busy: v1::Busy) -> Self {
        let detail = match busy.holder {
            0 => "the lock is not free: it is held, requests wait for it, or it stays closed after its last hold"
                .to_owned(),
            holder => format!("the lock is not free: session {holder} holds it"),
        };
        Self {
            holder: Some(busy.holder).filter(|holder| *holder > 0),
            holder_label: Some(busy.holder_label).filter(|label| !label.is_empty()),
            queued_ahead: Some(busy.queued_ahead),
            ..Self::new(ProblemCode::Busy, detail)
        }
    }

    /// A request that was to hold has ended.
    pub(crate) fn ended(end: End) -> Self {
        let detail = match end {
            End::TimedOut => {
                let detail =
                    "the request has waited for `at_most_ms`; delete it, so that the service forgets it";
                return Self::new(ProblemCode::TimedOut, detail);
            }
            End::Broken => {
                "an operator has broken the hold: stop, and delete the request, so that the service forgets it"
            }
            End::NotAcquired => "the request has ended without a hold: the lock was busy, or it was refused",
            End::Left | End::Released => {
                "the request was deleted; to acquire the lock again, take a higher `request`"
            }
            End::Gone | End::Unspecified => {
                "the service does not know the request, and knows later ones of the session: take a higher `request`"
            }
        };
        Self { end: Some(end.into()), ..Self::new(ProblemCode::Ended, detail) }
    }

    pub(crate) fn session_gone() -> Self {
        Self::new(
            ProblemCode::SessionGone,
            "the session is not live, and all its requests have ended; open a new one, with a new secret",
        )
    }
}

impl From<v1::Refused> for Problem {
    fn from(refused: v1::Refused) -> Self {
        let code = match refused.code() {
            RefusedCode::Invalid | RefusedCode::Unspecified => ProblemCode::InvalidArgument,
            RefusedCode::Permits | RefusedCode::NotHeld | RefusedCode::InUse | RefusedCode::Operator => {
                ProblemCode::FailedPrecondition
            }
            RefusedCode::Limit => ProblemCode::ResourceExhausted,
            RefusedCode::Denied => ProblemCode::PermissionDenied,
            RefusedCode::Deadlock => ProblemCode::Deadlock,
        };
        Self::new(code, refused.text)
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => ProblemCode::InvalidArgument,
            Code::Unauthenticated => ProblemCode::Unauthenticated,
            Code::PermissionDenied => ProblemCode::PermissionDenied,
            Code::NotFound => ProblemCode::NotFound,
            Code::FailedPrecondition => ProblemCode::FailedPrecondition,
            Code::ResourceExhausted => ProblemCode::ResourceExhausted,
            Code::Unavailable | Code::Cancelled => ProblemCode::Unavailable,
            Code::DeadlineExceeded => ProblemCode::DeadlineExceeded,
            Code::DataLoss => ProblemCode::DataLoss,
            _ => ProblemCode::Internal,
        };
        Self::new(code, status.message())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let mut response = (status, axum::Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        match self.code {
            ProblemCode::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ProblemCode::Unavailable | ProblemCode::ResourceExhausted => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
