//! One client session over a lock directory: its requests, and the wake-ups from the session's pipe.
//!
//! Keeps every request of the session for as long as the client may retry it (P7, R4). Answers can get lost
//! only with this process, whose end also ends the session, so they need no storage more durable than memory.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_backend::{AcquireRequest, LossCause, Push};
use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{End, LockName, OpenSession, PermitGrant, Seq, Token, limits};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::names::{file_of_hold, stem};
use super::os::{OsError, is_at};
use super::reactor;
use super::record::Record;
use super::session_file::{SessionFile, drain, sweep};
use super::store::FileStore;

/// How often a session checks that its directory and the files of its holds are there, and repeats pushes
/// that its client may have missed.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How many session files are checked for dead sessions when a session is created.
const SWEPT_AT_OPEN: usize = 16;

/// For how many idle locks a session keeps the files for their next use: creating them again takes as long as
/// a sync. They are removed when the session is closed, and otherwise by the next `list`.
const IDLE_KEPT: usize = 32;

/// A live session.
pub(super) struct FileSession {
    pub(super) store: Arc<FileStore>,
    pub(super) file: SessionFile,
    pub(super) pushes: UnboundedSender<Push>,
    lock_delay: Duration,
    label: Box<str>,
    next: AtomicU64,
    book: Mutex<SessionRequests>,
    /// Dropping it ends the task that reads the pipe.
    _reader: DropGuard,
}

/// The requests of a session.
#[derive(Default)]
struct SessionRequests {
    requests: BTreeMap<Seq, Arc<FileRequest>>,
    /// The same requests, by the seqs that they have in records: one for each name.
    by_part: BTreeMap<Seq, Arc<FileRequest>>,
    /// How requests ended, kept until the client has the answer to the call whose seq is stored beside the
    /// end (R3).
    ended: BTreeMap<Seq, (End, Seq)>,
    done_through: Seq0,
    /// Locks whose files were kept for their next use, the latest last.
    idle: VecDeque<LockName>,
    gone: bool,
}

/// A seq, or 0 for none.
type Seq0 = u64;

/// One request of the client.
pub(super) struct FileRequest {
    pub(super) seq: Seq,
    pub(super) acquire: Arc<AcquireRequest>,
    /// Its names in the order of acquisition: all requests use the same order, so they cannot deadlock.
    pub(super) names: Vec<LockName>,
    /// A `Finish` has arrived, or the session has ended: no further step acquires anything. The `Finish`
    /// waits for a step in progress.
    over: AtomicBool,
    pub(super) progress: Mutex<Progress>,
    /// Notified when the request may have changed.
    pub(super) news: Notify,
}

/// The progress of a request. Locked for one step, never across an await.
#[derive(Default)]
pub(super) struct Progress {
    /// All names are granted.
    pub(super) granted: bool,
    /// The client was informed of the revocation. The push is repeated until the client finishes the request.
    pub(super) revoked: bool,
    /// One entry per name; entries not reached yet are empty.
    pub(super) parts: Vec<Part>,
    /// The worst end of those parts that have ended.
    pub(super) end: Option<End>,
}

/// The part of a request for one name.
#[derive(Clone, Default)]
pub(super) struct Part {
    /// The seq of the entry in the record, once the entry may exist.
    pub(super) seq: Option<Seq>,
    pub(super) token: Option<Token>,
    pub(super) permit: Option<PermitGrant>,
    pub(super) hold: Option<Arc<File>>,
}

impl Part {
    /// Whether the hold's file, if there is one, is still in the directory: no other process can have its
    /// flock then.
    pub(super) fn hold_is_there(&self, store: &FileStore, name: &LockName) -> bool {
        let slot = self.permit.map(|permit| permit.slot);
        self.hold.as_ref().is_none_or(|hold| is_at(&store.locks, &file_of_hold(&stem(name), slot), hold))
    }
}

impl FileRequest {
    fn new(seq: Seq, acquire: Arc<AcquireRequest>) -> Self {
        let mut names = acquire.names.clone();
        names.sort_unstable();
        names.dedup();
        let parts = vec![Part::default(); names.len()];
        let progress = Mutex::new(Progress { parts, ..Progress::default() });
        Self { seq, acquire, names, over: AtomicBool::new(false), progress, news: Notify::new() }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Prevents further steps, and ends the wait.
    pub(super) fn call_off(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.news.notify_one();
    }
}

impl FileSession {
    pub(super) fn open(
        store: Arc<FileStore>,
        lock_delay: Duration,
        label: Box<str>,
        pushes: UnboundedSender<Push>,
    ) -> Result<Arc<Self>, OsError> {
        sweep(&store, SWEPT_AT_OPEN);
        let file = SessionFile::create(&store)?;
        let stop = CancellationToken::new();
        let pipe = file.pipe().ok_or(OsError::Gone)?;
        let started = pipe.try_clone().and_then(reactor::register);
        let pipe = started.map_err(|e| {
            file.end(&store);
            OsError::operator(format!("can't wait for events: {e}; raise `ulimit -n` or `ulimit -u`"))
        })?;
        let session = Arc::new(Self {
            store,
            file,
            pushes,
            lock_delay,
            label,
            next: AtomicU64::new(1),
            book: Mutex::default(),
            _reader: stop.clone().drop_guard(),
        });
        let weak = Arc::downgrade(&session);
        reactor::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = listen(weak, pipe) => {}
            }
        });
        Ok(session)
    }

    /// Descriptors that keep the hold of a request alive in any process that has them.
    pub(super) fn descriptors(&self, seq: Seq) -> Vec<RawFd> {
        let Some(request) = self.book().requests.get(&seq).cloned() else { return Vec::new() };
        let progress = request.progress();
        let holds = progress.parts.iter().filter_map(|part| part.hold.as_ref());
        self.file.pipe().iter().chain(holds).map(|file| file.as_raw_fd()).collect()
    }

    /// The command that opens this session in a record's table, or finds it there (S1).
    pub(super) fn opening(&self) -> OpenSession {
        OpenSession {
            secret_hash: self.file.tag.to_hash(),
            // No ttl ends the session: it ends with its process.
            ttl_ms: limits::TTL_MS_MAX,
            lock_delay_ms: u64::try_from(self.lock_delay.as_millis()).unwrap_or(u64::MAX),
            linger_ms: 0,
            label: self.label.clone(),
            identity: Box::default(),
        }
    }

    /// The next seq for the records. Assigned under a record's flock, so that seqs rise in each record (R5).
    pub(super) fn next_seq(&self) -> Seq {
        Seq(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Assigns the seq that a request has in a record. Wake-ups in the pipe name the request by this seq.
    pub(super) fn enter(&self, request: &Arc<FileRequest>) -> Seq {
        let seq = self.next_seq();
        self.book().by_part.insert(seq, Arc::clone(request));
        seq
    }

    pub(super) fn leave(&self, part: Seq) {
        self.book().by_part.remove(&part);
    }

    /// Stores the request's end until the client has the answer to call `until`.
    pub(super) fn ended(&self, request: &FileRequest, end: End, until: Seq) {
        let mut book = self.book();
        book.requests.remove(&request.seq);
        if until.0 > book.done_through {
            book.ended.insert(request.seq, (end, until));
        }
    }

    /// Notes that a lock's files were kept; returns the lock whose files must be removed instead.
    pub(super) fn left_idle(&self, name: &LockName) -> Option<LockName> {
        let mut book = self.book();
        if book.idle.back() == Some(name) {
            return None;
        }
        book.idle.retain(|other| other != name);
        book.idle.push_back(name.clone());
        if book.idle.len() > IDLE_KEPT { book.idle.pop_front() } else { None }
    }

    pub(super) fn all_left_idle(&self) -> Vec<LockName> {
        self.book().idle.drain(..).collect()
    }

    pub(super) fn requests(&self) -> Vec<Arc<FileRequest>> {
        self.book().requests.values().cloned().collect()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.book().gone
    }

    /// Ends the session in memory, and returns its requests. Its files are closed with their last user.
    pub(super) fn end(&self) -> Vec<Arc<FileRequest>> {
        let mut book = self.book();
        book.gone = true;
        book.by_part.clear();
        book.ended.clear();
        std::mem::take(&mut book.requests).into_values().collect()
    }

    /// Called when the directory, or a file that the session relies on, is gone: all holds are lost, and all
    /// waiting acquires end.
    pub(super) fn lose(&self) {
        if self.is_gone() {
            return;
        }
        let _ = self.pushes.send(Push::Lost(LossCause::Disconnected));
        for request in self.end() {
            request.call_off();
        }
        self.file.abandon();
    }

    fn book(&self) -> MutexGuard<'_, SessionRequests> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_done_through(&self, done_through: Seq) {
        let mut book = self.book();
        if done_through.0 > book.done_through {
            book.done_through = done_through.0;
            book.ended.retain(|_, (_, until)| *until > done_through);
        }
    }

    /// Finds or creates the request of an acquire; `Err` if it has ended (R4, R5).
    pub(super) fn register(&self, seq: Seq, acquire: Arc<AcquireRequest>) -> Result<Arc<FileRequest>, End> {
        let mut book = self.book();
        if let Some(request) = book.requests.get(&seq) {
            return Ok(Arc::clone(request));
        }
        if let Some(&(end, _)) = book.ended.get(&seq) {
            return Err(end);
        }
        if seq.0 <= book.done_through {
            return Err(End::Gone);
        }
        let request = Arc::new(FileRequest::new(seq, acquire));
        book.requests.insert(seq, Arc::clone(&request));
        Ok(request)
    }

    /// The request that a `Finish` ends. `Err` if it has ended already, or if it never began and will
    /// therefore never begin (R4).
    pub(super) fn finishing(&self, seq: Seq, target: Seq) -> Result<Arc<FileRequest>, End> {
        let mut book = self.book();
        if let Some(request) = book.requests.get(&target) {
            let request = Arc::clone(request);
            drop(book);
            request.call_off();
            return Ok(request);
        }
        let (end, until) = book.ended.get(&target).copied().unwrap_or((End::Gone, seq));
        book.ended.insert(target, (end, until.max(seq)));
        Err(end)
    }

    /// Pushes the revocations of those requests in `named` that were revoked.
    async fn push_revoked(&self, named: Vec<Arc<FileRequest>>) -> Result<(), OsError> {
        for request in named {
            let parts: Vec<(usize, Seq)> = {
                let progress = request.progress();
                let entered = |(i, part): (usize, &Part)| Some((i, part.seq?));
                if !progress.granted || progress.revoked || request.is_over() {
                    continue;
                }
                progress.parts.iter().enumerate().filter_map(entered).collect()
            };
            for (index, seq) in parts {
                let record = Record::open(&self.store, &request.names[index]).await?;
                let found = record.state().request(self.file.tag, seq);
                if found.is_some_and(|found| matches!(found.phase, Phase::Revoked { .. })) {
                    request.progress().revoked = true;
                    let _ = self.pushes.send(Push::Revoked { seq: request.seq, notice: None });
                    break;
                }
            }
        }
        Ok(())
    }

    /// Handles wake-ups from the pipe: waiting acquires check their records again, and holds are checked for
    /// a revocation.
    async fn heard(&self, woken: Vec<Option<Seq>>) {
        let named: Vec<Arc<FileRequest>> = {
            let book = self.book();
            if woken.contains(&None) {
                book.requests.values().cloned().collect()
            } else {
                woken.iter().flatten().filter_map(|seq| book.by_part.get(seq).cloned()).collect()
            }
        };
        for request in &named {
            request.news.notify_one();
        }
        if let Err(OsError::Gone) = self.push_revoked(named).await {
            self.lose();
        }
    }

    /// The periodic check; `false` once the session has ended.
    fn check(&self) -> bool {
        if self.is_gone() {
            return false;
        }
        let holds_are_there = |request: &Arc<FileRequest>| {
            let progress = request.progress();
            // The files of a request that is being ended may be gone: given back, and removed by the process
            // that used the lock next.
            request.is_over()
                || (progress.parts.iter().zip(&request.names))
                    .all(|(part, name)| part.hold_is_there(&self.store, name))
        };
        if !self.store.is_current() || !self.file.is_there() || !self.requests().iter().all(holds_are_there) {
            self.lose();
            return false;
        }
        for request in self.requests() {
            let progress = request.progress();
            if progress.revoked && !request.is_over() {
                // Repeated until the client finishes the request, in case an earlier push had no effect.
                let _ = self.pushes.send(Push::Revoked { seq: request.seq, notice: None });
            }
        }
        true
    }
}

/// Reads the session's pipe until the session ends.
async fn listen(session: Weak<FileSession>, pipe: AsyncFd<OwnedFd>) {
    let mut checks = tokio::time::interval(CHECK_EVERY);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let woken = tokio::select! {
            ready = pipe.readable() => match ready {
                Ok(mut ready) => {
                    let woken = drain(pipe.get_ref());
                    ready.clear_ready();
                    woken
                }
                Err(_) => return,
            },
            _ = checks.tick() => Vec::new(),
        };
        let Some(session) = session.upgrade() else { return };
        if !woken.is_empty() {
            session.heard(woken).await;
        } else if !session.check() {
            return;
        }
        if session.is_gone() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{config, request};
    use super::*;

    /// The release of a hold has given its flock back, the next holder has removed the files, and the
    /// periodic check comes before the release is done.
    #[tokio::test]
    async fn check_during_a_release_does_not_lose_the_session() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::open(&config(&dir.path().join("locks")), 0).unwrap());
        let (pushes, mut pushed) = tokio::sync::mpsc::unbounded_channel();
        let session = FileSession::open(Arc::clone(&store), Duration::ZERO, "a".into(), pushes).unwrap();
        let held = session.register(Seq(1), Arc::new(request("x"))).unwrap();
        super::super::acquire::acquire(&session, &held).await.unwrap();
        let file = store.path.join("locks").join(file_of_hold(&stem(&held.names[0]), None));
        assert!(session.check() && file.exists());
        session.finishing(Seq(2), Seq(1)).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(session.check() && pushed.try_recv().is_err(), "the session is lost");

        let other = session.register(Seq(3), Arc::new(request("y"))).unwrap();
        super::super::acquire::acquire(&session, &other).await.unwrap();
        std::fs::remove_file(store.path.join("locks").join(file_of_hold(&stem(&other.names[0]), None)))
            .unwrap();
        assert!(!session.check() && matches!(pushed.try_recv(), Ok(Push::Lost(LossCause::Disconnected))));
    }
}
