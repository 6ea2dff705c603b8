//! gRPC on a connection: HTTP/2, the health checks that need no authentication, and the calls of identified
//! callers.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lockkeeper_wire::FRAME_BYTES_MAX;
use lockkeeper_wire::v1::lockkeeper_server::LockkeeperServer;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower_service::Service as _;

use super::calls::{Api, Calls, route};
use super::paths::{SESSION_CALL, has_one_answer, is_open_to_all, opens_session_stream};
use super::transport::{
    Arriving, ArrivingBody, ClientIo, Connection, FOREIGN_MESSAGE_BYTES_MAX, HEADER_BYTES_MAX, Interface,
    OPEN_CALLS_MAX, STREAM_WINDOW, STREAMS_MAX, holding, until_end,
};
use crate::tls::ClientProtocol;

/// The flow-control window of a connection, in bytes. It must be large: h2 sets its budget for unread small
/// frames to half of this window, and closes connections that exceed the budget. After a stall of this
/// process, thousands of small frames may be unread.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The limit of a stream's unsent bytes in h2, in addition to the stream's own buffer here.
const SEND_BYTES_MAX: usize = 256 << 10;
/// The idle time after which a connection is pinged, and the time limit for the answer.
const PING_AFTER: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit until the answer to such a call begins; includes the arrival of the request.
const OPEN_CALL: Duration = Duration::from_secs(10);

/// The calls of the service with those of health checks and reflection.
///
/// # Errors
/// The description of the service is invalid: a bug.
pub(super) fn routes(
    calls: &Arc<Calls>,
    health: HealthServer<impl Health>,
) -> Result<Routes, tonic_reflection::server::Error> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(lockkeeper_wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = LockkeeperServer::new(Api(calls.clone())).max_decoding_message_size(FRAME_BYTES_MAX);
    Ok(Routes::new(service)
        .add_service(health.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX))
        .add_service(reflection().build_v1()?.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX))
        .prepare())
}

/// The gRPC port.
pub(super) struct GrpcInterface {
    pub(super) calls: Arc<Calls>,
    pub(super) routes: Routes,
}

impl Interface for GrpcInterface {
    fn protocol(&self) -> ClientProtocol {
        ClientProtocol::Grpc
    }

    fn serve(&self, io: ClientIo, connection: Arc<Connection>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (calls, routes) = (self.calls.clone(), self.routes.clone());
        let requests = GrpcRequests { connection: connection.clone(), calls, routes };
        let http = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BYTES_MAX)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(io), requests);
        Box::pin(async move {
            until_end(pin!(http), http2::Connection::graceful_shutdown, &connection).await;
        })
    }
}

/// The HTTP/2 service of one connection.
struct GrpcRequests {
    connection: Arc<Connection>,
    calls: Arc<Calls>,
    routes: Routes,
}

impl hyper::service::Service<http::Request<Incoming>> for GrpcRequests {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let call = self.connection.call();
        if is_open_to_all(path) {
            let answer = answer_anybody(self.connection.clone(), self.routes.clone(), request);
            return Box::pin(async move { answer.await.map(|response| holding(call, response)) });
        }
        let caller = match self.connection.identify(request.headers()) {
            Ok(caller) => caller,
            Err(refusal) => return Box::pin(std::future::ready(Ok(refusal.into_http()))),
        };
        request.extensions_mut().insert(caller.clone());
        let (calls, routes) = (self.calls.clone(), self.routes.clone());
        if request.uri().path() == SESSION_CALL {
            // Such a call may wait for long, and its answer is small, so it does not count towards the limit
            // of unsent answers.
            let arriving = Arriving::new(&self.connection);
            request.extensions_mut().insert(arriving.clone());
            let request = request.map(|body| Body::new(ArrivingBody { body, call: arriving }));
            return Box::pin(async move { Ok(holding(call, route(calls, routes, caller, request).await)) });
        }
        if has_one_answer(request.uri().path()) {
            let answers = self.connection.answers.clone();
            return Box::pin(async move {
                let slot = answers.acquire_owned().await.ok();
                let response = route(calls, routes, caller, request.map(Body::new)).await;
                Ok(holding((call, slot), response))
            });
        }
        if opens_session_stream(request.uri().path()) {
            // The stream is registered here, on the connection's own task, so that no drain barrier passes
            // before the stream's reader exists.
            request.extensions_mut().insert(Arc::new(self.connection.starting()));
        }
        request.extensions_mut().insert(self.connection.clone());
        Box::pin(async move { Ok(holding(call, route(calls, routes, caller, request.map(Body::new)).await)) })
    }
}

/// Answers a call that needs no authentication. A request that has not arrived completely keeps its headers
/// in memory, so the number and the duration of these calls are limited.
async fn answer_anybody(
    connection: Arc<Connection>,
    mut routes: Routes,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let Ok(slot) = connection.open_calls.clone().try_acquire_owned() else {
        let text = format!("a connection may have {OPEN_CALLS_MAX} health checks at once");
        return Ok(Status::resource_exhausted(text).into_http());
    };
    match tokio::time::timeout(OPEN_CALL, routes.call(request)).await {
        Ok(response) => response.map(|response| holding(slot, response)),
        Err(_) => Ok(Status::deadline_exceeded("the call did not arrive whole in its time").into_http()),
    }
}
