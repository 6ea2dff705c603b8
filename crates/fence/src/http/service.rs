//! The service: the handling of one request.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::body::FencedBody;
use super::headers::{self, RESOURCE, TOKEN};
use super::passage::Pass;
use super::problem::Problem;
use super::{Fenced, Settings};
use crate::resource::Resource;
use crate::rule::Action;
use crate::store::MarkStore;

/// A service behind an [`HttpFence`](super::HttpFence).
pub struct FencedService<S, M> {
    inner: S,
    settings: Arc<Settings<M>>,
}

impl<S, M> FencedService<S, M> {
    pub(super) fn new(inner: S, settings: Arc<Settings<M>>) -> Self {
        Self { inner, settings }
    }
}

/// The outcome of the fence's check of a request.
enum Word {
    /// The request has no token, and needs none.
    Free,
    /// The request is admitted: call the handler.
    Handler(Pass, Action),
    /// The request was a POST with `Fencing-Action: enter`, to which the fence itself responds.
    Entered,
}

impl<S, M, In, Out> Service<Request<In>> for FencedService<S, M>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    In: Send + 'static,
    Out: Body,
    Out::Data: From<Bytes>,
    M: MarkStore,
{
    type Response = Response<FencedBody<Out>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        // The caller has polled this instance ready, not the clone; so this instance serves the request, and the
        // clone replaces it.
        let copy = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, copy);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let (pass, action) = match settings.word(&mut parts).await {
                Ok(Word::Free) => (None, Action::Enter),
                Ok(Word::Handler(pass, action)) => (Some(pass), action),
                Ok(Word::Entered) => {
                    let mut response = Response::new(FencedBody::own(Bytes::new()));
                    *response.status_mut() = StatusCode::NO_CONTENT;
                    return Ok(response);
                }
                Err(problem) => return Ok(problem.into_response().map(FencedBody::own)),
            };
            // `pass` is kept while the handler runs. An error, a panic or a client that disconnects drops it
            // together with this future.
            let response = inner.call(Request::from_parts(parts, body)).await?;
            let pass = pass.filter(|_| action != Action::Enter);
            Ok(response.map(|body| FencedBody::of_handler(body, pass)))
        })
    }
}

impl<M: MarkStore> Settings<M> {
    async fn word(&self, parts: &mut Parts) -> Result<Word, Problem> {
        let guarded = self.guarded.contains(&parts.method);
        // A missing token is reported before problems of other headers.
        if guarded && !parts.headers.contains_key(TOKEN) {
            return Err(Problem::token_required(&parts.method));
        }
        let Some(said) = headers::read(&parts.headers)? else { return Ok(Word::Free) };
        let safe = parts.method.is_safe();
        let action = said.action.unwrap_or(if safe { Action::Enter } else { Action::Write });
        if action == Action::Enter && !safe && parts.method != Method::POST {
            // A 204 by the fence would look as if the request had been executed; calling the handler would execute a
            // write that was checked only as an enter.
            return Err(Problem::meaningless(format!(
                "Fencing-Action: enter goes with POST, which does nothing else, or with GET and HEAD, which then read; not \
         with {}",
                parts.method
            )));
        }
        let resource = self.resource(parts, said.resource)?;
        let pass = self.doors.pass(&self.store, self.wait, resource.clone(), action, said.section).await?;
        if action == Action::Enter && !safe {
            return Ok(Word::Entered);
        }
        parts.extensions.insert(Fenced { resource, action, section: said.section });
        Ok(Word::Handler(pass, action))
    }

    fn resource(&self, parts: &Parts, said: Option<Resource>) -> Result<Resource, Problem> {
        let Some(name) = &self.resource_by else {
            return said.map_or_else(|| of_path(parts), Ok);
        };
        let name = name(parts);
        let known = Resource::new(&name).map_err(|bad| {
            Problem::meaningless(format!("this request has no resource that can be fenced: {bad}"))
        })?;
        match said {
            Some(said) if said != known => Err(Problem::malformed(
                &RESOURCE,
                format!("is `{said}`, and this request is about `{known}`; leave it out, or send that"),
            )),
            _ => Ok(known),
        }
    }
}

/// The resource that the path names, percent-decoded: most services treat `/a` and `/%61` as the same path, and two
/// names would have two sets of marks.
fn of_path(parts: &Parts) -> Result<Resource, Problem> {
    let path = parts.uri.path();
    let bad = |why: &str| {
        Problem::meaningless(format!("the path can't name the resource: {why}. Send Fencing-Resource"))
    };
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
    let decoded = decoded.map_err(|_| bad("decoded, it is not UTF-8"))?;
    Resource::new(&decoded).map_err(|error| bad(&error.to_string()))
}

impl<S: Clone, M> Clone for FencedService<S, M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S: fmt::Debug, M> fmt::Debug for FencedService<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
