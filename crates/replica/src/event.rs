//! What goes into a replica and what comes out.

use std::fmt;

use lockkeeper_core::{LockName, Page, Table};
use lockkeeper_wire::peer::{PeerMessage, SnapshotOffer};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::{store, v1};

use crate::members::{Change, Members};

/// A client's stream; numbered by whoever accepts them, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// A unary call that waits for its answer; numbered by whoever accepts them, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AskId(pub u64);

/// Something has happened.
#[derive(Debug)]
pub enum Event {
    /// A client opened a stream.
    StreamOpened(StreamId),
    /// A client's frame was read.
    Frame(StreamId, Vec<Request>),
    /// A stream is over.
    StreamClosed {
        /// Which.
        stream: StreamId,
        /// The client closed it (FIN or RST was read). Not so for a time-out, nor for any close that this side began:
        /// those never start `linger`.
        by_client: bool,
    },
    /// A unary call came in.
    Asked(AskId, Question),
    /// Whoever asked, or watches, is gone.
    Dropped(AskId),
    /// Whoever watches has read all that was sent to it: the next part of its state may follow.
    WatchRead(AskId),
    /// All input that had arrived when [`Output::Drain`] asked for it has been given.
    Drained(u64),
    /// Peers' messages, in the order of their arrival; at most some MiB of entries a turn, since all of a turn's entries become
    /// one record of the log.
    Peer(Vec<PeerMessage>),
    /// A peer can be reached, and has said who it is.
    PeerUp {
        /// Which.
        node: u64,
        /// The newest rules of the table that it knows.
        rules_max: u32,
        /// Where it serves clients.
        client_address: String,
    },
    /// The connection with this peer broke: what was sent to it may be lost, in part or whole, and it can't be heard until it is
    /// reached anew.
    PeerDown(u64),
    /// Something that was to be sent to this peer was dropped: it does not keep up, or can't be reached.
    PeerMissed(u64),
    /// The last [`SnapshotStep`] was carried out.
    SnapshotStepDone,
    /// The last [`SnapshotStep`] failed; the snapshot is given up, and another is taken later.
    SnapshotFailed,
    /// A leader's snapshot has arrived whole, and lies on the disk without a name.
    SnapshotReceived(Box<Received>),
    /// What came of [`Output::SendSnapshot`]; exactly once for each.
    SnapshotSent {
        /// To whom.
        to: u64,
        /// It has taken it, or needs it no more.
        arrived: bool,
    },
    /// The node is to stop: leadership is handed over, then streams are told to go elsewhere.
    ShutDown,
}

/// A snapshot that a leader has sent, and the table that it makes. Nothing of it counts yet: whether it is news is for
/// the consensus to say. The file stays with whoever gives this, until [`Write::installs`](crate::Write::installs) or
/// [`Output::SnapshotUnused`] names its index.
pub struct Received {
    /// What the leader said of it.
    pub offer: SnapshotOffer,
    /// What its pieces make.
    pub table: Table,
    /// Their length, in bytes.
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

/// A unary call, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// One lock.
    Describe {
        /// Its name.
        name: LockName,
        /// Which of its holds and waiters are listed.
        page: Page,
    },
    /// The locks at and below a name.
    List {
        /// `None` is all.
        prefix: Option<LockName>,
        /// At most so many.
        max: usize,
        /// Where the last page ended; 0 begins.
        after: u64,
    },
    /// The live sessions.
    Sessions {
        /// At most so many.
        max: usize,
        /// Begin after this id.
        after: u64,
    },
    /// The locks at and below a name, and every change from now on.
    Watch {
        /// `None` is all.
        prefix: Option<LockName>,
    },
    /// What a token is worth.
    CheckToken {
        /// The lock.
        name: LockName,
        /// The token.
        token: u64,
    },
    /// End a hold.
    Break(lockkeeper_core::Break),
    /// Store a number of permits, or none.
    SetLimit {
        /// The name.
        name: LockName,
        /// The number.
        limit: Option<u32>,
    },
    /// A stored snapshot with everything that was answered before this was asked, for a backup.
    Backup,
    /// How the node is. Answered by any node, whether it leads or not.
    Status,
    /// Who takes part, and how far each is.
    Members,
    /// Change who takes part. Done already is as good as done.
    Change(Change),
    /// Hand the leadership over.
    Transfer {
        /// To whom; `None`: to the voter that is furthest.
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
    /// See [`Question::Watch`]; many of them.
    Watched(Vec<v1::WatchResponse>),
    /// See [`Question::CheckToken`].
    Checked(v1::CheckTokenResponse),
    /// See [`Question::Break`].
    Broken(v1::BreakResponse),
    /// See [`Question::SetLimit`].
    LimitSet,
    /// See [`Question::Backup`].
    BackupStored {
        /// The snapshot's position in the log.
        index: u64,
        /// The table's counter of tokens there.
        last_token: u64,
    },
    /// See [`Question::Status`]. What only the process knows is left empty.
    Status(v1::StatusResponse),
    /// See [`Question::Members`].
    Members(v1::MembersResponse),
    /// See [`Question::Change`]: it is in force. An added node learns first, a removed voter still takes part until the
    /// change is over; [`Question::Members`] shows it.
    Changed,
    /// See [`Question::Transfer`].
    Transferred {
        /// Who leads now.
        leader: u64,
    },
    /// It is refused, in words that say what to do.
    Refused(v1::Refused),
    /// This node does not lead; it may have seen the question (P12).
    NotLeader {
        /// The leader's id; 0 if none is known.
        leader: u64,
    },
}

/// Something is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Send these to a peer, in this order, before anything else is done: the others' disks work meanwhile.
    Peer(u64, Vec<PeerMessage>),
    /// Send these items to a client, in one frame.
    Items(StreamId, Vec<v1::ServerItem>),
    /// Send this as a stream's last item, then close it.
    EndStream(StreamId, v1::StreamEnd),
    /// Answer a unary call.
    Answer(AskId, Answer),
    /// Give [`Event::Drained`] with this number once every input that is readable *now*, in any socket and in the
    /// queue of connections not yet accepted, was given (P9).
    Drain(u64),
    /// Work on the snapshot; one step at a time.
    Snapshot(SnapshotStep),
    /// The log may be cut: everything up to this index is in a stored snapshot.
    Compact(u64),
    /// Send the stored snapshot with this head to a follower, by a connection of its own; then [`Event::SnapshotSent`].
    SendSnapshot(Box<SnapshotOffer>),
    /// The received snapshot that ends with this entry is no news: remove its file.
    SnapshotUnused(u64),
    /// Who takes part from now on, with the addresses that are known.
    Members(Members),
    /// This node takes part no more: it stops, for good.
    Removed,
    /// Of one log two nodes have made two tables: somebody must hear of it.
    Differs(Difference),
    /// This node's table is the one that can't be trusted: it stops, for good. Nothing that it says from now on may count.
    Wrong(Difference),
}

/// Two nodes' tables, after the same entry of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The last entry in both.
    pub index: u64,
    /// The digest of this node's table.
    pub own: u128,
    /// Another node that says something else.
    pub node: u64,
    /// What it says.
    pub theirs: u128,
}

/// This node's log ends before an entry that it has acknowledged, or that is committed: its disk has lost what it had confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostEntries {
    /// The member that shows it.
    pub peer: u64,
    /// The entry.
    pub acknowledged: u64,
    /// The last entry of the log.
    pub last: u64,
}

/// One step of storing a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub enum SnapshotStep {
    /// Begin a new one.
    Begin(store::SnapshotHead),
    /// Append these bytes.
    Piece(Vec<u8>),
    /// It is whole: sync it, and let it take the place of the last one.
    Finish(store::SnapshotTail),
}
