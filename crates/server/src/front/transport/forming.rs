//! Answers clients and health checks on a node whose cluster does not exist yet: the node is alive, and what
//! it waits for.

use std::convert::Infallible;
use std::net::IpAddr;
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

use super::accept::{ACCEPT_PAUSE, FOREIGN_MESSAGE_BYTES_MAX, HEADER_BYTES_MAX, STREAMS_MAX};
use super::connection_places::UNAUTHENTICATED_MAX;
use crate::front::paths::is_open_to_all;
use crate::tls::{ClientProtocol, NodeTls};
use lockkeeper_places::{Places, TakenPlace, network};

/// The longest life of a connection: it serves no purpose after the answer.
const CONNECTION_LIFE: Duration = Duration::from_secs(30);

/// The answer to a client without a certificate, with TLS: tokens and addresses of nodes are of no use to it
/// yet.
const UNKNOWN: &str =
    "this node waits for its cluster, and tells only clients with a certificate what it waits for";

/// Refuses every call with the text of `waits_for`, until it is dropped; health checks are answered. At most
/// `connections_max` connections are open at once; the others are closed at once.
pub(crate) async fn answer_while_forming(
    listener: &TcpListener,
    health: HealthServer<impl Health>,
    connections_max: usize,
    tls: Option<Arc<NodeTls>>,
    waits_for: watch::Receiver<String>,
) -> Infallible {
    let routes = Routes::new(health.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX)).prepare();
    let unauthenticated = Places::new(UNAUTHENTICATED_MAX.min(connections_max));
    // Dropped with this future: all connections end once the cluster exists.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((socket, address)) if connections.len() < connections_max => {
                let place = match tls {
                    Some(_) => unauthenticated.take(Some(network(address.ip()))).ok().map(Some),
                    None => Some(None),
                };
                if let Some(place) = place {
                    connections.spawn(accept(socket, tls.clone(), place, routes.clone(), waits_for.clone()));
                }
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
    place: Option<TakenPlace<IpAddr>>,
    routes: Routes,
    waits_for: watch::Receiver<String>,
) {
    let Some(tls) = tls else { return answer(socket, true, routes, waits_for).await };
    match tls.accept_client(socket, ClientProtocol::Grpc).await {
        Ok(stream) => {
            let is_known = stream.get_ref().1.peer_certificates().is_some();
            let _place = place.filter(|_| !is_known);
            answer(stream, is_known, routes, waits_for).await;
        }
        Err(error) => tracing::debug!(%error, "a client's TLS handshake failed: {error}"),
    }
}

async fn answer(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_known: bool,
    routes: Routes,
    waits_for: watch::Receiver<String>,
) {
    let calls = service_fn(|request: http::Request<Incoming>| {
        let (mut routes, waits_for) = (routes.clone(), waits_for.clone());
        async move {
            if is_open_to_all(request.uri().path()) {
                return routes.call(request).await;
            }
            if !is_known {
                return Ok(Status::unauthenticated(UNKNOWN).into_http());
            }
            let text = waits_for.borrow().clone();
            Ok(Status::unavailable(text).into_http())
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
