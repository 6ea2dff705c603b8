//! Questions to the replica: a call waits for the answer until its caller's deadline. If there is no answer, the
//! error states why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_replica::{Answer, AskId, Event, Question};
use lockkeeper_wire::v1::{RefusedCode, StreamEndReason};
use tokio::sync::oneshot;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::stream::stream_end;
use super::{Ask, Front};

/// The time limit of a call, even if the caller's deadline is later: while no node leads there is no answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The metadata key for the leader's client address, set in the refusal of a node that does not lead or that shuts
/// down. The value is empty if the node shuts down, or does not know the leader's address.
pub const LEADER_METADATA: &str = "lockkeeper-leader";

/// A pending question. Dropping it cancels the question.
pub(super) struct Waits {
    front: Arc<Front>,
    ask: AskId,
}

impl Waits {
    /// To be called when the client has read all pending changes of a watch: the replica then sends the next ones.
    pub(super) fn read_on(&self) {
        self.front.push(Event::WatchRead(self.ask));
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let waited = self.front.registry().asks.remove(&self.ask);
        if waited.is_some() {
            self.front.push(Event::Dropped(self.ask));
        }
    }
}

impl Front {
    pub(super) async fn ask(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        question: Question,
    ) -> Result<Answer, Status> {
        let patience = deadline(metadata)?.map_or(PATIENCE, |given| given.min(PATIENCE));
        self.check_serving()?;
        let (sender, answer) = oneshot::channel();
        let _waits = self.wait_for(Ask::Once(sender), question);
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

    pub(super) fn wait_for(self: &Arc<Self>, ask: Ask, question: Question) -> Waits {
        let id = AskId(self.next_id());
        self.registry().asks.insert(id, ask);
        self.push(Event::Asked(id, question));
        Waits { front: self.clone(), ask: id }
    }

    pub(super) fn check_serving(&self) -> Result<(), Status> {
        if self.stopping.is_cancelled() {
            return Err(shuts_down());
        }
        Ok(())
    }

    /// Ends the streams and watches of callers that are revoked by the files in use now.
    pub(crate) fn end_revoked(&self) {
        let registry = self.registry();
        let streams: Vec<_> = registry.streams.values().cloned().collect();
        let watchers: Vec<_> = registry.asks.values().filter_map(Ask::watcher).collect();
        drop(registry);
        for stream in streams {
            if let Some(refusal) = self.access.revoked(stream.identity()) {
                stream.end(stream_end(StreamEndReason::Protocol, refusal));
            }
        }
        for watcher in watchers {
            if let Some(refusal) = self.access.revoked(&watcher.identity) {
                watcher.stop(Status::permission_denied(refusal));
            }
        }
    }

    /// Ends all watches, which would otherwise last until their callers end them.
    pub(crate) fn end_watches(&self) {
        for ask in self.registry().asks.values() {
            if let Ask::Watch(watcher) = ask {
                watcher.stop(Status::unavailable("this node shuts down; watch at another"));
            }
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
                RefusedCode::Permits | RefusedCode::NotHeld | RefusedCode::Operator => {
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

fn not_leader(text: String, leader: &str) -> Status {
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
