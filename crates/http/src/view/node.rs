//! Nodes of our own service: the state of each, and the members of the cluster.

use lockkeeper_wire::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// The state of a node.
#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeView {
    /// The software's version.
    pub version: String,
    /// The node's id.
    pub node: u64,
    /// The random id of its data directory.
    pub incarnation: String,
    /// The cluster's random id.
    pub cluster: String,
    /// What it does in the cluster, as in Raft.
    pub role: RoleView,
    /// The leader's id; absent: the node knows of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
    /// The Raft term.
    pub term: u64,
    /// The index of the last log entry that it has applied.
    pub applied: u64,
    /// The index of the last log entry that it knows to be committed.
    pub committed: u64,
    /// The index up to which its latest snapshot reaches.
    pub snapshot: u64,
    /// The last token issued.
    pub last_token: u64,
    /// The number of live sessions.
    pub sessions: u64,
    /// The number of holds, waiting requests and closed holds.
    pub requests: u64,
    /// The number of client streams at this node.
    pub streams: u64,
    /// The number of client streams that it relays to the leader, for clients that can't reach that one.
    pub relayed_streams: u64,
    /// The version of the lock rules in force.
    pub rules: u32,
    /// The members of the cluster, as far as this node knows.
    pub members: Vec<MemberView>,
    /// The ids of former members.
    pub removed: Vec<u64>,
    /// When its certificate ends, in seconds since 1970; absent: it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<u64>,
    /// The SHA-256 of its file of permissions; absent: it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// The bytes of its data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_used_bytes: Option<u64>,
    /// The bytes that are free on its disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<u64>,
    /// Whether that is enough for its log.
    pub disk_state: DiskView,
    /// When the disk will be full if its free space falls as in the last ten minutes, in seconds; absent:
    /// it does not fall, or the node has not run for ten minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_full_in_seconds: Option<u64>,
    /// Why the last record could not be written to its audit file; absent: it could, or there is no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_error: Option<String>,
    /// Why the last backup on its schedule failed; absent: it did not, or another node makes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_error: Option<String>,
    /// Why changed files (TLS, tokens, permissions) can't be used, so that the old ones stay in force;
    /// absent: all are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_error: Option<String>,
}

/// Whether a node's disk has room for its log.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Disk)]
pub enum DiskView {
    /// The disk does not answer.
    Unknown,
    /// It has.
    Enough,
    /// Less than eight segments of the log (512 MiB) are free, or the disk will be full within an hour.
    Low,
    /// The next segment of the log has no room: the node gives the leadership away, and stops when its
    /// present segment is full.
    Full,
}

/// What a node does in the cluster, as in Raft.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Role)]
pub enum RoleView {
    /// It replicates the leader's log.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
}

/// The members of the cluster, as the leader knows them.
#[derive(Serialize, ToSchema)]
#[schema(as = Members)]
pub struct MembersView {
    /// The members, by id.
    pub nodes: Vec<MemberView>,
    /// The leader's id.
    pub leader: u64,
    /// The Raft term.
    pub term: u64,
    /// The index of the last entry of the leader's log.
    pub last: u64,
    /// Whether a change of the members is in progress.
    pub changing: bool,
    /// The ids of former members; they are never used again.
    pub removed: Vec<u64>,
}

/// A member of the cluster.
#[derive(Serialize, ToSchema)]
#[schema(as = Member)]
pub struct MemberView {
    /// The node's id.
    pub node: u64,
    /// The address on which it listens for the other nodes.
    pub peer_address: String,
    /// The address on which it listens for clients.
    pub client_address: String,
    /// `voter`; `learner`: it replicates the log, and votes once it has caught up; `leaving`: it is being
    /// removed.
    pub part: PartView,
    /// Whether the leader has received a message from it within the last election time-out. Only the leader
    /// knows this.
    pub answers: bool,
    /// The index of the last log entry that it is known to have. Only the leader knows this.
    pub matched: u64,
    /// Whether the leader sends it a snapshot, as its log ends before the leader's begins.
    pub receives_snapshot: bool,
    /// Whether the node at its address says that it has other data than the cluster knows of it: its own are
    /// lost, and it is to be replaced.
    pub data_lost: bool,
}

/// What a member is for.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Part)]
pub enum PartView {
    /// It votes.
    Voter,
    /// It replicates the log, and votes once it has caught up.
    Learner,
    /// It is being removed.
    Leaving,
}

impl From<v1::StatusResponse> for NodeView {
    fn from(status: v1::StatusResponse) -> Self {
        let role = match status.role() {
            v1::Role::Follower | v1::Role::Unspecified => RoleView::Follower,
            v1::Role::Candidate => RoleView::Candidate,
            v1::Role::Leader => RoleView::Leader,
        };
        let disk_state = match status.disk_state() {
            v1::DiskState::Unspecified => DiskView::Unknown,
            v1::DiskState::Enough => DiskView::Enough,
            v1::DiskState::Low => DiskView::Low,
            v1::DiskState::Full => DiskView::Full,
        };
        Self {
            version: status.version,
            node: status.node,
            incarnation: status.incarnation,
            cluster: status.cluster,
            role,
            leader: Some(status.leader).filter(|leader| *leader > 0),
            term: status.term,
            applied: status.applied,
            committed: status.committed,
            snapshot: status.snapshot,
            last_token: status.last_token,
            sessions: status.sessions,
            requests: status.requests,
            streams: status.streams,
            relayed_streams: status.relayed_streams,
            rules: status.rules,
            members: status.members.into_iter().map(MemberView::from).collect(),
            removed: status.removed,
            certificate_ends: Some(status.certificate_ends).filter(|ends| *ends > 0),
            permissions: Some(status.permissions).filter(|digest| !digest.is_empty()),
            disk_used_bytes: status.disk_used_bytes,
            disk_free_bytes: status.disk_free_bytes,
            disk_state,
            disk_full_in_seconds: status.disk_full_in_seconds,
            audit_error: Some(status.audit_error).filter(|error| !error.is_empty()),
            backup_error: Some(status.backup_error).filter(|error| !error.is_empty()),
            files_error: Some(status.files_error).filter(|error| !error.is_empty()),
        }
    }
}

impl From<v1::MembersResponse> for MembersView {
    fn from(members: v1::MembersResponse) -> Self {
        let v1::MembersResponse { nodes, leader, term, last, changing, removed } = members;
        Self {
            nodes: nodes.into_iter().map(MemberView::from).collect(),
            leader,
            term,
            last,
            changing,
            removed,
        }
    }
}

impl From<v1::ClusterNode> for MemberView {
    fn from(node: v1::ClusterNode) -> Self {
        let part = match node.part() {
            v1::NodePart::Voter | v1::NodePart::Unspecified => PartView::Voter,
            v1::NodePart::Learner => PartView::Learner,
            v1::NodePart::Leaving => PartView::Leaving,
        };
        let v1::ClusterNode {
            node,
            peer_address,
            client_address,
            part: _,
            answers,
            matched,
            receives_snapshot,
            data_lost,
        } = node;
        Self { node, peer_address, client_address, part, answers, matched, receives_snapshot, data_lost }
    }
}
