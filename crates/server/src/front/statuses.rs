//! The errors of calls, and the metadata by which clients and other nodes find the leader.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_replica::Answer;
use lockkeeper_wire::v1::RefusedCode;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// The metadata key for the leader's client address, set in the refusal of a node that does not lead or that
/// shuts down. The value is empty if the node shuts down, or does not know the leader's address.
pub const LEADER_METADATA: &str = "lockkeeper-leader";

/// The time limit of a call, even if the caller's deadline is later: while no node leads there is no answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The error for an answer that refuses the question.
pub(super) fn refusal(answer: Answer, clients: &BTreeMap<u64, String>) -> Status {
    match answer {
        Answer::Refused(refused) => {
            let code = match refused.code() {
                RefusedCode::Limit => Code::ResourceExhausted,
                RefusedCode::Denied => Code::PermissionDenied,
                RefusedCode::Permits
                | RefusedCode::NotHeld
                | RefusedCode::InUse
                | RefusedCode::Operator
                | RefusedCode::Deadlock => Code::FailedPrecondition,
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
