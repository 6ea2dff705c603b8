//! Calls that only the leader can answer, at a node that follows it: they are passed on, so that one address is enough
//! for a tool, whichever node it is.
//!
//! Responsible for: every unary call and `Watch`, as bytes. A follower's own table would not do: it says "current" of a
//! token that was released a moment ago (P3 rests on that answer). May not pass on what was passed on already (during an
//! election two nodes may each think that the other leads), nor repeat what must be done once (O1).

mod link;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use tokio::sync::watch as shown;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tower_service::Service as _;

use super::Front;
use super::ask::{LEADER_METADATA, PATIENCE, deadline, no_leader, shuts_down};
use super::connection::Starting;
use crate::inbox::State;
use link::Failed;
pub(super) use link::Links;

/// Says that a call was passed on, and by which node's data directory.
pub(super) const FORWARDED: &str = "lockkeeper-forwarded";
/// Most bytes of a call that is kept to be passed on: a break with the longest reason has a tenth of it.
const CALL_BYTES_MAX: usize = 64 << 10;
/// How long a call waits here while nobody is known to lead: some elections. Then another node may know.
const LEADERLESS: Duration = Duration::from_secs(1);
/// Before the same leader is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a call is to whoever passes it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Asked twice it changes nothing.
    Again,
    /// It may have been done even if no answer came.
    Once,
    /// Answered by a stream, for as long as it lasts.
    Stream,
}

/// Whether a call has one answer, made in one piece; others are answered by streams, which are paced by their readers.
pub(super) fn has_one_answer(path: &str) -> bool {
    let name = path.strip_prefix("/lockkeeper.v1.Lockkeeper/");
    name.is_some_and(|name| !matches!(name, "Session" | "Watch" | "Backup"))
}

/// What only the leader answers; `None`: this node does, whether it leads or not.
fn kind(path: &str) -> Option<Kind> {
    match path.strip_prefix("/lockkeeper.v1.Lockkeeper/")? {
        "Session" | "Status" => None,
        "Watch" | "Backup" => Some(Kind::Stream),
        // A break names a token, which never comes back.
        "Describe" | "List" | "ListSessions" | "CheckToken" | "Break" => Some(Kind::Again),
        // A change that is made already is as good as made.
        "Members" | "ChangeMembers" => Some(Kind::Again),
        _ => Some(Kind::Once),
    }
}

/// Answers a call, here or at the leader.
pub(super) async fn route(
    front: Arc<Front>,
    mut routes: Routes,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let kind = kind(request.uri().path());
    let leads = *front.state().borrow() == State::Ready;
    let is_mine = request.headers().contains_key(FORWARDED) || (leads && kind == Some(Kind::Stream));
    match kind {
        // Also while this node leads: it may do so no more before it has answered.
        Some(kind) if !is_mine => {
            // It opens no stream that a barrier would have to wait for.
            request.extensions_mut().remove::<Arc<Starting>>();
            match Forwarding::new(front, kind, request).await {
                Ok(call) => call.answer(routes).await,
                Err(status) => Err(status),
            }
            .unwrap_or_else(Status::into_http)
        }
        _ => answered(routes.call(request).await),
    }
}

fn answered(answer: Result<Response<Body>, std::convert::Infallible>) -> Response<Body> {
    let Ok(answer) = answer;
    answer
}

/// A call that is passed on.
struct Forwarding {
    front: Arc<Front>,
    kind: Kind,
    parts: Parts,
    body: Bytes,
    /// When its caller has lost patience.
    until: Instant,
    has_timeout: bool,
}

impl Forwarding {
    async fn new(front: Arc<Front>, kind: Kind, request: Request<Incoming>) -> Result<Self, Status> {
        front.check_serving()?;
        let begun = Instant::now();
        let (parts, body) = request.into_parts();
        let timeout = deadline(&MetadataMap::from_headers(parts.headers.clone()))?;
        let until = begun + timeout.map_or(PATIENCE, |given| given.min(PATIENCE));
        let body = Limited::new(body, CALL_BYTES_MAX).collect();
        let body = tokio::time::timeout_at(until, body)
            .await
            .map_err(|_| Status::deadline_exceeded("the call did not arrive whole in its time"))?
            .map_err(|_| {
                Status::invalid_argument(format!(
                    "the call did not arrive whole, or has more than {CALL_BYTES_MAX} bytes, which no call needs; send less"
                ))
            })?;
        Ok(Self { front, kind, parts, body: body.to_bytes(), until, has_timeout: timeout.is_some() })
    }

    async fn answer(self, mut routes: Routes) -> Result<Response<Body>, Status> {
        let mut state = self.front.state();
        let mut leaderless_since = Instant::now();
        loop {
            let now = *state.borrow_and_update();
            let mut wake_at = self.until.min(leaderless_since + LEADERLESS);
            match now {
                State::Ready => {
                    let body = Body::new(Full::new(self.body.clone()));
                    let answer = answered(routes.call(Request::from_parts(self.parts.clone(), body)).await);
                    if self.kind != Kind::Again || !says_not_leader(answer.headers()) {
                        return Ok(answer);
                    }
                    leaderless_since = Instant::now();
                    wake_at = self.until.min(leaderless_since + PAUSE);
                }
                State::Following { leader } => {
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
                State::Ended => return Err(shuts_down()),
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
                () = self.front.stopping.cancelled() => return Err(shuts_down()),
            }
        }
    }

    /// Where that node serves clients, if it has said so.
    fn address_of(&self, leader: u64) -> Option<String> {
        self.front.clients().get(&leader).filter(|address| !address.is_empty()).cloned()
    }

    /// The answer of a node that this one thinks leads; `None`: it does not, or can't be reached, or this node knows
    /// better meanwhile: a dead leader's connection may stay open for long.
    async fn ask(
        &self,
        leader: u64,
        address: &str,
        state: &mut shown::Receiver<State>,
    ) -> Result<Option<Response<Body>>, Status> {
        let request = self.request(address)?;
        let asked = async {
            let link = match self.kind {
                Kind::Stream => link::dial(address).await,
                Kind::Again | Kind::Once => self.front.links.to(address).await,
            };
            match link {
                Ok(mut link) => link.send(request).await,
                Err(why) => {
                    tracing::debug!(leader, address, "a call can't be passed on: {why}");
                    Err(Failed::Unsent)
                }
            }
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout_at(self.until, asked) => answer,
            // What must not be asked twice stays where it is.
            () = until_other(state, leader), if self.kind != Kind::Once => {
                return Ok(None);
            }
        };
        let answer = match answer {
            Ok(Ok(answer)) if !says_not_leader(answer.headers()) => return Ok(Some(link::passed(answer))),
            Ok(Err(Failed::Unsent)) => return Ok(None),
            other => other,
        };
        match (self.kind, answer) {
            (Kind::Once, _) => Err(Status::unavailable(format!(
                "node {leader}, to which this call was passed on, did not answer it; whether it was done is unknown"
            ))),
            (_, Err(_)) => {
                Err(Status::deadline_exceeded(format!("node {leader}, which leads, did not answer in time")))
            }
            (_, Ok(_)) => Ok(None),
        }
    }

    fn request(&self, address: &str) -> Result<Request<Full<Bytes>>, Status> {
        let path = self.parts.uri.path();
        let mut request = Request::post(format!("http://{address}{path}"))
            .body(Full::new(self.body.clone()))
            .map_err(|error| {
                Status::internal(format!("{address}{path} is no place to pass a call on to: {error}"))
            })?;
        let headers = request.headers_mut();
        headers.clone_from(&self.parts.headers);
        headers.remove(http::header::CONTENT_LENGTH);
        if let Ok(by) = HeaderValue::from_str(&self.front.about.incarnation) {
            headers.insert(FORWARDED, by);
        }
        if self.has_timeout {
            // What has passed here has passed for the caller.
            let left = self.until.saturating_duration_since(Instant::now()).as_millis();
            if let Ok(left) = HeaderValue::from_str(&format!("{left}m")) {
                headers.insert("grpc-timeout", left);
            }
        }
        Ok(request)
    }
}

/// Until this node follows that one no more.
async fn until_other(state: &mut shown::Receiver<State>, leader: u64) {
    // Fails only if the front is gone, and this with it.
    drop(state.wait_for(|state| *state != State::Following { leader }).await);
}

/// Whether the node that was asked says that it does not lead, or not for long.
fn says_not_leader(headers: &HeaderMap) -> bool {
    headers.contains_key(LEADER_METADATA)
}
