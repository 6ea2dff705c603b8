//! The nodes of Lockkeeper's own service: members and their progress, for operators.

use std::fmt;
use std::time::{Duration, SystemTime};

/// The cluster as seen by its leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterInfo {
    /// Its nodes, by id.
    pub nodes: Vec<NodeInfo>,
    /// The leader's id.
    pub leader: u64,
    /// The Raft term.
    pub term: u64,
    /// Index of the last entry of the leader's log.
    pub last: u64,
    /// Whether a membership change is in progress.
    pub changing: bool,
    /// Ids of removed nodes. They are never reused.
    pub removed: Vec<u64>,
}

/// One node of a [`ClusterInfo`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeInfo {
    /// Its id.
    pub node: u64,
    /// Its address for other nodes.
    pub peer_address: String,
    /// Its address for clients.
    pub client_address: String,
    /// Its part: voter, learner, or being removed.
    pub part: NodePart,
    /// Whether the leader received a message from it recently.
    pub answers: bool,
    /// Index of the last log entry that the node is known to have.
    pub matched: u64,
    /// Whether a snapshot is being sent to it, because the log no longer reaches back to its position.
    pub receives_snapshot: bool,
    /// Whether the node at its address says that it has other data than the cluster knows of it: its own are
    /// lost, and it is to be replaced.
    pub data_lost: bool,
}

/// The answer of one node to a call for its status, or why there was none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeReport {
    /// The client address that was called.
    pub address: String,
    /// Whether it answered, even if only with an error.
    pub answers: bool,
    /// Its status; `Err` says why it did not answer.
    pub status: Result<ServiceStatus, String>,
    /// Why it can't be reached from here at `address`, if its status came through another node.
    pub unreached: Option<String>,
}

/// The status of the node that answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceStatus {
    /// The service's version.
    pub version: String,
    /// The node's id.
    pub node: u64,
    /// Identifies the node's data directory.
    pub incarnation: String,
    /// Identifies the cluster.
    pub cluster: String,
    /// What the node does in the cluster.
    pub role: NodeRole,
    /// The leader's id, if known.
    pub leader: Option<u64>,
    /// The term of that leader.
    pub term: u64,
    /// Index of the last applied log entry.
    pub applied: u64,
    /// Index of the last committed log entry.
    pub committed: u64,
    /// Log index of the latest snapshot.
    pub snapshot: u64,
    /// The last token issued.
    pub last_token: u64,
    /// The number of live sessions.
    pub sessions: u64,
    /// The number of holds, waiters and closed holds.
    pub requests: u64,
    /// The number of client streams at this node.
    pub streams: u64,
    /// The number of client streams that this node relays to the leader.
    pub relayed_streams: u64,
    /// The version of the table rules in force.
    pub rules: u32,
    /// The members of the cluster, by id, as far as this node knows. Only the leader knows their progress and
    /// which of them answer.
    pub members: Vec<NodeInfo>,
    /// Ids of removed nodes, as far as this node knows.
    pub removed: Vec<u64>,
    /// When the node's certificate ends; `None`: it has none.
    pub certificate_ends: Option<SystemTime>,
    /// The SHA-256 of the node's file of permissions, in hexadecimal digits; `None`: it has none.
    pub permissions: Option<String>,
    /// The bytes of the node's data directory, if it knows.
    pub disk_used_bytes: Option<u64>,
    /// The bytes that are free on its disk, if it knows.
    pub disk_free_bytes: Option<u64>,
    /// Whether that is enough, as the node judges; `None`: it does not know.
    pub disk_state: Option<NodeDisk>,
    /// When the disk will be full if its free space falls as in the last ten minutes; `None`: it does not
    /// fall, or the node has not run for ten minutes.
    pub disk_full_in: Option<Duration>,
    /// Why the node could not write the last record to its audit file; `None`: it could, or it has none.
    pub audit_error: Option<String>,
    /// Why the node's last backup on a schedule failed; `None`: it did not, or another node makes them.
    pub backup_error: Option<String>,
    /// Why changed files of the node (TLS, tokens, permissions) can't be used, so that the old ones stay in
    /// force; `None`: all are used.
    pub files_error: Option<String>,
}

/// Whether a node's disk has room for its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeDisk {
    /// It has.
    Enough,
    /// Less than eight segments of the log (512 MiB) are free, or the disk will be full within an hour.
    Low,
    /// The next segment of the log has no room: the node gives the leadership away, and stops when its
    /// present segment is full.
    Full,
}

/// What a node does in the cluster, as in Raft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeRole {
    /// It replicates the leader's log.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
}

/// The part of a member in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodePart {
    /// It votes.
    Voter,
    /// It receives the log but does not vote or count for a quorum; it becomes a voter once it has caught up.
    Learner,
    /// It is being removed.
    Leaving,
}

impl fmt::Display for NodePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Voter => "voter",
            Self::Learner => "learner",
            Self::Leaving => "leaving",
        })
    }
}

/// A change of the members. Repeating a change that has been made is no error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembersChange {
    /// Adds a waiting node (`serve --join`): as a learner first, and as a voter once it has caught up.
    Add {
        /// Its id.
        node: u64,
        /// Its address for other nodes, `HOST:PORT`: the leader asks there for its identity.
        peer_address: String,
    },
    /// Removes a node for good: its id is never reused.
    Remove {
        /// Its id.
        node: u64,
    },
}
