//! A fence in front of an HTTP service: a `tower` layer for axum, hyper, tonic and whatever else takes one.
//!
//! Responsible for what a client says and is told, and for the way of a request: read its headers (`headers.rs`), go
//! through the door of its resource with the mark durable (`passage.rs`, [`door`](crate::door)), run the handler, leave
//! the door when what it did has ended (`body.rs`). It needs tokio's timer.
//!
//! # What a client sends
//! ```text
//! POST /accounts/42            Fencing-Token: 17   Fencing-Action: enter     → 204, by the fence itself
//! GET /accounts/42             Fencing-Token: 17                             → enters too, then the handler
//! PUT /accounts/42             Fencing-Token: 17                             → checked, then the handler
//! ```
//! *Enter before you read* holds here too, so a read with a token enters: `GET`, `HEAD` and the other safe methods raise
//! the mark and then go on to the handler. A client that reads by other ways enters first by `POST` with
//! `Fencing-Action: enter`; the handler never sees it.
//!
//! | header | value | left out |
//! | --- | --- | --- |
//! | `Fencing-Token` | decimal, 1 to 2^53 - 1 | no section |
//! | `Fencing-Resource` | a name ([`Resource`]) | what [`Rules::resource_by`] says, or the path |
//! | `Fencing-Mode` | `exclusive`, `shared`, `permit`, `permit;slot=3` | `exclusive` |
//! | `Fencing-Action` | `enter`, `write`, or `check_once` for one blind effect per grant | safe methods enter, others write |
//!
//! # What it is told
//! | status | `type` | when |
//! | --- | --- | --- |
//! | 412 | `…:stale` | a later section has been here; with `offered` and `highest` |
//! | 428 | `…:token-required` | a guarded method without a token |
//! | 409 | `…:repeated` | `check_once` with a token that has been here |
//! | 400 | `…:malformed`, `…:shared-write` | a header that can't be understood; a write under a shared hold |
//! | 503 | `…:busy`, `…:unavailable` | a lower token is still at work; the marks can't be made durable |
//!
//! # What it promises
//! The mark is durable before the handler runs. From the moment a higher token asks, no lower one begins; and the higher
//! one begins when all lower ones have ended. A handler has ended when its future is done or dropped, and, for a write,
//! its body too. What a handler leaves running elsewhere (a spawned task, a statement that the database goes on with
//! after the client hung up) the fence can't see: let it check its token there, from [`Fenced`].
//!
//! Every request for a resource must come through one fence: two processes with a file of marks each, or a second way to
//! the data, go round it. And all clients must name the resource alike: where paths say it, nothing is to be done; where
//! one resource has several paths, give [`Rules::resource_by`], so that no client can choose.

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
pub use body::FencedBody;
pub use headers::{ACTION, MODE, RESOURCE, TOKEN};
use passage::Doors;
pub use problem::TYPE_PREFIX;
pub use service::FencedService;

/// How long a request waits for lower tokens to end, if nothing else is said.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(5);

/// The layer. Its clones, and the services it makes, are one fence.
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
    guarded: Vec<Method>,
    resource_by: Option<ResourceBy>,
    wait: Duration,
}

type ResourceBy = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// What a handler finds in the request's extensions when a token came with it: for a check of its own further down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fenced {
    /// What was fenced.
    pub resource: Resource,
    /// What was checked.
    pub action: Action,
    /// Who asked.
    pub section: Section,
}

impl<M: MarkStore> HttpFence<M> {
    /// A fence with these marks. It guards `POST`, `PUT`, `PATCH` and `DELETE`; the resource is what the request says, or
    /// its path.
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

    /// The marks of `resource` as they are now.
    ///
    /// # Errors
    /// The store could not read them.
    pub async fn marks(&self, resource: &Resource) -> Result<Marks, MarksError> {
        self.settings.store.marks(resource).await
    }

    /// Sets the marks of `resource`, also to a lower token: [`MarkStore::reset`] says when that is right.
    ///
    /// # Errors
    /// The marks may not be durable.
    pub async fn reset(&self, resource: &Resource, to: Token) -> Result<(), MarksError> {
        self.settings.store.reset(resource, to).await
    }

    /// How many resources somebody is at work on, or waits for.
    #[must_use]
    pub fn doors_in_use(&self) -> usize {
        self.settings.doors.in_use()
    }
}

/// What a fence guards, and how.
#[derive(Clone)]
pub struct Rules {
    guarded: Vec<Method>,
    resource_by: Option<ResourceBy>,
    wait: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        let guarded = vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        Self { guarded, resource_by: None, wait: WAIT_DEFAULT }
    }
}

impl Rules {
    /// The methods that need a token: without one, 428. Others are checked if they bring one and pass freely if not.
    #[must_use]
    pub fn guard(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.guarded = methods.into_iter().collect();
        self
    }

    /// The resource, by the service: what a client says must then be the same, or it gets 400.
    #[must_use]
    pub fn resource_by(mut self, name: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.resource_by = Some(Arc::new(name));
        self
    }

    /// How long a request waits for lower tokens to end before it gets 503.
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
