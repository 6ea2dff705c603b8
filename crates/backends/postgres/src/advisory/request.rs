//! One acquire and its hold: the state that its calls share, and the connection that it uses.
//!
//! The acquire's call runs on its caller's runtime. Other calls (a release, an abandon, the monitor) may run
//! elsewhere, also while that runtime stalls or ends. All of them read and change the stage, atomically, so
//! that only one of them takes a hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper_backend::io::Used;
use lockkeeper_backend::{AcquireRequest, Answer, BackendError, CallError, Granted, LossCause, Push};
use lockkeeper_core::{End, LockName, Seq, Token};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::connection::{LockConnector, QueryConnection, transaction_pooler};
use super::note::{Note, Revocation};
use super::sql::{Statements, Tried};
use crate::connect::NoAnswer;

/// How long to retry the termination of an orphaned server process. After that time the server's own TCP
/// keep-alives have ended it (`prepare_session`).
const TERMINATE_FOR: Duration = Duration::from_secs(60);
const TERMINATE_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long a call waits for the end of a server process that it terminates.
pub(super) const TERMINATED_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct AdvisoryRequest {
    pub(super) seq: Seq,
    pub(super) acquire: Arc<AcquireRequest>,
    /// The client's label.
    pub(super) label: Arc<str>,
    /// Cancelled when the request is released or abandoned.
    pub(super) over: CancellationToken,
    pushes: UnboundedSender<Push>,
    requests: Arc<AdvisoryRequests>,
    answer: OnceLock<Result<Answer, CallError>>,
    stage: watch::Sender<Stage>,
}

pub(super) enum Stage {
    /// The acquire runs. `Some` once it has a connection: [`Claim::left`].
    Acquiring(Option<String>),
    Held(Box<Hold>),
    /// A release runs.
    Releasing,
    /// No answer came (P12); the server process is being terminated.
    InDoubt,
    Over(End),
}

impl AdvisoryRequest {
    pub(super) fn new(
        seq: Seq,
        acquire: Arc<AcquireRequest>,
        label: Arc<str>,
        pushes: UnboundedSender<Push>,
        requests: Arc<AdvisoryRequests>,
    ) -> Self {
        let (answer, stage) = (OnceLock::new(), watch::Sender::new(Stage::Acquiring(None)));
        Self { seq, acquire, label, over: CancellationToken::new(), pushes, requests, answer, stage }
    }

    /// Multiple names per request are refused earlier (`Capabilities::multi`).
    pub(super) fn name(&self) -> &LockName {
        &self.acquire.names[0]
    }

    /// Whether its acquire failed; the caller's retry then starts a new request.
    pub(super) fn failed(&self) -> bool {
        matches!(self.answer.get(), Some(Err(_)))
    }

    pub(super) fn was_granted(&self) -> bool {
        matches!(self.answer.get(), Some(Ok(Answer::Granted(_))))
    }

    /// Waits for the answer to the acquire.
    pub(super) async fn answered(&self) -> Result<Answer, CallError> {
        let mut stages = self.stages();
        loop {
            if let Some(answer) = self.answer.get() {
                return answer.clone();
            }
            if stages.changed().await.is_err() {
                return Err(CallError::IN_DOUBT);
            }
        }
    }

    /// A receiver that is notified of each change of the stage from now on.
    pub(super) fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    pub(super) fn push(&self, push: Push) {
        // If the receiver is gone, so are the callers.
        let _ = self.pushes.send(push);
    }

    /// The acquire uses a connection from now on. `false` if the request is over; then nothing may be sent.
    pub(super) fn begin(&self, left: String) -> bool {
        self.stage.send_replace(Stage::Acquiring(Some(left)));
        !self.over.is_cancelled()
    }

    /// Records the grant: sets the answer and the stage.
    pub(super) fn hold(&self, hold: Hold) {
        let _ = self.answer.set(Ok(Answer::Granted(hold.granted())));
        self.stage.send_replace(Stage::Held(Box::new(hold)));
    }

    /// Called when the acquire has ended. The stage stays if it was set before: to `Held` by a grant, or to
    /// `InDoubt` by the claim's drop.
    pub(super) fn end_acquire(&self, answer: Result<Answer, CallError>) {
        let _ = self.answer.set(answer);
        self.stage.send_modify(|stage| {
            if matches!(stage, Stage::Acquiring(_)) {
                *stage = Stage::Over(End::Left);
            }
        });
        self.remove_if_over();
    }

    /// Takes the hold, if there is one.
    pub(super) fn take_hold(&self, next: Stage) -> Option<Box<Hold>> {
        let mut next = Some(next);
        let mut taken = None;
        self.stage.send_if_modified(|stage| {
            if matches!(stage, Stage::Held(_))
                && let Some(next) = next.take()
                && let Stage::Held(hold) = std::mem::replace(stage, next)
            {
                taken = Some(hold);
            }
            taken.is_some()
        });
        taken
    }

    /// Reads or changes the hold, if there is one.
    pub(super) fn with_hold<T>(&self, work: impl FnOnce(&mut Hold) -> T) -> Option<T> {
        let mut done = None;
        self.stage.send_if_modified(|stage| {
            if let Stage::Held(hold) = stage {
                done = Some(work(hold));
            }
            false
        });
        done
    }

    /// Handles the loss of a hold: closes its connection, and terminates its server process if that still
    /// exists.
    pub(super) fn lose(&self, why: &str) {
        let Some(hold) = self.take_hold(Stage::Over(End::Gone)) else { return };
        tracing::warn!(
            name = self.name().as_str(),
            why,
            "the connection that held a lock is lost; the server may have freed the lock earlier"
        );
        self.push(Push::HoldLost { seq: self.seq, cause: LossCause::Disconnected, why: Some(why.into()) });
        drop(hold);
    }

    /// Handles a break: notifies the holder, and shows the break in the connection's note. Runs on the lease
    /// thread.
    pub(super) fn revoke(&self, revocation: Revocation) {
        let revoked = self.with_hold(|hold| {
            let Claim { note, says, used, .. } = &mut hold.claim;
            let is_first = note.revoked.is_none();
            note.revoked = Some(revocation);
            is_first.then(|| (used.connection.clone(), says.verify(note)))
        });
        let Some((connection, show)) = revoked.flatten() else { return };
        self.push(Push::Revoked { seq: self.seq, notice: None });
        tokio::spawn(async move {
            if let Err(none) = connection.ask(&show).await {
                tracing::debug!("{}", none.explained("show a break"));
            }
        });
    }

    /// Sets the end of a request that holds nothing any more. Does nothing if the request holds, or if its
    /// end is set.
    pub(super) fn end(&self, end: End) {
        self.stage.send_modify(|stage| {
            if matches!(stage, Stage::Acquiring(_) | Stage::Releasing | Stage::InDoubt) {
                *stage = Stage::Over(end);
            }
        });
        self.remove_if_over();
    }

    /// Removes this request from the session if it is over. A granted request stays until its `Finish`, so
    /// that a late retry of its acquire is not taken for a new request.
    fn remove_if_over(&self) {
        let is_over = matches!(*self.stage.borrow(), Stage::Over(_));
        if is_over && !self.was_granted() {
            self.requests.remove(self);
        }
    }

    fn in_doubt(&self) {
        self.stage.send_if_modified(|stage| {
            let in_doubt = matches!(stage, Stage::Acquiring(_) | Stage::Releasing);
            if in_doubt {
                *stage = Stage::InDoubt;
            }
            in_doubt
        });
    }
}

/// A granted request.
pub(super) struct Hold {
    pub(super) claim: Claim,
    pub(super) token: Option<Token>,
    /// The monitor's number of this hold.
    pub(super) number: u64,
}

impl Hold {
    pub(super) fn granted(&self) -> Granted {
        Granted { token: self.token, ..Granted::default() }
    }
}

/// The connection of a request. On drop its server process is terminated, unless the request has returned or
/// closed it.
pub(super) struct Claim {
    pub(super) queries: Arc<QueryConnection>,
    pub(super) request: Arc<AdvisoryRequest>,
    pub(super) used: Used<LockConnector>,
    pub(super) says: Statements,
    pub(super) note: Note,
    /// Condition on `pg_stat_activity` that selects the server process that may hold or wait.
    pub(super) left: Option<String>,
}

impl Claim {
    /// Returns the connection to the pool. Only for a connection that certainly holds nothing.
    pub(super) fn put_back(mut self) {
        self.left = None;
    }

    /// Closes the connection, with which the server frees its locks. Only for a connection that answers.
    pub(super) fn close(mut self) {
        self.left = None;
        self.used.discard();
    }

    /// Detects a transaction pooler: the answer came from a server process other than the connection's own.
    pub(super) fn is_foreign(&self, tried: &Tried) -> Option<BackendError> {
        (self.used.process.pid != tried.pid).then(|| transaction_pooler().into())
    }

    /// Handles a statement without a usable answer. The connection is not used again.
    pub(super) fn unanswered(self, none: NoAnswer, doing: &str) -> Acquired {
        match none {
            NoAnswer::Refused(_) => self.refused(none.explained(doing)),
            NoAnswer::Ended(_) => Err(CallError { sent: true, ..CallError::refused(none.explained(doing)) }),
            NoAnswer::Silent(_) => {
                tracing::debug!("{}", none.explained(doing));
                Err(CallError::IN_DOUBT)
            }
        }
    }

    pub(super) fn refused(self, error: BackendError) -> Acquired {
        self.close();
        Ok(Answer::Refused(error))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(left) = self.left.take() else { return };
        self.used.discard();
        self.request.in_doubt();
        let (queries, request) = (self.queries.clone(), self.request.clone());
        self.queries.lease_thread().run(Box::pin(async move {
            let known = terminate(&queries, &request, &left).await;
            // If the process could not be checked, it may still hold: the outcome is `Gone`.
            request.end(if known { End::Released } else { End::Gone });
        }));
    }
}

/// Terminates an orphaned server process, which could take hours to detect the dead connection by itself.
/// Returns whether the process has certainly ended.
pub(super) async fn terminate(queries: &QueryConnection, request: &AdvisoryRequest, which: &str) -> bool {
    let name = request.name().as_str();
    let (mut pause, most) = TERMINATE_PAUSES;
    let since = Instant::now();
    while since.elapsed() < TERMINATE_FOR {
        match queries.end_process(&format!("({which}) and usename = current_user")).await {
            Ok(()) => return true,
            Err(error) => tracing::debug!(name, "what is left of a request: {error}"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(most);
    }
    tracing::warn!(
        name,
        "could not check for {TERMINATE_FOR:?} whether a lost connection still holds at the server; the server ends it \
         when its own keep-alives fail"
    );
    false
}

/// Result of an acquire.
pub(super) type Acquired = Result<Answer, CallError>;

/// The outcome of an abandoned acquire; no caller waits for it.
pub(super) fn left() -> Acquired {
    Ok(Answer::Finished(End::Left))
}

/// The requests of a session that hold or wait, or may have left something at the server.
#[derive(Default)]
pub(super) struct AdvisoryRequests(Mutex<BTreeMap<Seq, Arc<AdvisoryRequest>>>);

impl AdvisoryRequests {
    pub(super) fn by_seq(&self) -> MutexGuard<'_, BTreeMap<Seq, Arc<AdvisoryRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes this request, but no later one with the same seq.
    pub(super) fn remove(&self, over: &AdvisoryRequest) {
        let mut requests = self.by_seq();
        if requests.get(&over.seq).is_some_and(|request| std::ptr::eq(Arc::as_ptr(request), over)) {
            requests.remove(&over.seq);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<AdvisoryRequest>> {
        self.by_seq().values().cloned().collect()
    }
}
