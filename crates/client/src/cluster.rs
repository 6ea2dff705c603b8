//! The nodes of our own service, for operators: who takes part, and how far each is.

use std::fmt;

/// The cluster, as its leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClusterInfo {
    /// Its nodes, by id.
    pub nodes: Vec<NodeInfo>,
    /// Who leads.
    pub leader: u64,
    /// The consensus' term.
    pub term: u64,
    /// The last entry of the leader's log.
    pub last: u64,
    /// Whether a change of the members is under way.
    pub changing: bool,
    /// The ids of nodes that took part once. They never come back.
    pub removed: Vec<u64>,
}

/// One node of a [`ClusterInfo`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeInfo {
    /// Its id.
    pub node: u64,
    /// Where it listens to the other nodes.
    pub peer_address: String,
    /// Where it serves clients.
    pub client_address: String,
    /// What it is there.
    pub part: NodePart,
    /// Whether the leader has heard it lately.
    pub answers: bool,
    /// The last entry that it is known to have.
    pub matched: u64,
    /// A snapshot is on its way to it: it lags too far behind for the log.
    pub receives_snapshot: bool,
}

/// What a node is in its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NodePart {
    /// It votes.
    Voter,
    /// It follows, and counts for nothing; it votes once it has caught up.
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

/// A change of who takes part. Asking for one that was made already is no error.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MembersChange {
    /// A node that waits (`serve --join`) is let in: it follows first, and votes once it has caught up.
    Add {
        /// Its id.
        node: u64,
        /// Where it listens to other nodes, `HOST:PORT`: the leader asks there who it is.
        peer_address: String,
    },
    /// A node is taken out, for good: its id never comes back.
    Remove {
        /// Its id.
        node: u64,
    },
}
