//! The response to a refused request: `application/problem+json` (RFC 9457).
//!
//! Defines statuses and texts. Details for operators only (paths, disk faults) go to the log.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode};
use lockkeeper_core::Token;
use serde_json::json;

use crate::rule::Refused;
use crate::store::MarksError;

/// The common prefix of every `type`; the kind follows.
pub const TYPE_PREFIX: &str = "urn:lockkeeper:fence:";

/// `Retry-After` of a 503, in seconds. The client has waited already, and an immediate retry would likely
/// fail again.
const RETRY_AFTER_S: u32 = 1;

/// Why a request was refused.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    kind: ProblemKind,
    detail: String,
}

#[derive(Clone, Copy, Debug)]
enum ProblemKind {
    Malformed,
    SharedWrite,
    Repeated(Token),
    Stale { offered: Token, highest: Token },
    TokenRequired,
    Busy,
    Unavailable,
    Full,
}

impl Problem {
    /// `why` follows the header's name in the text.
    pub(super) fn malformed(header: &str, why: String) -> Self {
        Self { kind: ProblemKind::Malformed, detail: format!("{header} {why}") }
    }

    /// A request whose headers don't fit its method, or that has no valid resource name.
    pub(super) fn meaningless(detail: String) -> Self {
        Self { kind: ProblemKind::Malformed, detail }
    }

    pub(super) fn token_required(method: &Method) -> Self {
        let detail = format!(
            "{method} is guarded here: send the token of your lock's grant as Fencing-Token, after you entered with it"
        );
        Self { kind: ProblemKind::TokenRequired, detail }
    }

    pub(super) fn busy(waited: Duration) -> Self {
        let detail = format!(
            "a request with a lower token is still at work on this resource after {waited:?}; it will be waited for again \
       when you send this request again. Nothing was done"
        );
        Self { kind: ProblemKind::Busy, detail }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self.kind {
            ProblemKind::Malformed | ProblemKind::SharedWrite => StatusCode::BAD_REQUEST,
            ProblemKind::Repeated(_) => StatusCode::CONFLICT,
            ProblemKind::Stale { .. } => StatusCode::PRECONDITION_FAILED,
            ProblemKind::TokenRequired => StatusCode::PRECONDITION_REQUIRED,
            ProblemKind::Busy | ProblemKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ProblemKind::Full => StatusCode::INSUFFICIENT_STORAGE,
        }
    }

    #[cfg(test)]
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    fn kind_and_title(&self) -> (&'static str, &'static str) {
        match self.kind {
            ProblemKind::Malformed => {
                ("malformed", "What the request says about fencing can't be understood")
            }
            ProblemKind::SharedWrite => ("shared-write", "A shared hold may only read"),
            ProblemKind::Repeated(_) => ("repeated", "This token has been here before"),
            ProblemKind::Stale { .. } => ("stale", "A later section has been here"),
            ProblemKind::TokenRequired => ("token-required", "A fencing token is required"),
            ProblemKind::Busy => ("busy", "The section before is still at work"),
            ProblemKind::Unavailable => ("unavailable", "The fence can't check at the moment"),
            ProblemKind::Full => ("full", "The fence keeps as many marks as it may"),
        }
    }

    pub(super) fn into_response(self) -> Response<Bytes> {
        let (kind, title) = self.kind_and_title();
        let mut body = json!({
          "type": format!("{TYPE_PREFIX}{kind}"),
          "title": title,
          "status": self.status().as_u16(),
          "detail": self.detail,
        });
        match self.kind {
            ProblemKind::Stale { offered, highest } => {
                body["offered"] = offered.get().into();
                body["highest"] = highest.get().into();
            }
            ProblemKind::Repeated(token) => body["offered"] = token.get().into(),
            _ => {}
        }
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, RETRY_AFTER_S.into());
        }
        response
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let kind = match refused {
            Refused::Stale { offered, highest } => ProblemKind::Stale { offered, highest },
            Refused::Repeated { token } => ProblemKind::Repeated(token),
            Refused::SharedWrite { .. } => ProblemKind::SharedWrite,
            Refused::SlotWithoutPermit { .. } | Refused::SlotTooHigh { .. } => ProblemKind::Malformed,
        };
        Self { kind, detail: refused.to_string() }
    }
}

impl From<MarksError> for Problem {
    fn from(error: MarksError) -> Self {
        match error {
            MarksError::Refused(refused) => refused.into(),
            error @ MarksError::Full { .. } => Self { kind: ProblemKind::Full, detail: error.to_string() },
            error => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a fence could not check a request"
                );
                let detail = "its marks could not be read or made durable; the log of the service says why. Nothing was done; \
                      send the request again with the same token, but a `check_once` with a new one: its token counts as used"
          .to_owned();
                Self { kind: ProblemKind::Unavailable, detail }
            }
        }
    }
}
