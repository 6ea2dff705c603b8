//! Questions to the replica: a call waits for the answer until its caller's deadline. If there is no answer,
//! the error states why.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lockkeeper_replica::{Answer, AskId, Event, Question};
use lockkeeper_wire::v1::RefusedCode;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::caller::Caller;
use super::{Ask, Front};
use crate::access::Identity;
use crate::audit::AuditRecord;
use crate::disk;
use crate::inbox::Source;

/// The time limit of a call, even if the caller's deadline is later: while no node leads there is no answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a call for a node's state waits for its disk.
const DISK_PATIENCE: Duration = Duration::from_secs(1);
/// The maximum age of a reading of the disk's usage.
const DISK_LOOK_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of orders of operators in progress on a node. They continue when their callers disconnect,
/// so the limits of connections do not bound them.
pub(super) const ORDERS_MAX: usize = 64;
/// The metadata key for the leader's client address, set in the refusal of a node that does not lead or that
/// shuts down. The value is empty if the node shuts down, or does not know the leader's address.
pub const LEADER_METADATA: &str = "lockkeeper-leader";

/// A pending question. Dropping it cancels the question.
pub(super) struct Waits {
    front: Arc<Front>,
    ask: AskId,
    source: Source,
}

impl Waits {
    /// To be called when the client has read all pending changes of a watch: the replica then sends the next
    /// ones.
    pub(super) fn read_on(&self) {
        self.front.push_from(&self.source, Event::WatchRead(self.ask));
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let waited = self.front.registry().asks.remove(&self.ask);
        if waited.is_some() {
            self.front.push_from(&self.source, Event::Dropped(self.ask));
        }
    }
}

impl Front {
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
        self.check_serving()?;
        let (sender, answer) = oneshot::channel();
        let _waits = self.wait_for(Ask::Once(sender), caller, question);
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(answer @ (Answer::Refused(_) | Answer::NotLeader { .. }))) => {
                Err(refusal(answer, &self.clients()))
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
        let (front, caller) = (self.clone(), caller.clone());
        let ordered = tokio::spawn(async move {
            let _place = place;
            let answer = front.ask_within(PATIENCE, &caller, question).await;
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
            match front.audit.done(record).await {
                Ok(()) => answer,
                Err(error) => answer.and_then(|_| Err(unrecorded(&error))),
            }
        });
        match tokio::time::timeout_at(until, ordered).await.map_err(late)? {
            Ok(answer) => answer,
            Err(_) => Err(shuts_down()),
        }
    }

    /// The size of the data directory and the free space of its disk, in bytes; at most [`DISK_LOOK_EVERY`]
    /// old, unless the disk does not answer.
    pub(super) async fn disk_usage(&self) -> (Option<u64>, Option<u64>) {
        let known = *self.disk_usage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_younger = |age| known.is_some_and(|(at, ..)| at.elapsed() < age);
        let of_known = || known.map_or((None, None), |(_, used, free)| (Some(used), Some(free)));
        if is_younger(DISK_LOOK_EVERY) {
            return of_known();
        }
        // At most one thread waits for a disk that does not answer.
        let Ok(only) = self.disk_looks.clone().try_acquire_owned() else {
            return if is_younger(DISK_LOOK_EVERY + DISK_PATIENCE) { of_known() } else { (None, None) };
        };
        let path = self.about.data.clone();
        let look = tokio::task::spawn_blocking(move || {
            let _only = only;
            disk::usage(&path)
        });
        let Ok(Ok(Ok((used, free)))) = tokio::time::timeout(DISK_PATIENCE, look).await else {
            return (None, None);
        };
        *self.disk_usage.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), used, free));
        (Some(used), Some(free))
    }

    pub(super) fn wait_for(self: &Arc<Self>, ask: Ask, caller: &Identity, question: Question) -> Waits {
        let id = AskId(self.next_id());
        let source = Source { caller: caller.clone(), lane: id.0 };
        self.registry().asks.insert(id, ask);
        self.push_from(&source, Event::Asked(id, question));
        Waits { front: self.clone(), ask: id, source }
    }

    pub(super) fn check_serving(&self) -> Result<(), Status> {
        if self.stopping.is_cancelled() {
            return Err(shuts_down());
        }
        Ok(())
    }

    /// Ends the streams, watches and connections of callers that are no longer permitted by the current
    /// files.
    pub(crate) fn end_denied(&self) {
        let registry = self.registry();
        let connections: Vec<_> = registry.connections.values().cloned().collect();
        let streams: Vec<_> = registry.streams.values().cloned().collect();
        let watchers: Vec<_> = registry.asks.values().filter_map(Ask::watcher).collect();
        let forwarded: Vec<_> =
            registry.forwarded.iter().map(|(id, (caller, _))| (*id, caller.clone())).collect();
        drop(registry);
        for stream in streams {
            stream.end_denied(|caller| self.ended(caller));
            if let Some(unused) = stream.unused() {
                self.close_unused(&unused);
            }
        }
        for watcher in watchers {
            if let Some(refusal) = self.ended(&watcher.caller) {
                watcher.stop(Status::permission_denied(refusal));
            }
        }
        for (id, caller) in forwarded {
            if let Some(refusal) = self.ended(&caller) {
                self.end_forwarded(id, Status::permission_denied(refusal));
            }
        }
        // Connections come last, so that streams and watches receive the reason first.
        for connection in connections {
            connection.close_if_denied(|caller| self.access.ended(&caller.identity, caller.token.as_ref()));
        }
    }

    /// The refusal if the current files no longer permit the caller; recorded in the audit trail. To be
    /// called once a stream is registered: the files may have changed since the call was authorized.
    pub(super) fn ended(&self, caller: &Caller) -> Option<String> {
        let refusal = self.access.ended(&caller.identity, caller.token.as_ref())?;
        self.refused("denied", caller, &refusal);
        Some(refusal)
    }

    pub(super) fn end_forwarded(&self, id: u64, status: Status) {
        if let Some((_, end)) = self.registry().forwarded.remove(&id) {
            // Fails if the caller has gone.
            let _ = end.send(status);
        }
    }

    /// Records that a caller was refused.
    pub(super) fn refused(&self, what: &'static str, caller: &Caller, why: &str) {
        self.audit.refused(what, &caller.identity, &caller.address, why);
    }

    /// Ends all watches, which would otherwise last until their callers end them.
    pub(crate) fn end_watches(&self) {
        for ask in self.registry().asks.values() {
            if let Ask::Watch(watcher) = ask {
                watcher.stop(Status::unavailable("this node shuts down; watch at another"));
            }
        }
        for (_, (_, end)) in std::mem::take(&mut self.registry().forwarded) {
            // Fails if the caller has gone.
            let _ = end.send(shuts_down());
        }
    }
}

/// The error for an answer that refuses the question.
pub(super) fn refusal(answer: Answer, clients: &BTreeMap<u64, String>) -> Status {
    match answer {
        Answer::Refused(refused) => {
            let code = match refused.code() {
                RefusedCode::Limit => Code::ResourceExhausted,
                RefusedCode::Denied => Code::PermissionDenied,
                RefusedCode::Permits | RefusedCode::NotHeld | RefusedCode::InUse | RefusedCode::Operator => {
                    Code::FailedPrecondition
                }
                RefusedCode::Invalid | RefusedCode::Unspecified => Code::InvalidArgument,
            };
            Status::new(code, refused.text)
        }
        Answer::NotLeader { leader } => match clients.get(&leader) {
            Some(address) => {
                not_leader(format!("this node does not lead: ask node {leader} at {address}"), address)
            }
            None => no_leader(),
        },
        _ => unexpected(),
    }
}

/// The error if this node does not know a leader, or does not know the leader's address.
pub(super) fn no_leader() -> Status {
    not_leader(
        "this node does not lead, and knows of none that does; try again, or ask another".to_owned(),
        "",
    )
}

pub(super) fn not_leader(text: String, leader: &str) -> Status {
    let mut status = Status::unavailable(text);
    let leader = leader.parse().unwrap_or_else(|_| MetadataValue::from_static(""));
    status.metadata_mut().insert(LEADER_METADATA, leader);
    status
}

/// The error while this node shuts down. Its metadata are those of a node that does not lead, so a node that
/// forwarded the call asks the next leader.
pub(super) fn shuts_down() -> Status {
    not_leader("this node shuts down; ask another".to_owned(), "")
}

pub(super) fn unexpected() -> Status {
    Status::internal("the replica answered another question: this is a bug of the service")
}

/// The error of a call that took effect, but could not be recorded in the audit trail.
pub(super) fn unrecorded(error: &std::io::Error) -> Status {
    Status::data_loss(format!(
        "it is done, but this node's audit trail has no record of it: the file can't be written: {error}"
    ))
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
