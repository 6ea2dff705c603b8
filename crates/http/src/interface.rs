//! The handlers by path, and what holds for all requests.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Bytes, HttpBody};
use axum::extract::DefaultBodyLimit;
use axum::http::{self, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{BoxError, Router};
use tower_service::Service as _;

use crate::call::BODY_BYTES_MAX;
use crate::pages::{HazardPlayer, Hazards};
use crate::problem::{Problem, ProblemCode};
use crate::service::Origin;
use crate::{audit, cluster, health, keep_alive, locks, metrics, openapi, pages, sessions, watch};

/// HTTP/JSON, the pages for browsers, and `/metrics`.
#[derive(Clone)]
pub struct HttpInterface<O> {
    router: Router,
    /// Whether the port accepts connections from this machine only (a loopback address without TLS).
    is_local: bool,
    origin: PhantomData<fn(O)>,
}

impl<O: Origin> HttpInterface<O> {
    /// The interface at a port. `is_local`: the port accepts connections from this machine only, without TLS.
    #[must_use]
    pub fn new(is_local: bool, hazards: Option<HazardPlayer>) -> Self {
        let router = router::<O>().with_state(hazards.map(|player| Arc::new(Hazards::new(player))));
        Self { router, is_local, origin: PhantomData }
    }

    /// Answers a request.
    pub fn answer<B>(
        &self,
        origin: O,
        mut request: http::Request<B>,
    ) -> impl Future<Output = Response> + Send + use<O, B>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let refusal = self.refusal(&request);
        request.extensions_mut().insert(origin);
        DefaultBodyLimit::max(BODY_BYTES_MAX).apply(&mut request);
        let mut router = self.router.clone();
        async move {
            if let Some(problem) = refusal {
                return problem.into_response();
            }
            let Ok(mut response) = router.call(request).await;
            let headers = response.headers_mut();
            headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            response
        }
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

pub(crate) fn nothing_at(path: &str) -> Problem {
    let text = format!("there is nothing at `{path}`; /v1/openapi.json lists what there is");
    Problem::new(ProblemCode::NotFound, text)
}

fn router<O: Origin>() -> Router<Option<Arc<Hazards>>> {
    Router::new()
        .route("/v1/sessions", get(sessions::list::<O>).post(sessions::open::<O>))
        .route("/v1/sessions/{session}", delete(sessions::close::<O>))
        .route("/v1/sessions/{session}/keep-alive", post(keep_alive::keep_alive::<O>))
        .route("/v1/sessions/{session}/requests/{request}", delete(sessions::release::<O>))
        .route("/v1/sessions/{session}/requests/{request}/value", put(sessions::set_value::<O>))
        .route("/v1/sessions/{session}/requests/{request}/downgrade", post(sessions::downgrade::<O>))
        .route("/v1/locks", get(locks::list::<O>))
        .route("/v1/locks/{*name}", get(locks::describe::<O>).post(sessions::acquire::<O>))
        .route("/v1/watch", get(watch::watch::<O>))
        .route("/v1/check-token", get(locks::check_token::<O>))
        .route("/v1/break", post(locks::break_hold::<O>))
        .route("/v1/end-session", post(sessions::end::<O>))
        .route("/v1/set-limit", post(locks::set_limit::<O>))
        .route("/v1/status", get(cluster::status::<O>))
        .route("/v1/audit", get(audit::audit::<O>))
        .route("/v1/members", get(cluster::members::<O>).post(cluster::add::<O>))
        .route("/v1/members/{node}", delete(cluster::remove::<O>))
        .route("/v1/transfer", post(cluster::transfer::<O>))
        .route("/v1/backup", get(cluster::backup::<O>))
        .route("/v1/openapi.json", get(openapi::document))
        .route("/metrics", get(metrics::metrics::<O>))
        .route("/livez", get(health::live::<O>))
        .route("/readyz", get(health::ready::<O>))
        .route("/", get(pages::file))
        .route("/console/{file}", get(pages::file))
        .route("/hazard", get(pages::file))
        .route("/hazard/{file}", get(pages::file))
        .route("/hazard/trace", get(pages::trace::<O>))
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
