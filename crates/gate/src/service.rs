//! The life of one request: its resource, its admission, and its way to the upstream and back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use lockkeeper_core::Token;
use lockkeeper_fence::http::{FencedRequest, Guarding, Pass, TOKEN, is_read};
use lockkeeper_fence::{Action, DurableMarks, HttpFence, Marks, Section};
use lockkeeper_places::NoPlace;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::client::{ClientConnection, InProgress};
use crate::headers::{
    ambiguous_framing, foldable_name, names_other_path, overrides_method, to_client, to_upstream,
    wants_websocket,
};
use crate::inside::{GateBody, Inside};
use crate::marks::{may_join, other_mode};
use crate::observe;
use crate::problem::{STALE, kind, later, problem};
use crate::restart::Restart;
use crate::rules::{Rules, Ruling, canonical};
use crate::shares::{Priority, Shares};
use crate::{GateDecision, GateHistory, TokenCheck};

/// `Retry-After` of a response that refuses a request because a limit is reached or the gate is ending.
const OVERLOAD: Duration = Duration::from_secs(1);

/// Maximum number of guarded requests whose end at the upstream is unknown; bounds their memory.
const UNSETTLED_MAX: usize = 1 << 16;

/// The state that all requests of a gate share.
pub(crate) struct GateState {
    pub(crate) fence: HttpFence<DurableMarks>,
    pub(crate) rules: Rules,
    pub(crate) restart: Restart,
    pub(crate) settle: Duration,
    /// Time limit of a guarded request, and of the wait for the headers of the response to another one.
    pub(crate) timeout: Duration,
    pub(crate) tokens: Option<TokenCheck>,
    pub(crate) history: Option<Arc<dyn GateHistory>>,
    pub(crate) upstream: Upstream,
    /// Limit on the time that the gate waits for a client: for its next request, and until it has read a
    /// response.
    pub(crate) client_timeout: Duration,
    /// Bounds the requests in progress.
    pub(crate) requests: Shares,
    /// Number of requests whose end at the upstream is unknown, and that have not been settled by time.
    pub(crate) unsettled: Arc<AtomicUsize>,
    /// Set when the process is about to end: no further request is forwarded.
    pub(crate) is_closed: AtomicBool,
}

/// Where requests are forwarded to.
pub(crate) struct Upstream {
    pub(crate) client: Client<HttpsConnector<HttpConnector>, Incoming>,
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
}

/// How a request is handled.
enum Disposition {
    /// The request has no token and needs none.
    Open,
    /// The request was admitted, and its marks are durable.
    Guarded(Pass, Action),
    /// A POST with `Fencing-Action: enter`; the gate answers it.
    Entered,
}

/// The response to a request that is not forwarded. `outcome` is the label of the counter.
struct Refusal {
    outcome: &'static str,
    response: Response<Bytes>,
}

impl From<Response<Bytes>> for Refusal {
    /// A response of the fence.
    fn from(response: Response<Bytes>) -> Self {
        Self { outcome: kind(response.status()), response }
    }
}

impl GateState {
    /// Answers a request. If the future is dropped because the client has gone, a guarded write that is at
    /// the upstream continues to its end.
    pub(crate) async fn answer(
        self: Arc<Self>,
        client: Arc<ClientConnection>,
        request: Request<Incoming>,
    ) -> Response<GateBody> {
        let is_write = !is_read(request.method()) && request.headers().contains_key(TOKEN);
        let priority = if is_write { Priority::First } else { Priority::Others };
        let in_progress = match self.requests.take(client.address, priority) {
            Ok(share) => client.begin(share),
            Err(no_share) => {
                let (whose, limit) = match no_share {
                    NoPlace::OfHolder(limit) => ("clients of your network have", limit),
                    NoPlace::InAll(limit) => ("the gate has", limit),
                };
                let detail = format!(
                    "{whose} {limit} requests in progress, which is the limit for this kind. Nothing was done"
                );
                return answered("overloaded", later(OVERLOAD, "overloaded", "Too many requests", &detail));
            }
        };
        let (mut parts, body) = request.into_parts();
        match self.decide(&mut parts).await {
            Err(Refusal { outcome, response }) => answered(outcome, response),
            Ok(Disposition::Entered) => {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = StatusCode::NO_CONTENT;
                answered("entered", response)
            }
            Ok(Disposition::Open) => self.forward("open", parts, body, &client, None, in_progress).await,
            // A read changes nothing, so the next holder need not wait for the read's end: the pass is
            // dropped once the response has begun.
            Ok(Disposition::Guarded(pass, Action::Enter)) => {
                let response = self.forward("guarded", parts, body, &client, None, in_progress).await;
                drop(pass);
                response
            }
            Ok(Disposition::Guarded(pass, _)) => {
                let inside = Inside::new(pass, self.settle, Arc::clone(&self.unsettled));
                // The next holder must wait for the end of this write, even if the client disconnects.
                let forwarded = async move {
                    self.forward("guarded", parts, body, &client, Some(inside), in_progress).await
                };
                FinishDetached { future: Some(Box::pin(forwarded)) }.await
            }
        }
    }

    async fn decide(&self, parts: &mut Parts) -> Result<Disposition, Refusal> {
        if let Some(why) = ambiguous_framing(parts) {
            return Err(bad_request("ambiguous-framing", why));
        }
        if parts.method == Method::CONNECT || wants_websocket(&parts.headers) {
            let detail = "the gate checks single requests, and can't see into a tunnel or a WebSocket. Connect to the \
                          service itself";
            let title = "No tunnels and WebSockets";
            let response = problem(StatusCode::NOT_IMPLEMENTED, "no-upgrade", title, detail);
            return Err(Refusal { outcome: "no-upgrade", response });
        }
        if parts.method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
            let why = "the method has lower-case letters, and services may take it for that in capitals";
            return Err(bad_request("ambiguous-method", why));
        }
        if let Some(name) = foldable_name(&parts.headers) {
            let why = format!(
                "the name of the header `{name}` has other characters than letters, digits and `-`, and services may take it for \
                 another one"
            );
            return Err(bad_request("ambiguous-header", &why));
        }
        if let Some(name) = names_other_path(parts) {
            let why =
                format!("the header `{name}` names another path than the request, which was not checked");
            return Err(bad_request("ambiguous-path", &why));
        }
        let overridden = overrides_method(parts).map(|by| {
            let why = format!("{by} names another method than the request, which may need a token");
            bad_request("ambiguous-method", &why)
        });
        match overridden {
            Some(refusal) if is_read(&parts.method) => Err(refusal),
            Some(refusal) => match self.admit(parts).await? {
                Disposition::Open => Err(refusal),
                guarded => Ok(guarded),
            },
            None => self.admit(parts).await,
        }
    }

    async fn admit(&self, parts: &mut Parts) -> Result<Disposition, Refusal> {
        let has_token = parts.headers.keys().any(|name| name.as_str().starts_with("fencing-"));
        let Some(path) = canonical(parts.uri.path()) else {
            let is_free = is_read(&parts.method) && !has_token && !self.rules.guards_reads();
            let why = "the path has several spellings (`//`, `..`, `%2F`, `;`, `\\` or `%25` in it), or is not UTF-8";
            return if is_free { Ok(Disposition::Open) } else { Err(bad_request("ambiguous-path", why)) };
        };
        let Ruling { token_required, resource, lock } = self.rules.of(&parts.method, &path);
        if !token_required && !has_token {
            return Ok(Disposition::Open);
        }
        let begun = Instant::now();
        let guarding = Guarding { token_required, resource: Some(resource) };
        let Some(fenced_request) = self.fence.read(parts, guarding)? else { return Ok(Disposition::Open) };
        if self.unsettled.load(Ordering::Relaxed) >= UNSETTLED_MAX {
            let detail = "too many requests have unknown ends at the upstream. Nothing was done";
            let response = later(self.settle, "overloaded", "Too many requests", detail);
            return Err(Refusal { outcome: "overloaded", response });
        }
        // Checked before the admission, so that a token that was never granted can't raise the marks and shut
        // out the holder.
        self.check_token(&lock, fenced_request.fenced().section.token()).await?;
        let fenced = fenced_request.fenced().clone();
        let is_answered_here = fenced_request.is_answered_by_fence();
        let asked = self.history.as_ref().map(|history| history.now());
        let passed = self.pass(fenced_request, fenced.section).await;
        let is_stale = |refusal: &Refusal| refusal.outcome == STALE;
        if let (Some(history), Some(asked)) = (&self.history, asked)
            && passed.as_ref().err().is_none_or(is_stale)
        {
            let (resource, section, is_accepted) = (fenced.resource.as_str(), fenced.section, passed.is_ok());
            history.decided(&GateDecision { resource, lock: &lock, section, asked, is_accepted });
        }
        let pass = passed?;
        observe::admitted(begun.elapsed());
        Ok(if is_answered_here { Disposition::Entered } else { Disposition::Guarded(pass, fenced.action) })
    }

    /// Lets a request in, when its marks are durable.
    async fn pass(
        &self,
        fenced_request: FencedRequest<DurableMarks>,
        section: Section,
    ) -> Result<Pass, Refusal> {
        let admitted = fenced_request.admit().await?;
        // Checked after the admission: an ending gate first sets `is_closed`, and then checks whether a
        // resource is in use.
        if self.is_closed.load(Ordering::SeqCst) {
            let response = later(OVERLOAD, "ending", "The gate ends", "the gate is ending. Nothing was done");
            return Err(Refusal { outcome: "ending", response });
        }
        admitted.raise_unless(|marks| self.refusal_by_marks(marks, section)).await
    }

    /// The refusal that the marks require beyond the fence's rule: a token is used in one mode only, and
    /// requests of the previous run may be at the upstream unless that run ended in an orderly way.
    fn refusal_by_marks(&self, marks: &Marks, section: Section) -> Option<Refusal> {
        if let Some(first) = other_mode(marks, section) {
            let detail = format!(
                "the token {} came as `{first}` first, and this request says another mode. Send the mode of the hold as \
                 Fencing-Mode with each request, reads included. Nothing was done",
                section.token()
            );
            let title = "A token is of one mode";
            let response = problem(StatusCode::BAD_REQUEST, "mode-changed", title, &detail);
            return Some(Refusal { outcome: "mode-changed", response });
        }
        let left = self.restart.unsettled_for().filter(|_| !may_join(marks, section))?;
        let detail = "the gate was killed a moment ago, and requests of the section before may still be at the upstream. \
                      Nothing was done";
        let response = later(left, "settling", "The section before may still be at work", detail);
        Some(Refusal { outcome: "settling", response })
    }

    async fn check_token(&self, lock: &str, token: Token) -> Result<(), Refusal> {
        let Some(check) = &self.tokens else { return Ok(()) };
        match check(lock.to_owned(), token).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let detail = format!("the lock service has no live hold of `{lock}` with the token {token}");
                let title = "The token is not current";
                let response = problem(StatusCode::PRECONDITION_FAILED, "not-current", title, &detail);
                Err(Refusal { outcome: "not-current", response })
            }
            Err(why) => {
                tracing::warn!(lock, why, "the lock service gave no answer about a token");
                let detail =
                    "the lock service gave no answer; the log of the gate says why. Nothing was done";
                let title = "The gate can't check at the moment";
                let response = later(OVERLOAD, "locks-unreachable", title, detail);
                Err(Refusal { outcome: "locks-unreachable", response })
            }
        }
    }

    async fn forward(
        &self,
        outcome: &'static str,
        mut parts: Parts,
        body: Incoming,
        client: &ClientConnection,
        inside: Option<Inside>,
        in_progress: InProgress,
    ) -> Response<GateBody> {
        let deadline = Instant::now() + self.timeout;
        to_upstream(&mut parts, client, &body);
        parts.version = Version::HTTP_11;
        parts.uri = self.upstream.uri(&parts.uri);
        let request = self.upstream.client.request(Request::from_parts(parts, body));
        match timeout_at(deadline, request).await {
            Ok(Ok(response)) => {
                let (mut parts, body) = response.into_parts();
                if parts.status == StatusCode::SWITCHING_PROTOCOLS {
                    return bad_gateway(
                        "upstream-failed",
                        "the upstream switched protocols, though nobody asked it to",
                    );
                }
                to_client(parts.version, &mut parts.headers);
                parts.version = Version::default();
                observe::request(outcome);
                // The upstream is itself a proxy that does not know how the service behind it has handled the
                // request.
                let is_unknown =
                    matches!(parts.status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT);
                let inside = inside.filter(|_| !is_unknown).map(|inside| (inside, deadline));
                Response::from_parts(
                    parts,
                    GateBody::of_upstream(body, inside, in_progress, self.client_timeout),
                )
            }
            Ok(Err(error)) if error.is_connect() => {
                if let Some(inside) = inside {
                    inside.ended();
                }
                tracing::warn!(error = &error as &dyn std::error::Error, "the upstream can't be reached");
                let detail = "the upstream can't be reached. Nothing was done; but a token that was sent with `check_once` counts as used";
                bad_gateway("upstream-unreachable", detail)
            }
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the upstream has not answered");
                bad_gateway(
                    "upstream-failed",
                    "the upstream gave no usable answer. The request may have been executed",
                )
            }
            Err(_) => {
                let detail = format!(
                    "the upstream has not answered within {:?}. The request may have been executed, or still be",
                    self.timeout
                );
                let title = "The upstream takes too long";
                answered("timeout", problem(StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", title, &detail))
            }
        }
    }
}

impl Upstream {
    fn uri(&self, uri: &Uri) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        let path = uri.path_and_query().cloned();
        parts.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
        // Can't fail: all three parts are there.
        Uri::from_parts(parts).unwrap_or_default()
    }
}

/// A future that continues as a task of its own if it is dropped before its end. To spawn it from the
/// beginning would cost each request two wake-ups on another thread, a tenth of its time.
struct FinishDetached<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Future for FinishDetached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let done = ready!(future.as_mut().poll(context));
        self.future = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for FinishDetached<T> {
    fn drop(&mut self) {
        // A future that has panicked must not be polled again.
        if let Some(future) = self.future.take()
            && !std::thread::panicking()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(future);
        }
    }
}

fn answered(outcome: &'static str, response: Response<Bytes>) -> Response<GateBody> {
    observe::request(outcome);
    response.map(GateBody::own)
}

fn bad_request(kind: &'static str, why: &str) -> Refusal {
    let detail = format!("{why}. Nothing was done");
    let response = problem(StatusCode::BAD_REQUEST, kind, "The request can be read in two ways", &detail);
    Refusal { outcome: kind, response }
}

fn bad_gateway(kind: &'static str, detail: &str) -> Response<GateBody> {
    answered(kind, problem(StatusCode::BAD_GATEWAY, kind, "The upstream did not answer", detail))
}
