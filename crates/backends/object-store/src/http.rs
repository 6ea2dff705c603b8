//! The HTTP client below the store's client: connections of each runtime, and typed refusals.

use std::fmt;

use async_trait::async_trait;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::TokioExecutor;
use lockkeeper_backend::io::{Connect, LeaseThread, Pool, PoolLimits};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};

/// Each runtime has one client, with connections of its own, dropped after a minute without use.
const LIMITS: PoolLimits =
    PoolLimits { shared_each: 1, total: 256, idle: std::time::Duration::from_secs(60) };
/// Largest response: a page of a list has 1,000 objects, and a lock's object at most `OBJECT_BYTES_MAX`.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Largest body of an error that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

type Connections = Client<HttpsConnector<Tcp>, HttpRequestBody>;

/// Creates the clients of one store. Clones share the connections.
#[derive(Clone)]
pub(super) struct Http(Pool<NewConnections>);

struct NewConnections;

impl Connect for NewConnections {
    type Connection = Connections;

    fn connect(&self) -> BoxFuture<'static, Result<Connections, BackendError>> {
        // The program may contain several providers; then rustls has no default.
        let provider = rustls::crypto::ring::default_provider();
        let connector =
            HttpsConnectorBuilder::new().with_provider_and_native_roots(provider).map_err(|error| {
                let what = format!("the system's trusted certificates can't be read: {error}");
                BackendError::caused(BackendErrorKind::Operator, what, error)
            });
        let client = connector.map(|connector| {
            let connector = connector.https_or_http().enable_http1().build();
            Client::builder(TokioExecutor::new()).build(connector)
        });
        Box::pin(std::future::ready(client))
    }

    fn is_usable(&self, _: &Connections) -> bool {
        true
    }
}

impl Http {
    pub(super) fn new(lease_thread: &LeaseThread) -> Self {
        Self(Pool::new(NewConnections, LIMITS, lease_thread))
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let connections = self.0.shared().await;
        let answer = connections.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
            HttpError::new(kind, error)
        })?;
        let (head, body) = answer.into_parts();
        if is_refusal(head.status) {
            let text = match Limited::new(body, ERROR_BYTES_MAX).collect().await {
                Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
                Err(error) => error.to_string(),
            };
            return Err(HttpError::new(HttpErrorKind::Unknown, StoreAnswer::of(head.status, &text)));
        }
        let body = Limited::new(body, ANSWER_BYTES_MAX)
            .map_err(|error| HttpError::new_boxed(HttpErrorKind::Unknown, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// An answer that is neither a success nor about a condition or the existence of an object: those are read by
/// the store's client.
fn is_refusal(status: StatusCode) -> bool {
    let of_client = [
        StatusCode::NOT_MODIFIED,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
    ];
    !status.is_success() && !of_client.contains(&status)
}

/// A refusal of the store. The stores' clients have no type of their own for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoreAnswer {
    pub(super) status: StatusCode,
    /// As in `<Code>`; empty if the answer has none.
    pub(super) code: String,
    message: String,
}

impl StoreAnswer {
    fn of(status: StatusCode, text: &str) -> Self {
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            Some(rest.split_once('<')?.0.trim().to_owned())
        };
        let code = element("Code").unwrap_or_default();
        let message = element("Message").unwrap_or_else(|| text.chars().take(200).collect());
        Self { status, code, message }
    }
}

impl fmt::Display for StoreAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, code, message } = self;
        write!(f, "{status} {code}: {message}")
    }
}

impl std::error::Error for StoreAnswer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_message_of_an_answer_are_read() {
        let text = "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce it.</Message></Error>";
        let answer = StoreAnswer::of(StatusCode::SERVICE_UNAVAILABLE, text);
        assert_eq!(answer.to_string(), "503 Service Unavailable SlowDown: Reduce it.");
        let answer = StoreAnswer::of(StatusCode::BAD_GATEWAY, "upstream is down");
        assert_eq!(answer.to_string(), "502 Bad Gateway : upstream is down");
    }
}
