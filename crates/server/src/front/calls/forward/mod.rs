//! Calls that only another node can answer: the leader, or the node that the call is about. This node
//! forwards such calls, so that a tool needs the address of only one node, no matter which.
//!
//! Responsible for: every unary call, and `Watch` and `Backup`, forwarded as bytes; `relay.rs`: streams of
//! sessions whose clients can't reach the leader. A follower's own table
//! would not suffice: it may report a token as current that was released a moment ago (P3 depends on that
//! answer). A forwarded call must not be forwarded again (during an election two nodes may each take the
//! other for the leader), and a call that must be executed once must not be repeated (O1).

mod link;
mod relay;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use lockkeeper_http::body::whole;
use lockkeeper_wire::v1;
use tokio::sync::watch as shown;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tower_service::Service as _;

use super::{Calls, deadline};
use crate::front::callers::{Caller, message};
use crate::front::paths::{ADDRESS, FORWARDED, IDENTITY, SESSION_CALL, STATUS, call_name};
use crate::front::sessions::POLL_MAX;
use crate::front::statuses::{LEADER_METADATA, PATIENCE, no_leader, shuts_down};
use crate::front::transport::Arriving;
use crate::inbox::ReplicaStatus;
pub(in crate::front) use link::Links;
use link::{ForwardError, ForwardedStream};
pub(in crate::front) use relay::Relays;

/// Limit on a call's message, in bytes; the message is kept for forwarding. The largest, a keep-alive that
/// names 4,096 requests twice, has 90 KiB.
const CALL_BYTES_MAX: usize = 128 << 10;
/// How long a call waits while this node knows no leader: longer than an election takes at the default
/// election time-out. After that the caller gets an error, since another node may know a leader.
const LEADERLESS: Duration = Duration::from_secs(1);
/// How long a call about a node waits for that node.
const NODE_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before the call is sent to the same leader again.
const PAUSE: Duration = Duration::from_millis(20);

/// How a call may be forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallKind {
    /// Idempotent: the call may be sent again.
    Again,
    /// The call must not be sent again: it may have been executed even if there was no answer.
    Once,
    /// The answer is a stream.
    Stream,
    /// The call is for the node that it names, leader or not.
    OfNode,
}

/// How a call is forwarded; `None`: this node answers it.
fn kind(path: &str) -> Option<CallKind> {
    match call_name(path)? {
        "Session" => None,
        "Status" | "Audit" => Some(CallKind::OfNode),
        "Watch" | "Backup" => Some(CallKind::Stream),
        // A break names a token, and tokens are never issued again, so a repeat breaks nothing else.
        "Describe" | "List" | "ListSessions" | "CheckToken" | "Break" => Some(CallKind::Again),
        // Nor are ids of sessions.
        "EndSession" => Some(CallKind::Again),
        // A session is known by its secret, its requests by their seqs (P7).
        "SessionCall" => Some(CallKind::Again),
        // A change that was already made counts as success.
        "Members" | "ChangeMembers" => Some(CallKind::Again),
        _ => Some(CallKind::Once),
    }
}

/// Answers a call that the caller is permitted to make, on this node or by forwarding it to the leader.
pub(in crate::front) async fn route(
    calls: Arc<Calls>,
    mut routes: Routes,
    caller: Caller,
    request: Request<Body>,
) -> Response<Body> {
    let path = request.uri().path();
    let Some(kind) = kind(path) else {
        if let Err(status) = calls.callers.authorize(&caller, path, &[]) {
            return status.into_http();
        }
        return match relay::leader_for(&calls, &request) {
            Some(leader) => {
                relay::relay(calls, leader, caller, request).await.unwrap_or_else(Status::into_http)
            }
            None => answered(routes.call(request).await),
        };
    };
    let answer = async {
        let leads = *calls.replica.state().borrow() == ReplicaStatus::Ready;
        let is_forwarded = request.headers().contains_key(FORWARDED);
        if kind != CallKind::OfNode {
            calls.replica.check_serving()?;
        }
        let call = Forwarding::new(calls, kind, caller, request).await?;
        call.calls.callers.authorize(&call.caller, call.parts.uri.path(), &call.body)?;
        let other = if kind == CallKind::OfNode { call.other_node()? } else { None };
        if let (false, Some(node)) = (is_forwarded, other) {
            if call.parts.uri.path() == STATUS {
                // A `Status` call about another node counts towards the rate limit. One about this node does
                // not: clients need it to find the leader.
                call.calls.callers.count_call(&call.caller)?;
            }
            return call.ask_node(node).await;
        }
        if is_forwarded || kind == CallKind::OfNode || (leads && kind == CallKind::Stream) {
            let body = Body::new(Full::new(call.body));
            return Ok(answered(routes.call(Request::from_parts(call.parts, body)).await));
        }
        // Unary calls take this path also while this node leads: it may lose the leadership before it has
        // answered.
        call.answer(routes).await
    };
    answer.await.unwrap_or_else(Status::into_http)
}

fn answered(answer: Result<Response<Body>, std::convert::Infallible>) -> Response<Body> {
    let Ok(answer) = answer;
    answer
}

/// A call that is being forwarded.
struct Forwarding {
    calls: Arc<Calls>,
    kind: CallKind,
    caller: Caller,
    parts: Parts,
    body: Bytes,
    /// The caller's deadline, at most [`PATIENCE`] after the call began, and for a `SessionCall` [`POLL_MAX`]
    /// more.
    until: Instant,
    has_timeout: bool,
}

impl Forwarding {
    async fn new(
        calls: Arc<Calls>,
        kind: CallKind,
        caller: Caller,
        request: Request<Body>,
    ) -> Result<Self, Status> {
        let begun = Instant::now();
        let (parts, body) = request.into_parts();
        let timeout = deadline(&MetadataMap::from_headers(parts.headers.clone()))?;
        let most = if parts.uri.path() == SESSION_CALL { PATIENCE + POLL_MAX } else { PATIENCE };
        let until = begun + timeout.map_or(most, |given| given.min(most));
        let body = tokio::time::timeout_at(until, whole(body, CALL_BYTES_MAX))
            .await
            .map_err(|_| Status::deadline_exceeded("the call did not arrive whole in its time"))?
            .map_err(|_| {
                Status::invalid_argument(format!(
                    "the call did not arrive whole, or has more than {CALL_BYTES_MAX} bytes, which no call needs; send less"
                ))
            })?;
        Ok(Self { calls, kind, caller, parts, body, until, has_timeout: timeout.is_some() })
    }

    async fn answer(self, mut routes: Routes) -> Result<Response<Body>, Status> {
        let mut state = self.calls.replica.state();
        let mut leaderless_since = Instant::now();
        loop {
            let now = *state.borrow_and_update();
            let mut wake_at = self.until.min(leaderless_since + LEADERLESS);
            match now {
                ReplicaStatus::Ready => {
                    let body = Body::new(Full::new(self.body.clone()));
                    let answer = answered(routes.call(Request::from_parts(self.parts.clone(), body)).await);
                    if self.kind != CallKind::Again || !says_not_leader(answer.headers()) {
                        return Ok(answer);
                    }
                    leaderless_since = Instant::now();
                    wake_at = self.until.min(leaderless_since + PAUSE);
                }
                ReplicaStatus::Following { leader } => {
                    if let Some(address) = self.address_of(leader) {
                        if let Some(answer) = self.ask(leader, &address, &mut state).await? {
                            return Ok(answer);
                        }
                        leaderless_since = Instant::now();
                    } else if Instant::now() >= leaderless_since + LEADERLESS {
                        return Err(no_leader());
                    }
                    wake_at = self.until.min(Instant::now() + PAUSE);
                }
                ReplicaStatus::Ended => return Err(shuts_down()),
                _ if Instant::now() >= leaderless_since + LEADERLESS => return Err(no_leader()),
                _ => {}
            }
            if Instant::now() >= self.until {
                return Err(Status::deadline_exceeded(
                    "no node led for long enough to answer in the call's time",
                ));
            }
            tokio::select! {
                _ = state.changed() => {}
                () = tokio::time::sleep_until(wake_at) => {}
                () = self.calls.replica.stopping.cancelled() => return Err(shuts_down()),
            }
        }
    }

    /// The client address of the node `leader`, if known.
    fn address_of(&self, leader: u64) -> Option<String> {
        self.calls.replica.clients().get(&leader).filter(|address| !address.is_empty()).cloned()
    }

    /// Forwards the call to the leader that this node follows. Returns `None` if the call can be sent again.
    /// It can if it was not sent; or, unless it must be executed only once, if the other node does not lead,
    /// or this node no longer follows that node (the connection to a dead leader may stay open for long).
    async fn ask(
        &self,
        leader: u64,
        address: &str,
        state: &mut shown::Receiver<ReplicaStatus>,
    ) -> Result<Option<Response<Body>>, Status> {
        if let Some(arriving) = self.parts.extensions.get::<Arc<Arriving>>() {
            arriving.handed_on();
        }
        let path = self.parts.uri.path();
        let request = self.request(address)?;
        let asked = async {
            let (links, tls) = (&self.calls.links, self.calls.tls.as_deref());
            let link = match self.kind {
                CallKind::Stream => link::dial(leader, address, tls, None).await.map(|link| (link, None)),
                _ if path == SESSION_CALL => match links.for_session(leader, address, tls).await {
                    Ok(Some((link, permit))) => Ok((link, Some(permit))),
                    Ok(None) => return Err(ForwardError::TooMany),
                    Err(why) => Err(why),
                },
                CallKind::Again | CallKind::Once | CallKind::OfNode => {
                    links.to(leader, address, tls).await.map(|link| (link, None))
                }
            };
            match link {
                Ok((mut link, _permit)) => link.send(request).await,
                Err(why) => {
                    links.failed(leader, address, &why);
                    Err(ForwardError::Unsent)
                }
            }
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout_at(self.until, asked) => answer,
            // A call that must not be repeated keeps waiting for its answer.
            () = until_other(state, leader), if self.kind != CallKind::Once => {
                return Ok(None);
            }
        };
        let answer = match answer {
            Ok(Ok(answer)) if !says_not_leader(answer.headers()) => {
                let stream = || ForwardedStream::new(self.calls.clone(), self.caller.clone());
                return Ok(Some(link::passed(answer, (self.kind == CallKind::Stream).then(stream))));
            }
            Ok(Err(ForwardError::Unsent)) => return Ok(None),
            Ok(Err(ForwardError::TooMany)) => {
                return Err(Status::resource_exhausted(
                    "this node forwards as many calls of sessions as it can; call another node",
                ));
            }
            other => other,
        };
        match (self.kind, answer) {
            (CallKind::Once, _) => Err(Status::unavailable(format!(
                "node {leader}, to which this call was passed on, did not answer it; whether it was done is unknown"
            ))),
            (_, Err(_)) => {
                Err(Status::deadline_exceeded(format!("node {leader}, which leads, did not answer in time")))
            }
            (_, Ok(_)) => Ok(None),
        }
    }

    /// The node that the call names, unless that is this one.
    fn other_node(&self) -> Result<Option<u64>, Status> {
        let node = match self.parts.uri.path() {
            STATUS => message::<v1::StatusRequest>(&self.body)?.node,
            _ => message::<v1::AuditRequest>(&self.body)?.node,
        };
        Ok(Some(node).filter(|node| *node != 0 && *node != self.calls.about.node))
    }

    /// Forwards the call to the node that it names.
    async fn ask_node(&self, node: u64) -> Result<Response<Body>, Status> {
        let address = self.address_of(node).ok_or_else(|| {
            Status::not_found(format!(
                "this node knows no node {node}, or no address at which it serves clients"
            ))
        })?;
        let request = self.request(&address)?;
        let asked = self.calls.links.ask_node(node, &address, self.calls.tls.as_deref(), request);
        let until = self.until.min(Instant::now() + NODE_PATIENCE);
        match tokio::time::timeout_at(until, asked).await {
            Ok(Ok(answer)) => Ok(link::passed(answer, None)),
            Ok(Err(why)) => {
                Err(Status::unavailable(format!("node {node} at {address} can't be asked: {why}")))
            }
            Err(_) => {
                Err(Status::deadline_exceeded(format!("node {node} at {address} did not answer in time")))
            }
        }
    }

    fn request(&self, address: &str) -> Result<Request<Body>, Status> {
        let body = Body::new(Full::new(self.body.clone()));
        let mut request = passed_on(&self.calls, &self.caller, &self.parts, address, body)?;
        if self.has_timeout {
            // The time that the call has spent on this node counts against the caller's deadline.
            let left = self.until.saturating_duration_since(Instant::now()).as_millis();
            if let Ok(left) = HeaderValue::from_str(&format!("{left}m")) {
                request.headers_mut().insert("grpc-timeout", left);
            }
        }
        Ok(request)
    }
}

/// The request with which this node passes the call of `caller` on to the node at `address`.
fn passed_on(
    calls: &Calls,
    caller: &Caller,
    parts: &Parts,
    address: &str,
    body: Body,
) -> Result<Request<Body>, Status> {
    let path = parts.uri.path();
    let mut request = Request::post(format!("http://{address}{path}")).body(body).map_err(|error| {
        Status::internal(format!("{address}{path} is no place to pass a call on to: {error}"))
    })?;
    let headers = request.headers_mut();
    headers.clone_from(&parts.headers);
    headers.remove(http::header::CONTENT_LENGTH);
    headers.remove(IDENTITY);
    if calls.tls.is_some() {
        // The leader trusts this node's certificate and takes the identity from the header below. Without
        // TLS, the leader checks the caller's token itself.
        headers.remove(http::header::AUTHORIZATION);
        let identity = HeaderValue::from_bytes(caller.identity.as_str().as_bytes());
        headers.insert(
            IDENTITY,
            identity.map_err(|error| Status::internal(format!("an identity is no header: {error}")))?,
        );
        headers.remove(ADDRESS);
        if let Ok(address) = HeaderValue::from_str(&caller.address) {
            headers.insert(ADDRESS, address);
        }
    }
    if let Ok(by) = HeaderValue::from_str(&calls.about.incarnation) {
        headers.insert(FORWARDED, by);
    }
    Ok(request)
}

/// Completes when this node no longer follows `leader`.
async fn until_other(state: &mut shown::Receiver<ReplicaStatus>, leader: u64) {
    // Fails only if the front was dropped; then this task is dropped as well.
    drop(state.wait_for(|state| *state != ReplicaStatus::Following { leader }).await);
}

/// Whether the headers come from a node that does not lead, or that shuts down.
fn says_not_leader(headers: &HeaderMap) -> bool {
    headers.contains_key(LEADER_METADATA)
}
