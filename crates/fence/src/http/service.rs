//! The service: the handling of one request.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::body::FencedBody;
use super::passage::Pass;
use super::problem::Problem;
use super::{Guarding, Settings, is_read};
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
        // The caller has polled this instance ready, not the clone; so this instance serves the request, and
        // the clone replaces it.
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
    async fn word(self: &Arc<Self>, parts: &mut Parts) -> Result<Word, Problem> {
        let guarding = Guarding {
            token_required: match &self.guarded {
                Some(methods) => methods.contains(&parts.method),
                None => !is_read(&parts.method),
            },
            resource: self.resource_by.as_ref().map(|name| name(parts)),
        };
        let Some(request) = self.read(parts, guarding)? else { return Ok(Word::Free) };
        let action = request.fenced().action;
        let is_answered_here = request.is_answered_by_fence();
        let pass = request.wait_for_admission().await?.raise_marks().await?;
        Ok(if is_answered_here { Word::Entered } else { Word::Handler(pass, action) })
    }
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
