//! Tests of the backend through its traits, in one process and in several.

mod directory;
mod locks;
mod processes;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{
    AcquireRequest, Answer, Backend, Call, CallError, Conn, Granted, Push, Spec, answer_to,
};
use lockkeeper_core::{End, LockName, Seq};
use tokio::sync::mpsc::UnboundedReceiver;

use super::FileBackend;
use super::store::Config;

/// Far longer than any step; a test that waits longer fails.
const DEADLINE: Duration = Duration::from_secs(30);

fn spec(lock_delay: Duration) -> Spec {
    Spec { ttl: None, lock_delay, linger: Duration::ZERO, renew: true }
}

pub(super) fn config(path: &std::path::Path) -> Config {
    Config {
        path: path.to_owned(),
        tokens_above: None,
        fuse_allowed: false,
        wall_clock: super::store::wall_clock,
    }
}

fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

pub(super) fn request(name: &str) -> AcquireRequest {
    request_all(&[name])
}

fn request_all(names: &[&str]) -> AcquireRequest {
    AcquireRequest::exclusive(names.iter().map(|text| name(text)).collect())
}

/// One session over a directory, called as the library calls it.
struct Client {
    conn: Arc<dyn Conn>,
    pushes: UnboundedReceiver<Push>,
    seq: u64,
}

impl Client {
    async fn new(backend: &FileBackend, label: &str) -> Self {
        Self::with_delay(backend, label, Duration::ZERO).await
    }

    async fn with_delay(backend: &FileBackend, label: &str, lock_delay: Duration) -> Self {
        let (send, pushes) = tokio::sync::mpsc::unbounded_channel();
        let conn = backend.session(spec(lock_delay), label, send);
        let mut client = Self { conn, pushes, seq: 0 };
        assert!(matches!(client.open().await, Answer::Opened));
        client
    }

    async fn open(&mut self) -> Answer {
        within(answer_to(&*self.conn, Call::Open { fresh: true })).await.unwrap()
    }

    /// Numbers and submits an acquire; the caller polls the future.
    fn ask(
        &mut self,
        request: AcquireRequest,
    ) -> (Seq, lockkeeper_backend::BoxFuture<'static, Result<Answer, CallError>>) {
        self.seq += 1;
        let seq = Seq(self.seq);
        let call = Call::Acquire { seq, done_through: Seq(0), request: Arc::new(request), wait_left: None };
        (seq, answer_to(&*self.conn, call))
    }

    async fn acquire(&mut self, request: AcquireRequest) -> (Seq, Answer) {
        let (seq, asked) = self.ask(request);
        (seq, within(asked).await.unwrap())
    }

    /// Acquires; panics unless granted.
    async fn take(&mut self, request: AcquireRequest) -> (Seq, Granted) {
        match self.acquire(request).await {
            (seq, Answer::Granted(granted)) => (seq, granted),
            (_, other) => panic!("not granted: {other:?}"),
        }
    }

    async fn end_of(&mut self, target: Seq) -> Answer {
        self.seq += 1;
        let call = Call::Finish { seq: Seq(self.seq), target, done_through: Seq(0) };
        within(answer_to(&*self.conn, call)).await.unwrap()
    }

    async fn finish(&mut self, target: Seq) -> End {
        match self.end_of(target).await {
            Answer::Finished(end) => end,
            other => panic!("not finished: {other:?}"),
        }
    }

    async fn close(&mut self) {
        assert!(matches!(within(answer_to(&*self.conn, Call::Close)).await.unwrap(), Answer::Closed));
    }

    /// Waits for the next push that `wanted` accepts.
    async fn push(&mut self, wanted: impl Fn(&Push) -> bool) -> Push {
        let pushes = &mut self.pushes;
        within(async move {
            loop {
                let push = pushes.recv().await.expect("the session lives");
                if wanted(&push) {
                    return push;
                }
            }
        })
        .await
    }

    /// Waits until the last request is queued.
    async fn queued(&mut self) {
        let last = Seq(self.seq);
        self.push(|push| matches!(push, Push::Queued { seq, .. } if *seq == last)).await;
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.expect("done long before the deadline")
}

/// A directory with a backend.
fn backend() -> (tempfile::TempDir, FileBackend) {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::with_config(config(&dir.path().join("locks-dir"))).unwrap();
    (dir, backend)
}

pub(super) use processes::die_if_asked;

fn token(granted: &Granted) -> u64 {
    granted.token.expect("this backend fences").get()
}
