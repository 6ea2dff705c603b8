//! One request: what it is about, its admission, and its way to the upstream and back.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
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
use lockkeeper_fence::http::{Fenced, Guarding, Pass};
use lockkeeper_fence::{Action, DurableMarks, HttpFence};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::TokenCheck;
use crate::headers::{ambiguous_framing, to_client, to_upstream, wants_websocket};
use crate::inside::{GateBody, Inside};
use crate::observe;
use crate::problem::{kind, later, problem};
use crate::restart::{Restart, may_join};
use crate::rules::{Rules, Ruling, canonical};

/// `Retry-After` of a gate that has too much to do.
const OVERLOAD: Duration = Duration::from_secs(1);

/// What the requests of a gate share.
pub(crate) struct GateState {
    pub(crate) fence: HttpFence<DurableMarks>,
    pub(crate) rules: Rules,
    pub(crate) restart: Restart,
    pub(crate) settle: Duration,
    /// Time limit of a guarded request, and of the wait for the headers of the response to another one.
    pub(crate) timeout: Duration,
    pub(crate) tokens: Option<TokenCheck>,
    pub(crate) upstream: Upstream,
    /// Bounds the requests that are at the upstream, or wait.
    pub(crate) requests: Arc<Semaphore>,
}

/// Where requests are forwarded to.
pub(crate) struct Upstream {
    pub(crate) client: Client<HttpsConnector<HttpConnector>, Incoming>,
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
}

/// What a request must do before it is forwarded.
enum Way {
    /// It has no token and needs none.
    Open,
    /// It was admitted, and its marks are durable.
    Guarded(Pass, Action),
    /// It has been answered.
    Answered(Response<Bytes>),
}

impl GateState {
    /// Answers a request. If the future is dropped because the client has gone, a request that is at the upstream continues to
    /// its end.
    pub(crate) async fn answer(
        self: Arc<Self>,
        client: SocketAddr,
        request: Request<Incoming>,
    ) -> Response<GateBody> {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            let detail = "the gate has as many requests as it may have at once. Nothing was done";
            return answered("overloaded", later(OVERLOAD, "overloaded", "Too many requests", detail));
        };
        let deadline = Instant::now() + self.timeout;
        let (mut parts, body) = request.into_parts();
        match self.way(&mut parts).await {
            Way::Answered(response) => {
                let outcome = match response.status() {
                    StatusCode::NO_CONTENT => "entered",
                    status => kind(status),
                };
                answered(outcome, response)
            }
            Way::Open => {
                observe::request("open");
                self.forward(parts, body, client, deadline, None, permit).await
            }
            // A read changes nothing: the next holder need not wait for its end, only for what it was told.
            Way::Guarded(pass, Action::Enter) => {
                observe::request("guarded");
                let response = self.forward(parts, body, client, deadline, None, permit).await;
                drop(pass);
                response
            }
            Way::Guarded(pass, _) => {
                observe::request("guarded");
                let inside = Inside::new(pass, self.settle);
                // Its end is to be known also if the client does not wait for it.
                let forwarded =
                    async move { self.forward(parts, body, client, deadline, Some(inside), permit).await };
                FinishDetached { future: Some(Box::pin(forwarded)) }.await
            }
        }
    }

    async fn way(&self, parts: &mut Parts) -> Way {
        if let Some(why) = ambiguous_framing(parts) {
            return bad_request("ambiguous-framing", why);
        }
        if parts.method == Method::CONNECT || wants_websocket(&parts.headers) {
            let detail = "the gate checks single requests, and can't see into a tunnel or a WebSocket. Connect to the \
                          service itself";
            let title = "No tunnels and WebSockets";
            return Way::Answered(problem(StatusCode::NOT_IMPLEMENTED, "no-upgrade", title, detail));
        }
        let has_token = parts.headers.keys().any(|name| name.as_str().starts_with("fencing-"));
        let Some(path) = canonical(parts.uri.path()) else {
            let is_free = parts.method.is_safe() && !has_token && !self.rules.guards_reads();
            let why = "the path has several spellings (`//`, `..`, `%2F`, `;`, `\\` or `%25` in it), or is not UTF-8";
            return if is_free { Way::Open } else { bad_request("ambiguous-path", why) };
        };
        let Ruling { token_required, resource, lock } = self.rules.of(&parts.method, &path);
        if !token_required && !has_token {
            return Way::Open;
        }
        match self.admit(parts, Guarding { token_required, resource: Some(resource) }, lock).await {
            Ok(way) => way,
            Err(response) => Way::Answered(response),
        }
    }

    async fn admit(
        &self,
        parts: &mut Parts,
        guarding: Guarding,
        lock: String,
    ) -> Result<Way, Response<Bytes>> {
        let begun = Instant::now();
        let Some(admitted) = self.fence.admit(parts, guarding).await? else { return Ok(Way::Open) };
        let fenced = admitted.fenced().clone();
        self.join_previous_run(&fenced).await?;
        // Before the marks rise, so that a token which nobody was granted raises none.
        self.check_token(lock, &fenced).await?;
        let is_answered_here = admitted.is_answered_by_fence();
        let pass = admitted.raise().await?;
        observe::admitted(begun.elapsed());
        if is_answered_here {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(Way::Answered(response));
        }
        Ok(Way::Guarded(pass, fenced.action))
    }

    /// After a start that followed no orderly end: whether requests of the previous run may be in the way.
    async fn join_previous_run(&self, fenced: &Fenced) -> Result<(), Response<Bytes>> {
        let Some(left) = self.restart.unsettled_for() else { return Ok(()) };
        let marks = self.fence.marks(&fenced.resource).await.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "marks can't be read");
            later(OVERLOAD, "unavailable", "The gate can't check at the moment", "its marks can't be read")
        })?;
        if may_join(&marks, fenced.section) {
            return Ok(());
        }
        let detail = "the gate was killed a moment ago, and requests of the section before may still be at the upstream. \
                      Nothing was done";
        Err(later(left, "settling", "The section before may still be at work", detail))
    }

    async fn check_token(&self, lock: String, fenced: &Fenced) -> Result<(), Response<Bytes>> {
        let Some(check) = &self.tokens else { return Ok(()) };
        let token = fenced.section.token();
        let title = "The token is not current";
        match check(lock.clone(), token).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let detail = format!("the lock service has no live hold of `{lock}` with the token {token}");
                Err(problem(StatusCode::PRECONDITION_FAILED, "not-current", title, &detail))
            }
            Err(why) => {
                tracing::warn!(lock, why, "the lock service could not be asked for a token");
                let detail =
                    "the lock service could not be asked; the log of the gate says why. Nothing was done";
                Err(later(OVERLOAD, "locks-unreachable", "The gate can't check at the moment", detail))
            }
        }
    }

    async fn forward(
        &self,
        mut parts: Parts,
        body: Incoming,
        client: SocketAddr,
        deadline: Instant,
        inside: Option<Inside>,
        permit: OwnedSemaphorePermit,
    ) -> Response<GateBody> {
        to_upstream(&mut parts, client.ip());
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
                let inside = inside.map(|inside| (inside, deadline));
                Response::from_parts(parts, GateBody::of_upstream(body, inside, permit))
            }
            Ok(Err(error)) if error.is_connect() => {
                if let Some(inside) = inside {
                    inside.ended();
                }
                tracing::warn!(error = &error as &dyn std::error::Error, "the upstream can't be reached");
                bad_gateway("upstream-unreachable", "the upstream can't be reached. Nothing was done")
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

/// A future that is spawned if it is dropped before its end. Spawned from the beginning, it would cost each request two wake-ups on
/// another thread, a tenth of its time.
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
        {
            tokio::spawn(future);
        }
    }
}

fn answered(outcome: &'static str, response: Response<Bytes>) -> Response<GateBody> {
    observe::request(outcome);
    response.map(GateBody::own)
}

fn bad_request(kind: &str, why: &str) -> Way {
    let detail = format!("{why}. Nothing was done");
    Way::Answered(problem(StatusCode::BAD_REQUEST, kind, "The request can be read in two ways", &detail))
}

fn bad_gateway(kind: &'static str, detail: &str) -> Response<GateBody> {
    answered(kind, problem(StatusCode::BAD_GATEWAY, kind, "The upstream did not answer", detail))
}
