//! HTTP/JSON: the service's calls for `curl`, and for languages without gRPC.
//!
//! Responsible for: each request is translated into one call of the service, which is answered in this
//! process as the gRPC port would answer it: identities, permissions, quotas, the audit trail and forwarding
//! to the leader are the same. Contains no lock rule. Reading order: `call.rs` (what a handler gets),
//! `problem.rs` (errors), `sessions.rs` (sessions and their requests), `locks.rs`, `watch.rs`, `cluster.rs`,
//! `audit.rs`, `openapi.rs`; `metrics.rs`; `pages.rs` (for browsers).

mod audit;
mod call;
mod cluster;
mod locks;
mod metrics;
mod openapi;
mod pages;
mod problem;
mod sessions;
mod watch;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use http::{HeaderValue, Method, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service as _;

use super::calls::Calls;
use super::transport::{Arriving, ArrivingBody, ClientIo, Connection, Interface, holding, until_end};
use crate::tls::ClientProtocol;
use call::Origin;
pub(super) use metrics::Metrics;
pub(super) use pages::Hazards;
use problem::{Problem, ProblemCode};

/// The header with a session's secret.
const SECRET_HEADER: &str = "lockkeeper-secret";
/// How to make a secret.
const SECRET_HELP: &str =
    "make one for each session, as by `openssl rand -hex 16`, and send it with every call of the session";
/// The limit of a body, in bytes. The largest acquire has a quarter of it.
const BODY_BYTES_MAX: usize = 256 << 10;
/// The limit of a request's head, in bytes, and so of what is read ahead.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The handlers that are served on every HTTP connection.
#[derive(Clone)]
pub(super) struct HttpInterface {
    router: Router,
    calls: Arc<Calls>,
    /// The service's calls.
    routes: Routes,
    /// Whether the port accepts connections from this machine only (a loopback address without TLS).
    is_local: bool,
}

/// The optional pages that the embedding process supplies.
#[derive(Clone)]
struct HttpState {
    metrics: Option<Arc<Metrics>>,
    hazards: Option<Arc<Hazards>>,
}

impl HttpInterface {
    pub(super) fn new(
        calls: Arc<Calls>,
        routes: Routes,
        is_local: bool,
        metrics: Option<Arc<Metrics>>,
        hazards: Option<Arc<Hazards>>,
    ) -> Self {
        let router = router().with_state(HttpState { metrics, hazards });
        Self { router, calls, routes, is_local }
    }

    /// The refusal of a request that a web site may have caused a visitor's browser to send; else `None`.
    fn refusal<B>(&self, request: &http::Request<B>) -> Option<Problem> {
        if self.is_local
            && let Some(host) = foreign_host(request)
        {
            let text = format!(
                "`Host` is `{host}`, but this port is for programs on this machine: a web site may have sent this request. \
                 Call it by its address or as `localhost`, also through a proxy"
            );
            return Some(Problem::new(ProblemCode::Misdirected, text));
        }
        let site = request.headers().get("sec-fetch-site")?;
        (site == "cross-site" && !pages::is_page(request.uri().path())).then(|| {
            let text = "a browser says that another web site sends this request";
            Problem::new(ProblemCode::PermissionDenied, text)
        })
    }
}

impl Interface for HttpInterface {
    fn protocol(&self) -> ClientProtocol {
        ClientProtocol::Http
    }

    fn serve(&self, io: ClientIo, connection: Arc<Connection>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let idle_timeout = connection.transport().limits.idle_timeout;
        let requests = Requests { connection: connection.clone(), interface: self.clone() };
        let http = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(idle_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(io), requests);
        Box::pin(async move {
            until_end(pin!(http), http1::Connection::graceful_shutdown, &connection).await;
        })
    }
}

/// The HTTP service of one connection.
struct Requests {
    connection: Arc<Connection>,
    interface: HttpInterface,
}

impl hyper::service::Service<http::Request<Incoming>> for Requests {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        // The request is registered here, on the connection's own task: it may keep a session alive, so no
        // drain barrier may pass before it is passed to the replica.
        let arriving = Arriving::new(&self.connection);
        let call = self.connection.call();
        if request.method() == Method::GET {
            arriving.handed_on();
        }
        if let Some(problem) = self.interface.refusal(&request) {
            return Box::pin(std::future::ready(Ok(problem.into_response().map(Body::new))));
        }
        let (calls, routes) = (self.interface.calls.clone(), self.interface.routes.clone());
        let connection = self.connection.clone();
        request.extensions_mut().insert(Origin { calls, connection, routes, arriving: arriving.clone() });
        let mut request = request.map(|body| ArrivingBody { body, call: arriving });
        DefaultBodyLimit::max(BODY_BYTES_MAX).apply(&mut request);
        let mut router = self.interface.router.clone();
        Box::pin(async move {
            let mut response = router.call(request).await?;
            let headers = response.headers_mut();
            headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            Ok(holding(call, response.map(Body::new)))
        })
    }
}

/// The host that a request names, if it is neither an address nor this machine. A web site can make its own
/// name resolve to 127.0.0.1, and so let a visitor's browser call this port (DNS rebinding).
fn foreign_host<B>(request: &http::Request<B>) -> Option<String> {
    let host = request.headers().get(header::HOST)?;
    let Ok(host) = host.to_str() else { return Some(String::from_utf8_lossy(host.as_bytes()).into_owned()) };
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    // The colons of an IPv6 address are not followed by a port.
    let name = if port.ends_with(']') { host } else { name };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost");
    (!is_local).then(|| host.to_owned())
}

fn nothing_at(path: &str) -> Problem {
    let text = format!("there is nothing at `{path}`; /v1/openapi.json lists what there is");
    Problem::new(ProblemCode::NotFound, text)
}

fn router() -> Router<HttpState> {
    Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::open))
        .route("/v1/sessions/{session}", delete(sessions::close))
        .route("/v1/sessions/{session}/keep-alive", post(sessions::keep_alive))
        .route("/v1/sessions/{session}/requests/{request}", delete(sessions::release))
        .route("/v1/sessions/{session}/requests/{request}/value", put(sessions::set_value))
        .route("/v1/sessions/{session}/requests/{request}/downgrade", post(sessions::downgrade))
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/{*name}", get(locks::describe).post(sessions::acquire))
        .route("/v1/watch", get(watch::watch))
        .route("/v1/check-token", get(locks::check_token))
        .route("/v1/break", post(locks::break_hold))
        .route("/v1/set-limit", post(locks::set_limit))
        .route("/v1/status", get(cluster::status))
        .route("/v1/audit", get(audit::audit))
        .route("/v1/members", get(cluster::members).post(cluster::add))
        .route("/v1/members/{node}", delete(cluster::remove))
        .route("/v1/transfer", post(cluster::transfer))
        .route("/v1/backup", get(cluster::backup))
        .route("/v1/openapi.json", get(openapi::document))
        .route("/metrics", get(metrics::metrics))
        .route("/", get(pages::file))
        .route("/console/{file}", get(pages::file))
        .route("/hazard", get(pages::file))
        .route("/hazard/{file}", get(pages::file))
        .route("/hazard/trace", get(pages::trace))
        .fallback(|uri: http::Uri| async move { nothing_at(uri.path()) })
        .method_not_allowed_fallback(|method: Method, uri: http::Uri| async move {
            let text = format!("`{}` has no {method}; /v1/openapi.json lists what there is", uri.path());
            Problem::new(ProblemCode::MethodNotAllowed, text)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_this_machine_are_called_on_a_local_port() {
        let foreign = |host: &str| {
            foreign_host(&http::Request::builder().header(header::HOST, host).body(()).unwrap()).is_some()
        };
        for own in [
            "127.0.0.1:5627",
            "127.0.0.1",
            "[::1]:5627",
            "[::1]",
            "localhost:5627",
            "LOCALHOST",
            "a.localhost:1",
        ] {
            assert!(!foreign(own), "{own}");
        }
        for other in
            ["evil.example", "evil.example:5627", "localhost.evil.example", "127.0.0.1.evil.example:80", ""]
        {
            assert!(foreign(other), "{other}");
        }
        assert!(foreign_host(&http::Request::new(())).is_none());
    }
}
