//! A fence in front of an HTTP service: a `tower` layer for axum, hyper, tonic and other `tower` servers.
//!
//! Defines the protocol between client and fence, and the path of a request: parse its headers
//! (`headers.rs`), wait for admission to its resource (`passage.rs`, [`door`](crate::door)) and make the mark
//! durable (`admission.rs`), run the handler, and leave once its effect has ended (`body.rs`). Requires
//! tokio's timer.
//!
//! # Request
//! ```text
//! POST /accounts/42            Fencing-Token: 17   Fencing-Action: enter     → 204, by the fence itself
//! GET /accounts/42             Fencing-Token: 17                             → enters too, then the handler
//! PUT /accounts/42             Fencing-Token: 17                             → checked, then the handler
//! ```
//! *Enter before you read* holds here too, so a read with a token enters: `GET`, `HEAD` and `OPTIONS`
//! raise the mark and then reach the handler. A client that reads by other means enters first by `POST` with
//! `Fencing-Action: enter`, which does not reach the handler.
//!
//! | header | value | left out |
//! | --- | --- | --- |
//! | `Fencing-Token` | decimal, 1 to 2^53 - 1 | not checked; 428 for a guarded method: by default all but `GET`, `HEAD`, `OPTIONS` |
//! | `Fencing-Resource` | a name ([`Resource`]) | [`Rules::resource_by`] if set, otherwise the path |
//! | `Fencing-Mode` | `exclusive`, `shared`, `permit`, `permit;slot=3` | `exclusive` |
//! | `Fencing-Action` | `enter`, `write`, or `check_once`: both in one step, once per token | reads enter, others write |
//!
//! # Response
//! | status | `type` | when |
//! | --- | --- | --- |
//! | 412 | `…:stale` | a later section has passed; with `offered` and `highest` |
//! | 428 | `…:token-required` | a guarded method without a token |
//! | 409 | `…:repeated` | `check_once` with a token that has passed before |
//! | 400 | `…:malformed`, `…:shared-write` | invalid headers, or no valid resource name; a write under a shared hold |
//! | 507 | `…:full` | a new resource or slot, and the store keeps as many marks as it may |
//! | 503 | `…:busy`, `…:unavailable` | a request with a lower token is still running; the marks can't be read or made durable |
//!
//! The mark is durable before the handler runs. Once a request with a higher token has arrived, none with a
//! lower token starts, and the new request starts only when all those with lower tokens have ended. (Readers
//! run concurrently, and so do permits of different slots.) A handler has ended when its future has completed
//! or was dropped and, for a write, its response body too. The fence does not cover work that a handler
//! leaves running elsewhere (a spawned task, a statement that the database continues after the client
//! disconnected): such work must check its token itself, see [`Fenced`].
//!
//! Every request for a resource must pass through one fence: two processes with separate mark files, or a
//! second path to the data, bypass it. And all clients must use the same name for a resource: by default the
//! name is the path. If one resource has several paths, set [`Rules::resource_by`], so that clients can't
//! choose the name.

mod admission;
mod body;
mod headers;
mod passage;
mod problem;
mod service;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;
use lockkeeper_core::Token;
use tower_layer::Layer;

use crate::resource::Resource;
use crate::rule::{Action, Marks, Section};
use crate::store::{MarkStore, MarksError};
pub use admission::{AdmittedRequest, FencedRequest, Guarding};
pub use body::FencedBody;
pub use headers::{ACTION, MODE, RESOURCE, TOKEN};
use passage::Doors;
pub use passage::Pass;
pub use problem::TYPE_PREFIX;
pub use service::FencedService;

#[cfg(all(any(test, fuzzing), feature = "object_store", feature = "dynamodb"))]
pub(crate) fn fuzz_headers(headers: &http::HeaderMap) {
    if let Ok(Some(read)) = headers::read(headers) {
        assert!(headers.contains_key(TOKEN), "{read:?}");
    }
}

/// Default limit of the time that a request waits for requests with lower tokens to end.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(5);

/// The layer. Its clones, and the services created from it, are one fence.
///
/// ```
/// use axum::{Router, routing::put};
/// use lockkeeper_fence::{DurableMarks, HttpFence};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("fence.redb");
/// let fence = HttpFence::new(DurableMarks::open(path)?);
/// let service: Router = Router::new().route("/stock", put(|body: String| async move { body })).layer(fence);
/// # Ok(())
/// # }
/// ```
pub struct HttpFence<M> {
    settings: Arc<Settings<M>>,
}

struct Settings<M> {
    store: M,
    doors: Arc<Doors>,
    /// `None`: all methods except the reads ([`is_read`]).
    guarded: Option<Vec<Method>>,
    resource_by: Option<ResourceBy>,
    wait: Duration,
}

/// Whether requests with this method change nothing: `GET`, `HEAD` and `OPTIONS` (F-c). All other methods
/// count as writes, unknown ones too.
#[must_use]
pub fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

type ResourceBy = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// Added to the extensions of a request with a token, so that the handler can check the token at its own
/// resources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fenced {
    /// The fenced resource.
    pub resource: Resource,
    /// The action that was checked.
    pub action: Action,
    /// The section of the request.
    pub section: Section,
}

impl<M: MarkStore> HttpFence<M> {
    /// A fence with these marks. It guards every method but `GET`, `HEAD` and `OPTIONS`; the resource is the
    /// one named in the request, or its path.
    #[must_use]
    pub fn new(store: M) -> Self {
        Self::with(store, Rules::default())
    }

    /// A fence with these marks and `rules`.
    #[must_use]
    pub fn with(store: M, rules: Rules) -> Self {
        let Rules { guarded, resource_by, wait } = rules;
        Self { settings: Arc::new(Settings { store, doors: Arc::default(), guarded, resource_by, wait }) }
    }

    /// The store of the marks.
    #[must_use]
    pub fn store(&self) -> &M {
        &self.settings.store
    }

    /// The current marks of `resource`.
    ///
    /// # Errors
    /// The store could not read them.
    pub async fn marks(&self, resource: &Resource) -> Result<Marks, MarksError> {
        self.settings.store.marks(resource).await
    }

    /// Sets the marks of `resource`, even to a lower token; see [`MarkStore::reset`] for when this is safe.
    ///
    /// # Errors
    /// The marks may not be durable.
    pub async fn reset(&self, resource: &Resource, to: Token) -> Result<(), MarksError> {
        self.settings.store.reset(resource, to).await
    }

    /// Number of resources with admitted or waiting requests.
    #[must_use]
    pub fn doors_in_use(&self) -> usize {
        self.settings.doors.in_use()
    }
}

/// The configuration of a fence.
#[derive(Clone)]
pub struct Rules {
    guarded: Option<Vec<Method>>,
    resource_by: Option<ResourceBy>,
    wait: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self { guarded: None, resource_by: None, wait: WAIT_DEFAULT }
    }
}

impl Rules {
    /// Sets the methods that require a token: without one, 428. Other methods are checked only if a token is
    /// sent. Default: all but `GET`, `HEAD` and `OPTIONS`.
    #[must_use]
    pub fn guard(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.guarded = Some(methods.into_iter().collect());
        self
    }

    /// Derives the resource on the server. A `Fencing-Resource` header that differs from it gets 400.
    #[must_use]
    pub fn resource_by(mut self, name: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.resource_by = Some(Arc::new(name));
        self
    }

    /// Sets how long a request waits for requests with lower tokens to end, before it gets 503. Default
    /// [`WAIT_DEFAULT`].
    #[must_use]
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl<S, M> Layer<S> for HttpFence<M> {
    type Service = FencedService<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        FencedService::new(inner, Arc::clone(&self.settings))
    }
}

impl<M> Clone for HttpFence<M> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<M> fmt::Debug for HttpFence<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpFence").field("guarded", &self.settings.guarded).finish_non_exhaustive()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("guarded", &self.guarded)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
