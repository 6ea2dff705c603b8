//! HTTP on a connection: HTTP/1.1, whose requests the package `lockkeeper-http` translates into calls of the
//! service. Reading order: `in_process.rs` (the calls), `metrics.rs`.

mod in_process;
mod metrics;

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;

use http::Method;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use lockkeeper_http::HttpInterface;
use tonic::body::Body;
use tonic::service::Routes;

use super::calls::Calls;
use super::transport::{Arriving, ArrivingBody, ClientIo, Connection, Interface, holding, until_end};
use crate::tls::ClientProtocol;
use in_process::RequestOrigin;
pub(super) use metrics::Metrics;

/// The limit of a request's head, in bytes, and so of what is read ahead.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The HTTP port.
#[derive(Clone)]
pub(super) struct HttpServed {
    pub(super) interface: HttpInterface<RequestOrigin>,
    pub(super) calls: Arc<Calls>,
    /// The service's calls.
    pub(super) routes: Routes,
    /// `None`: the process records no metrics.
    pub(super) metrics: Option<Arc<Metrics>>,
}

impl Interface for HttpServed {
    fn protocol(&self) -> ClientProtocol {
        ClientProtocol::Http
    }

    fn serve(&self, io: ClientIo, connection: Arc<Connection>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let idle_timeout = connection.transport().limits.idle_timeout;
        let requests = HttpRequests { connection: connection.clone(), port: self.clone() };
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
struct HttpRequests {
    connection: Arc<Connection>,
    port: HttpServed,
}

impl hyper::service::Service<http::Request<Incoming>> for HttpRequests {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        // The request is registered here, on the connection's own task: it may keep a session alive, so no
        // drain barrier may pass before it is passed to the replica.
        let arriving = Arriving::new(&self.connection);
        let call = self.connection.call();
        if request.method() == Method::GET {
            arriving.handed_on();
        }
        let HttpServed { interface, calls, routes, metrics } = &self.port;
        let origin = RequestOrigin {
            calls: calls.clone(),
            connection: self.connection.clone(),
            routes: routes.clone(),
            metrics: metrics.clone(),
            arriving: arriving.clone(),
        };
        let answer = interface.answer(origin, request.map(|body| ArrivingBody { body, call: arriving }));
        Box::pin(async move { Ok(holding(call, answer.await.map(Body::new))) })
    }
}
