//! Calls that are no part of a session: questions to the replica, and orders of operators.
//!
//! A call waits for the replica's answer until its caller's deadline. If there is no answer, the error states
//! why. Reading order: `api.rs` (the gRPC service), `watch.rs`, `backup.rs`, `join.rs`, `health.rs`;
//! `forward/mod.rs` (calls that another node has to answer).

mod api;
mod backup;
mod forward;
mod health;
mod join;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_places::Places;
use lockkeeper_replica::storage::Snapshots;
use lockkeeper_replica::{Answer, AskId, Event, Question};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::callers::{Caller, Callers};
use super::replica_handle::ReplicaHandle;
use super::sessions::ClientSessions;
use super::statuses::{PATIENCE, refusal, shuts_down, unrecorded};
use crate::access::Identity;
use crate::audit::AuditRecord;
use crate::disk::DataDirectory;
use crate::disk_space::DiskSpace;
use crate::files::FilesError;
use crate::inbox::Source;
use crate::peers::Directory;
use crate::tls::NodeTls;
pub(super) use api::Api;
pub(super) use forward::route;
use watch::Watcher;

/// Maximum number of watches at a node; at most half of them of one identity.
const WATCHES_MAX: usize = 1 << 10;
/// Maximum number of orders of operators in progress on a node. They continue when their callers disconnect,
/// so the limits of connections do not bound them.
pub(super) const ORDERS_MAX: usize = 64;
/// Facts about this process that the replica does not have.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The id of this node.
    pub(crate) node: u64,
    pub(crate) disk: Arc<DiskSpace>,
    /// The ids of cluster and data directory, as text.
    pub(crate) cluster: String,
    pub(crate) incarnation: String,
    /// The client address of each node, if it was known when this node started.
    pub(crate) clients: BTreeMap<u64, String>,
    pub(crate) files_error: FilesError,
}

/// The calls in progress, and what they need.
pub(crate) struct Calls {
    pub(super) replica: Arc<ReplicaHandle>,
    pub(super) callers: Arc<Callers>,
    pub(super) sessions: Arc<ClientSessions>,
    pub(super) about: About,
    /// Opens the stored snapshots for backups; set once the node has data.
    snapshots: OnceLock<Snapshots<DataDirectory>>,
    /// The members that this node knows, and its own hello (first handshake message); unset for a node
    /// without peers.
    directory: Arc<OnceLock<Arc<Directory>>>,
    /// `None`: connections are plain.
    pub(super) tls: Option<Arc<NodeTls>>,
    asks: Mutex<BTreeMap<AskId, Ask>>,
    /// The streams from the leader that clients read through this node, each with its caller and a sender to
    /// end it.
    forwarded: Mutex<BTreeMap<u64, (Caller, oneshot::Sender<Status>)>>,
    watch_places: Arc<Places<Identity>>,
    /// Limits the orders of operators in progress.
    orders: Arc<Semaphore>,
    /// Connections to the leader, while this node is a follower.
    links: forward::Links,
    relays: forward::Relays,
    /// Why the last backup on a schedule failed; empty: it did not.
    pub(super) backup_error: Mutex<String>,
}

/// The receiver of a call's answers.
pub(super) enum Ask {
    /// A call with one answer.
    Once(oneshot::Sender<Answer>),
    /// A call with many answers.
    Watch(Arc<Watcher>),
}

impl Ask {
    fn watcher(&self) -> Option<Arc<Watcher>> {
        match self {
            Self::Watch(watcher) => Some(watcher.clone()),
            Self::Once(_) => None,
        }
    }
}

/// A pending question. Dropping it cancels the question.
pub(super) struct Waits {
    calls: Arc<Calls>,
    ask: AskId,
    source: Source,
}

impl Waits {
    /// To be called when the client has read all pending changes of a watch: the replica then sends the next
    /// ones.
    pub(super) fn read_on(&self) {
        self.calls.replica.push_from(&self.source, Event::WatchRead(self.ask));
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let waited = self.calls.asks().remove(&self.ask);
        if waited.is_some() {
            self.calls.replica.push_from(&self.source, Event::Dropped(self.ask));
        }
    }
}

impl Calls {
    pub(super) fn new(
        replica: Arc<ReplicaHandle>,
        callers: Arc<Callers>,
        sessions: Arc<ClientSessions>,
        about: About,
        directory: Arc<OnceLock<Arc<Directory>>>,
        tls: Option<Arc<NodeTls>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            replica,
            callers,
            sessions,
            about,
            snapshots: OnceLock::new(),
            directory,
            tls,
            asks: Mutex::default(),
            forwarded: Mutex::default(),
            watch_places: Places::new(WATCHES_MAX),
            orders: Arc::new(Semaphore::new(ORDERS_MAX)),
            links: forward::Links::default(),
            relays: forward::Relays::default(),
            backup_error: Mutex::default(),
        })
    }

    /// To be called once the node has data.
    pub(super) fn has_data(&self, snapshots: Snapshots<DataDirectory>) {
        // Never fails: set only here.
        let _ = self.snapshots.set(snapshots);
    }

    /// To be called once the node has peers.
    pub(super) fn has_peers(&self, directory: Arc<Directory>) {
        // Never fails: set only here.
        let _ = self.directory.set(directory);
    }

    /// The calls that wait for an answer of the replica.
    pub(super) fn asks(&self) -> MutexGuard<'_, BTreeMap<AskId, Ask>> {
        self.asks.lock()
    }

    fn forwarded(&self) -> MutexGuard<'_, BTreeMap<u64, (Caller, oneshot::Sender<Status>)>> {
        self.forwarded.lock()
    }

    pub(super) async fn ask(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        caller: &Identity,
        question: Question,
    ) -> Result<Answer, Status> {
        self.ask_within(patience(metadata)?, caller, question).await
    }

    async fn ask_within(
        self: &Arc<Self>,
        patience: Duration,
        caller: &Identity,
        question: Question,
    ) -> Result<Answer, Status> {
        self.replica.check_serving()?;
        let (sender, answer) = oneshot::channel();
        let _waits = self.wait_for(Ask::Once(sender), caller, question);
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(answer @ (Answer::Refused(_) | Answer::NotLeader { .. }))) => {
                Err(refusal(answer, &self.replica.clients()))
            }
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(shuts_down()),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer within {} s: no node leads, or this one can't reach a majority; whether the call had an effect \
                 is unknown",
                patience.as_secs_f64()
            ))),
        }
    }

    /// Executes an order of an operator and records it in the audit trail with its result, even if the caller
    /// has disconnected. `complete` adds details of the answer to the record.
    pub(super) async fn order(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        caller: &Identity,
        question: Question,
        mut record: AuditRecord,
        complete: impl FnOnce(&Answer, &mut AuditRecord) + Send + 'static,
    ) -> Result<Answer, Status> {
        let until = Instant::now() + patience(metadata)?;
        let late =
            |_| Status::deadline_exceeded("the call's time is over; whether it had an effect is unknown");
        let place =
            tokio::time::timeout_at(until, self.orders.clone().acquire_owned()).await.map_err(late)?;
        let (calls, caller) = (self.clone(), caller.clone());
        let ordered = tokio::spawn(async move {
            let _place = place;
            let answer = calls.ask_within(PATIENCE, &caller, question).await;
            match &answer {
                Ok(answer) => complete(answer, &mut record),
                Err(status) => {
                    let is_unknown =
                        matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Internal);
                    record.result = if is_unknown { "unknown" } else { "refused" }.to_owned();
                    let separator = if record.detail.is_empty() { "" } else { ": " };
                    record.detail = format!("{}{separator}{}", record.detail, status.message());
                }
            }
            match calls.callers.audit.done(record).await {
                Ok(()) => answer,
                Err(error) => answer.and_then(|_| Err(unrecorded(&error))),
            }
        });
        match tokio::time::timeout_at(until, ordered).await.map_err(late)? {
            Ok(answer) => answer,
            Err(_) => Err(shuts_down()),
        }
    }

    pub(super) fn wait_for(self: &Arc<Self>, ask: Ask, caller: &Identity, question: Question) -> Waits {
        let id = AskId(self.replica.next_id());
        let source = Source { caller: caller.clone(), lane: id.0 };
        self.asks().insert(id, ask);
        self.replica.push_from(&source, Event::Asked(id, question));
        Waits { calls: self.clone(), ask: id, source }
    }

    /// Ends the watches and forwarded streams of callers that are no longer permitted by the current files.
    pub(super) fn end_denied(&self) {
        let watchers: Vec<_> = self.asks().values().filter_map(Ask::watcher).collect();
        for watcher in watchers {
            if let Some(refusal) = self.callers.ended(&watcher.caller) {
                watcher.stop(Status::permission_denied(refusal));
            }
        }
        let forwarded: Vec<_> =
            self.forwarded().iter().map(|(id, (caller, _))| (*id, caller.clone())).collect();
        for (id, caller) in forwarded {
            if let Some(refusal) = self.callers.ended(&caller) {
                self.end_forwarded(id, Status::permission_denied(refusal));
            }
        }
    }

    pub(super) fn end_forwarded(&self, id: u64, status: Status) {
        if let Some((_, end)) = self.forwarded().remove(&id) {
            // Fails if the caller has gone.
            let _ = end.send(status);
        }
    }

    /// Ends all watches, which would otherwise last until their callers end them.
    pub(super) fn end_watches(&self) {
        for ask in self.asks().values() {
            if let Ask::Watch(watcher) = ask {
                watcher.stop(Status::unavailable("this node shuts down; watch at another"));
            }
        }
        for (_, (_, end)) in std::mem::take(&mut *self.forwarded()) {
            // Fails if the caller has gone.
            let _ = end.send(shuts_down());
        }
    }
}

/// How long a call waits for its answer.
fn patience(metadata: &MetadataMap) -> Result<Duration, Status> {
    Ok(deadline(metadata)?.map_or(PATIENCE, |given| given.min(PATIENCE)))
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_deadline(text: &str) {
    let mut metadata = MetadataMap::new();
    if let Ok(value) = text.parse() {
        metadata.insert("grpc-timeout", value);
    }
    assert!(patience(&metadata).is_ok_and(|patience| patience <= PATIENCE) || deadline(&metadata).is_err());
}

/// The caller's deadline, in gRPC's format: at most 8 digits and a unit.
pub(super) fn deadline(metadata: &MetadataMap) -> Result<Option<Duration>, Status> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let parse = || {
        let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
        let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
        match unit {
            "H" => Some(Duration::from_secs(count * 3600)),
            "M" => Some(Duration::from_secs(count * 60)),
            "S" => Some(Duration::from_secs(count)),
            "m" => Some(Duration::from_millis(count)),
            "u" => Some(Duration::from_micros(count)),
            "n" => Some(Duration::from_nanos(count)),
            _ => None,
        }
    };
    parse().map(Some).ok_or_else(|| {
        Status::invalid_argument(format!(
            "`grpc-timeout` is {value:?}; at most 8 digits and H, M, S, m, u or n are allowed"
        ))
    })
}
