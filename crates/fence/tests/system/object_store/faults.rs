//! Stores with injected faults, as wrappers around a correct store.
//!
//! Faults occur at random, from a seed that the test sets, so that failures are reproducible.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// The faults of a store. Rates are in per cent of the calls.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Faults {
    /// The put is applied, but its response is lost.
    pub(crate) answer_lost: u8,
    /// The put is lost before it is applied; no response.
    pub(crate) put_lost: u8,
    /// No response, and the put is applied when the next call arrives.
    pub(crate) put_late: u8,
    /// The read fails.
    pub(crate) read_fails: u8,
    /// The read returns the object as it was one change before.
    pub(crate) read_stale: u8,
    /// Puts with If-Match are applied unconditionally.
    pub(crate) ignores_if_match: bool,
    /// Puts with If-None-Match: * are applied unconditionally.
    pub(crate) ignores_if_none_match: bool,
    /// Puts with If-Match are always rejected.
    pub(crate) refuses_if_match: bool,
    /// All ETags are equal.
    pub(crate) one_etag: bool,
    /// There are no ETags.
    pub(crate) no_etag: bool,
    /// Conditional puts compare, yield to other calls, and only then put.
    pub(crate) two_steps: bool,
    /// Puts with a condition fail as on a server that does not implement them.
    pub(crate) unsupported: bool,
    /// Objects can't be deleted.
    pub(crate) keeps: bool,
}

/// How often each fault occurred.
#[derive(Debug, Default)]
pub(crate) struct Happened {
    pub(crate) answers_lost: AtomicU64,
    pub(crate) puts_lost: AtomicU64,
    pub(crate) puts_late: AtomicU64,
    pub(crate) reads_failed: AtomicU64,
    pub(crate) reads_stale: AtomicU64,
}

/// The moments of a call at which a test can inject other calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    BeforePut,
    /// The put was applied, and the response is not sent yet.
    AfterPut,
    AfterGet,
}

/// Called at each moment of [`When`]; returns the calls to inject, if any.
type Between = Box<dyn FnMut(When, &Path) -> Option<BoxFuture<'static, ()>> + Send>;

type Late = (Path, PutPayload, PutOptions);

/// The store `inner` with faults.
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<Faults>,
    random: Mutex<fastrand::Rng>,
    pub(crate) happened: Happened,
    late: Mutex<Vec<Late>>,
    between: Mutex<Option<Between>>,
    /// The previous version of each object, recorded while reads may be stale.
    before: Mutex<HashMap<Path, Option<(Bytes, ObjectMeta)>>>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, faults: Faults, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::new(faults),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            happened: Happened::default(),
            late: Mutex::default(),
            between: Mutex::default(),
            before: Mutex::default(),
        })
    }

    /// Sets the faults from now on.
    pub(crate) fn set(&self, faults: Faults) {
        *self.faults.lock().unwrap() = faults;
    }

    /// Sets the callback that injects calls, from now on.
    pub(crate) fn between(
        &self,
        what: impl FnMut(When, &Path) -> Option<BoxFuture<'static, ()>> + Send + 'static,
    ) {
        *self.between.lock().unwrap() = Some(Box::new(what));
    }

    async fn let_between(&self, when: When, path: &Path) {
        let what = self.between.lock().unwrap().as_mut().and_then(|between| between(when, path));
        if let Some(what) = what {
            what.await;
        }
    }

    fn faults(&self) -> Faults {
        *self.faults.lock().unwrap()
    }

    fn happens(&self, rate: u8, count: &AtomicU64) -> bool {
        let happens = rate > 0 && self.random.lock().unwrap().u8(..100) < rate;
        count.fetch_add(happens.into(), Ordering::SeqCst);
        happens
    }

    /// Applies the delayed puts. Yields to other tasks first, since a real store never responds immediately.
    pub(crate) async fn settle(&self) {
        tokio::task::yield_now().await;
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        for (path, payload, options) in late {
            // The outcome is discarded: there is no response to a delayed put.
            let _ = self.really_put(&path, payload, options).await;
        }
    }

    async fn really_put(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let stale = self.faults().read_stale > 0;
        let before = if stale { Some(whole(self.inner.as_ref(), path).await) } else { None };
        let put = self.inner.put_opts(path, payload, options).await?;
        if let Some(before) = before {
            self.before.lock().unwrap().insert(path.clone(), before);
        }
        Ok(put)
    }
}

async fn whole(store: &dyn ObjectStore, path: &Path) -> Option<(Bytes, ObjectMeta)> {
    let got = store.get_opts(path, GetOptions::default()).await.ok()?;
    let meta = got.meta.clone();
    Some((got.bytes().await.ok()?, meta))
}

fn no_answer() -> Error {
    Error::Generic { store: "Faulty", source: "no answer".into() }
}

/// The response of a read that lags: a previous version of the object.
fn as_was(path: &Path, was: Option<(Bytes, ObjectMeta)>) -> Result<GetResult> {
    let (bytes, meta) =
        was.ok_or_else(|| Error::NotFound { path: path.to_string(), source: "not yet".into() })?;
    let range = Range { start: 0, end: meta.size };
    let stream = futures_util::stream::iter([Ok(bytes)]);
    Ok(GetResult {
        payload: object_store::GetResultPayload::Stream(Box::pin(stream)),
        meta,
        range,
        attributes: object_store::Attributes::default(),
        extensions: object_store::Extensions::default(),
    })
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let faults = self.faults();
        self.settle().await;
        if faults.unsupported && options.mode != PutMode::Overwrite {
            return Err(Error::NotImplemented {
                operation: "a conditional put".to_owned(),
                implementer: self.to_string(),
            });
        }
        if faults.refuses_if_match && matches!(options.mode, PutMode::Update(_)) {
            return Err(Error::Precondition { path: path.to_string(), source: "another ETag".into() });
        }
        let ignores = match &options.mode {
            PutMode::Create => faults.ignores_if_none_match,
            PutMode::Update(_) => faults.ignores_if_match,
            PutMode::Overwrite => false,
        };
        if ignores {
            options.mode = PutMode::Overwrite;
        }
        if let PutMode::Update(version) = &mut options.mode
            && (faults.one_etag || faults.two_steps)
        {
            let now = whole(self.inner.as_ref(), path).await.and_then(|(_, meta)| meta.e_tag);
            if faults.two_steps && now != version.e_tag {
                return Err(Error::Precondition { path: path.to_string(), source: "another ETag".into() });
            }
            // For `two_steps`: all concurrent calls compare before any of them puts, so all of them pass.
            tokio::task::yield_now().await;
            options.mode = PutMode::Overwrite;
        }
        self.let_between(When::BeforePut, path).await;
        if self.happens(faults.put_lost, &self.happened.puts_lost) {
            return Err(no_answer());
        }
        if self.happens(faults.put_late, &self.happened.puts_late) {
            self.late.lock().unwrap().push((path.clone(), payload, options));
            return Err(no_answer());
        }
        let put = self.really_put(path, payload, options).await?;
        self.let_between(When::AfterPut, path).await;
        if self.happens(faults.answer_lost, &self.happened.answers_lost) {
            return Err(no_answer());
        }
        Ok(put)
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let faults = self.faults();
        self.settle().await;
        if self.happens(faults.read_fails, &self.happened.reads_failed) {
            return Err(no_answer());
        }
        let was = self.before.lock().unwrap().get(path).cloned();
        if let Some(was) = was
            && !options.head
            && self.happens(faults.read_stale, &self.happened.reads_stale)
        {
            return as_was(path, was);
        }
        let mut got = self.inner.get_opts(path, options).await?;
        self.let_between(When::AfterGet, path).await;
        if faults.one_etag {
            got.meta.e_tag = Some("\"the one\"".to_owned());
        }
        if faults.no_etag {
            got.meta.e_tag = None;
        }
        Ok(got)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if self.faults().keeps {
            let denied = Error::PermissionDenied { path: "any".to_owned(), source: "not yours".into() };
            return Box::pin(futures_util::stream::iter([Err(denied)]));
        }
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
