//! What clients and health checks are told by a node whose cluster does not exist yet: that it is alive, and what it
//! waits for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower_service::Service as _;

use super::accept::{ACCEPT_PAUSE, HEADER_BYTES_MAX, STREAMS_MAX};
use crate::tls::NodeTls;

/// The longest life of a connection: there is nothing to keep it for.
const CONNECTION_LIFE: Duration = Duration::from_secs(30);

/// Refuses every call with the text of `waits_for`, until it is dropped; health checks are answered. At most
/// `connections_max` connections are open at once; the others are closed at once.
pub(crate) async fn answer_while_forming(
    listener: &TcpListener,
    health: HealthServer<impl Health>,
    connections_max: usize,
    tls: Option<Arc<NodeTls>>,
    waits_for: watch::Receiver<String>,
) -> Infallible {
    let routes = Routes::new(health).prepare();
    // Dropped with this future: all connections end once the cluster exists.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((socket, _)) if connections.len() < connections_max => {
                connections.spawn(accept(socket, tls.clone(), routes.clone(), waits_for.clone()));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept(
    socket: TcpStream,
    tls: Option<Arc<NodeTls>>,
    routes: Routes,
    waits_for: watch::Receiver<String>,
) {
    let Some(tls) = tls else { return answer(socket, routes, waits_for).await };
    match tls.accept_client(socket).await {
        Ok(stream) => answer(stream, routes, waits_for).await,
        Err(error) => tracing::debug!(%error, "a client's TLS handshake failed: {error}"),
    }
}

async fn answer(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Routes,
    waits_for: watch::Receiver<String>,
) {
    let calls = service_fn(|request: http::Request<Incoming>| {
        let (mut routes, waits_for) = (routes.clone(), waits_for.clone());
        async move {
            if request.uri().path().starts_with("/lockkeeper.") {
                let text = waits_for.borrow().clone();
                return Ok(Status::unavailable(text).into_http());
            }
            routes.call(request).await
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(io), calls);
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_LIFE, connection).await {
        tracing::debug!(%error, "a connection ended: {error}");
    }
}
