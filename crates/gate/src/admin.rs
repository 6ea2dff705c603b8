//! The port for operators: `/healthz` and `/metrics`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::HEADERS_LIMIT;
use crate::observe;
use crate::service::GateState;
use crate::shares::Shares;

/// Connections at once.
const CONNECTIONS_MAX: usize = 64;

/// What the port shows.
pub(crate) struct Admin {
    pub(crate) metrics: PrometheusHandle,
    pub(crate) state: Arc<GateState>,
    /// The connections of clients.
    pub(crate) connections: Arc<Shares>,
    /// The gate takes no more requests.
    pub(crate) is_ending: Arc<AtomicBool>,
}

impl Admin {
    /// Serves the port until the future is dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(crate::ACCEPT_AGAIN).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else { continue };
            let this = Arc::clone(&self);
            tokio::spawn(async move {
                let service =
                    service_fn(|request| std::future::ready(Ok::<_, Infallible>(this.answer(&request))));
                let mut server = hyper::server::conn::http1::Builder::new();
                server.timer(TokioTimer::new()).header_read_timeout(HEADERS_LIMIT);
                // An error is the client's: it has gone, or has not spoken HTTP.
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
                drop(permit);
            });
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, text) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/healthz") if self.is_ending.load(Ordering::SeqCst) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ending\n".to_owned())
            }
            (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, "ok\n".to_owned()),
            (&Method::GET | &Method::HEAD, "/metrics") => {
                observe::connections(self.connections.taken());
                observe::in_progress(self.state.requests.taken());
                observe::marks(self.state.fence.store().count());
                observe::resources_in_use(self.state.fence.doors_in_use());
                self.metrics.run_upkeep();
                (StatusCode::OK, self.metrics.render())
            }
            (_, "/healthz" | "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "GET only\n".to_owned()),
            _ => (StatusCode::NOT_FOUND, "there are /healthz and /metrics\n".to_owned()),
        };
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }
}
