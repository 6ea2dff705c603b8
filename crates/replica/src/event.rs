//! Inputs and outputs of a replica.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Command, LockName, Page, Seq, SessionId, Table, Usage};
use lockkeeper_wire::peer::{PeerMessage, SnapshotOffer};
use lockkeeper_wire::request::{Open, Request, Secret};
use lockkeeper_wire::{store, v1};

use crate::load::Load;
use crate::members::{Change, Members};

/// A client's stream. The caller numbers streams and never reuses a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// A pending unary call that belongs to no session. The caller numbers calls and never reuses a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AskId(pub u64);

/// A pending [`SessionCall`]. The caller numbers calls and never reuses a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// The sender of a session's request, who gets the answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Requester {
    /// A client's stream.
    Stream(StreamId),
    /// A call.
    Call(CallId),
}

/// One request of a session whose client keeps no stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionCall {
    /// Who the client is, as in [`Event::StreamOpened`].
    pub identity: Arc<str>,
    /// The most that the sessions of this identity may have together.
    pub quota: Usage,
    /// The request.
    pub request: CallRequest,
}

/// The request of a [`SessionCall`]. With the right secret it also attaches the session: requests of its
/// stream are refused from then on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallRequest {
    /// Opens a session. `Open::attach` is not used.
    Open(Open),
    /// A keep-alive.
    KeepAlive {
        /// The session that it keeps alive.
        session: SessionId,
        /// The session's secret.
        secret: Secret,
        /// Returned in the answer.
        id: u64,
        /// What else the call asks for.
        poll: SessionPoll,
    },
    /// A command of a session, as in [`Request::Command`].
    Command {
        /// The session that sends it.
        session: SessionId,
        /// The session's secret.
        secret: Secret,
        /// The command's number in its session; 0 for a close, which has none.
        seq: Seq,
        /// The command itself.
        command: Command,
    },
}

/// The changes of its session's requests that a keep-alive asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionPoll {
    /// The requests that were queued: the answer names those that are not queued any more.
    pub waiting: Vec<Seq>,
    /// The requests that the client knows to be revoked or ended: the answer leaves them out.
    pub known: Vec<Seq>,
    /// The call waits until there is a change to name.
    pub waits: bool,
}

impl SessionPoll {
    /// The length of the lists, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.waiting.len() + self.known.len()) * size_of::<Seq>()
    }
}

impl CallRequest {
    /// A client's request as a call with this secret. `None` for an attach, which every call does by itself.
    #[must_use]
    pub fn new(request: Request, secret: Secret) -> Option<Self> {
        match request {
            Request::Open(open) => Some(Self::Open(open)),
            Request::KeepAlive { session, id } => {
                Some(Self::KeepAlive { session, secret, id, poll: SessionPoll::default() })
            }
            Request::Command { session, seq, command } => {
                Some(Self::Command { session, secret, seq, command })
            }
            Request::Attach { .. } | Request::Denied { .. } => None,
        }
    }
}

/// Why a stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamCloseCause {
    /// The client closed it (a FIN or RST was read): only this starts `linger`.
    Client,
    /// A time-out, or the service closed it: perhaps not all of the client's requests were read, so its
    /// sessions have their whole ttl from now on (P9).
    Service,
}

/// An input of the replica.
#[derive(Debug)]
pub enum Event {
    /// A client opened a stream.
    StreamOpened {
        /// The stream.
        stream: StreamId,
        /// Who the client is, at most [`LABEL_BYTES_MAX`](lockkeeper_core::limits::LABEL_BYTES_MAX) bytes;
        /// empty: unknown.
        identity: Box<str>,
        /// The most that the sessions of this identity may have together.
        quota: Usage,
    },
    /// From now on these are the most that sessions may have together.
    Quotas {
        /// All sessions.
        total: Usage,
        /// The sessions of an identity with open streams.
        by_identity: Vec<(Box<str>, Usage)>,
    },
    /// A frame of requests arrived on a stream.
    Frame(StreamId, Vec<Request>),
    /// A stream has ended.
    StreamClosed {
        /// The stream.
        stream: StreamId,
        /// Why.
        cause: StreamCloseCause,
    },
    /// The client of this stream has sent nothing for a while: the stream ends if it has no session.
    StreamSilent(StreamId),
    /// A request of a session arrived by a call.
    Called(CallId, Box<SessionCall>),
    /// The caller of this call is gone, or waits no longer.
    CallDropped(CallId),
    /// A unary call arrived.
    Asked(AskId, Question),
    /// The caller of a unary call or watch is gone.
    Dropped(AskId),
    /// The watcher has read everything sent to it, so the next part of its initial state may follow.
    WatchRead(AskId),
    /// The drain barrier with this number is complete: all input that had arrived when its [`Output::Drain`]
    /// was carried out has been delivered as events.
    Drained(u64),
    /// Peer messages, in order of arrival. The caller passes some MiB of entries per turn at most, since all
    /// entries of a turn become one log record.
    Peer(Vec<PeerMessage>),
    /// A connection to a peer is established, and its handshake is done.
    PeerUp {
        /// The peer's id.
        node: u64,
        /// Newest version of the table's rules that the peer supports.
        rules_max: u32,
        /// Address at which the peer serves clients.
        client_address: String,
    },
    /// The connection to this peer broke: messages sent on it may be lost, and none arrive until it is
    /// established again.
    PeerDown(u64),
    /// A message to this peer was dropped: the peer is too slow or unreachable.
    PeerMissed(u64),
    /// The last [`SnapshotStep`] is complete.
    SnapshotStepDone,
    /// The last [`SnapshotStep`] failed. This snapshot is abandoned; another is taken later.
    SnapshotFailed,
    /// A snapshot from the leader was received completely; its file does not have its final name yet.
    SnapshotReceived(Box<Received>),
    /// The outcome of an [`Output::SendSnapshot`]; exactly one for each.
    SnapshotSent {
        /// The receiver.
        to: u64,
        /// Whether the follower has the snapshot or does not need it any more.
        arrived: bool,
    },
    /// Whether the disk has no room for the next segment of the log. A leader then transfers the leadership,
    /// before its present segment is full and the node has to stop.
    DiskFull(bool),
    /// Stop the node: hand over leadership, then end the streams.
    ShutDown,
}

/// A snapshot received from a leader. It takes effect only once the consensus has accepted it as newer. The
/// caller keeps the snapshot's file until [`Write::installs`](crate::Write::installs) or
/// [`Output::SnapshotUnused`] names its index.
pub struct Received {
    /// The leader's description of the snapshot.
    pub offer: SnapshotOffer,
    /// The table built from the snapshot's pieces.
    pub table: Table,
    /// Total length of the pieces in bytes.
    pub bytes: u64,
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("offer", &self.offer)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A unary call whose fields were checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Describe one lock.
    Describe {
        /// The lock's name.
        name: LockName,
        /// The page of holds and waiters to return.
        page: Page,
    },
    /// List the locks at and below a name.
    List {
        /// The name; `None` for all locks.
        prefix: Option<LockName>,
        /// Maximum number of locks.
        max: usize,
        /// Cursor of the previous page; 0 for the first.
        after: u64,
    },
    /// List the live sessions.
    Sessions {
        /// Maximum number of sessions.
        max: usize,
        /// Return sessions after this id.
        after: u64,
    },
    /// Watch the locks at and below a name: the state of all first, then of each lock that has changed.
    /// Changes of locks above the name are sent too, since a subtree hold there covers it.
    Watch {
        /// The name; `None` for all locks.
        prefix: Option<LockName>,
    },
    /// Check whether a token is current.
    CheckToken {
        /// The lock's name.
        name: LockName,
        /// The token.
        token: u64,
    },
    /// Break a hold.
    Break(lockkeeper_core::Break),
    /// End a session as if its client were gone.
    EndSession {
        /// The session.
        session: SessionId,
        /// Even if its client is attached.
        now: bool,
    },
    /// Store a permit limit, or delete it.
    SetLimit {
        /// The lock's name.
        name: LockName,
        /// The limit; `None` deletes it.
        limit: Option<u32>,
    },
    /// Store a snapshot for a backup. The snapshot includes everything that was answered before this call.
    Backup,
    /// The node's status. Answered by every node, whether it leads or not.
    Status,
    /// What the node has and has done. Answered by every node, as it knows it. The work is bounded: some of
    /// the names may be missing.
    Load {
        /// Prefixes whose load is asked for.
        prefixes: Vec<LockName>,
        /// The load of the names in use is asked for, joined by so many first segments.
        segments: usize,
    },
    /// The cluster members and their replication progress.
    Members,
    /// Change the members. Succeeds at once if the change was made already.
    Change(Change),
    /// Transfer leadership.
    Transfer {
        /// The target; `None` selects the most up-to-date voter.
        to: Option<u64>,
    },
}

/// The answer to a [`Question`].
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// See [`Question::Describe`].
    Described(v1::DescribeResponse),
    /// See [`Question::List`].
    Listed(v1::ListResponse),
    /// See [`Question::Sessions`].
    Sessions(v1::ListSessionsResponse),
    /// See [`Question::Watch`]; one watch gets many of these.
    Watched(Vec<v1::WatchResponse>),
    /// See [`Question::CheckToken`].
    Checked(v1::CheckTokenResponse),
    /// See [`Question::Break`].
    Broken(v1::BreakResponse),
    /// See [`Question::EndSession`].
    SessionEnded(v1::EndSessionResult),
    /// See [`Question::SetLimit`].
    LimitSet,
    /// See [`Question::Backup`].
    BackupStored {
        /// Index of the last log entry in the snapshot.
        index: u64,
        /// The table's token counter at that entry.
        last_token: u64,
    },
    /// See [`Question::Status`]. Fields that only the process can fill are empty.
    Status(Box<v1::StatusResponse>),
    /// See [`Question::Load`].
    Load(Box<Load>),
    /// See [`Question::Members`].
    Members(v1::MembersResponse),
    /// See [`Question::Change`]: the change is in force. An added node starts as a learner; a removed voter
    /// takes part until the joint configuration ends. [`Question::Members`] shows the progress.
    Changed,
    /// See [`Question::Transfer`].
    Transferred {
        /// The leader now.
        leader: u64,
    },
    /// The call is refused; the text names a remedy.
    Refused(v1::Refused),
    /// This node does not lead. It may have proposed the call before it lost leadership, so the outcome can
    /// be unknown (P12).
    NotLeader {
        /// The leader's id; 0 if unknown.
        leader: u64,
    },
}

/// An output to be carried out by the caller.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Send these messages to a peer, in this order, before other outputs: the peers then write to their
    /// disks while this node writes to its own.
    Peer(u64, Vec<PeerMessage>),
    /// Send these items to a client, in one frame.
    Items(StreamId, Vec<v1::ServerItem>),
    /// The replica has refused a request of this stream or call at a quota. The text is that of the refusal,
    /// for the audit trail.
    OverQuota(Requester, String),
    /// The answer to a call that does not wait any longer. The call waits for a queued request, or for a
    /// change of its session's requests: [`Output::Called`] follows once there is an outcome, unless
    /// [`Event::CallDropped`] comes first.
    CallWaits(CallId, v1::SessionCallResponse),
    /// The answer to a call.
    Called(CallId, v1::SessionCallResponse),
    /// A call ends without an answer: this node does not lead, or shuts down. Whether the call had an effect
    /// is unknown (P12).
    CallEnded(CallId, v1::StreamEnd),
    /// Send this as the stream's last item, then close the stream.
    EndStream(StreamId, v1::StreamEnd),
    /// Answer a unary call.
    Answer(AskId, Answer),
    /// Begin a drain barrier: return [`Event::Drained`] with this number once all input that is readable
    /// *now*, in any socket and in the accept queue, has been delivered as events (P9).
    Drain(u64),
    /// Carry out a step of a snapshot, then return [`Event::SnapshotStepDone`] or [`Event::SnapshotFailed`].
    /// There is one step at a time.
    Snapshot(SnapshotStep),
    /// The log may be compacted: all entries up to this index are in a stored snapshot.
    Compact(u64),
    /// Send the stored snapshot with this head to a follower over a separate connection, then return
    /// [`Event::SnapshotSent`].
    SendSnapshot(Box<SnapshotOffer>),
    /// The received snapshot of this index is not used, since it is invalid, not newer than the log, or
    /// another one is being installed: remove its file.
    SnapshotUnused(u64),
    /// The cluster members from now on, with their known addresses.
    Members(Members),
    /// This leader and another node built different tables from the same log: report it.
    Differs(Difference),
    /// A majority of the voters has another table than this node: stop this node for good, and send nothing
    /// more.
    Wrong(Difference),
}

/// Digests of two nodes' tables that differ after the same log entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Index of the entry after which the tables were compared.
    pub index: u64,
    /// Digest of this node's table.
    pub own: u128,
    /// The other node.
    pub node: u64,
    /// Digest of the other node's table.
    pub theirs: u128,
}

/// This node's log ends before an entry that it has acknowledged or that is committed: its disk has lost
/// durable entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostEntries {
    /// The member whose message shows that entries are missing.
    pub peer: u64,
    /// Index of the acknowledged or committed entry.
    pub acknowledged: u64,
    /// Index of the last entry in this node's log.
    pub last: u64,
}

/// A step of storing a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub enum SnapshotStep {
    /// Create a new snapshot file.
    Begin(store::SnapshotHead),
    /// Append these bytes.
    Piece(Vec<u8>),
    /// Sync the complete snapshot and replace the previous one by it.
    Finish(store::SnapshotTail),
}
