//! The gate's own responses: `application/problem+json` (RFC 9457), as the fence's.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

/// The common prefix of every `type`; the kind follows.
pub const TYPE_PREFIX: &str = "urn:lockkeeper:gate:";

/// A response of the gate, instead of one of the upstream.
pub(crate) fn problem(status: StatusCode, kind: &str, title: &str, detail: &str) -> Response<Bytes> {
    let body = json!({
        "type": format!("{TYPE_PREFIX}{kind}"),
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// As [`problem`], for a request that may succeed after a time: 503.
pub(crate) fn later(after: Duration, kind: &str, title: &str, detail: &str) -> Response<Bytes> {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, kind, title, detail);
    let seconds = after.as_millis().div_ceil(1000).max(1);
    response.headers_mut().insert(RETRY_AFTER, u64::try_from(seconds).unwrap_or(u64::MAX).into());
    response
}

/// The kind of the fence's refusal of a token that came after a higher one.
pub(crate) const STALE: &str = "stale";

/// The kind of a problem, of the gate or of the fence, for counters.
pub(crate) fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::PRECONDITION_FAILED => STALE,
        StatusCode::PRECONDITION_REQUIRED => "token-required",
        StatusCode::CONFLICT => "repeated",
        StatusCode::INSUFFICIENT_STORAGE => "full",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ => "malformed",
    }
}
