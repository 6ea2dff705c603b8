//! What people are shown of a lock.

use std::time::Duration;

use lockkeeper_core::{LockName, ModeKind, Slot, Token};

/// Who holds a lock and who waits for it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub name: LockName,
    /// Holds that cover it, by token: the first ones, where there are very many.
    pub holders: Vec<HolderInfo>,
    /// How many there are.
    pub holder_count: usize,
    /// How many wait.
    pub waiter_count: usize,
    /// The first of them, in their order.
    pub waiters: Vec<WaiterInfo>,
    /// The number of permits in force.
    pub limit: Option<u32>,
}

/// A hold.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Its token; `None` where the backend has none.
    pub token: Option<Token>,
    /// Its mode.
    pub mode: ModeKind,
    /// Whether it covers what is below its name.
    pub subtree: bool,
    /// Its permit.
    pub slot: Option<Slot>,
    /// Who, as the holder labelled itself; empty for a closed hold.
    pub owner: String,
    /// For how long it has been held, as far as the backend knows.
    pub held_for: Option<Duration>,
    /// Held, under a break, or closed.
    pub state: HolderState,
    /// What it is for.
    pub meta: Vec<(String, String)>,
}

/// Where a hold stands.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HolderState {
    /// Held.
    Held,
    /// Under a break; its holder was told to stop.
    Revoked {
        /// Why.
        reason: String,
        /// Who ordered it.
        by: String,
    },
    /// Over, and still shut.
    Closed {
        /// For how much longer.
        left: Duration,
    },
}

/// A waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// Who, as it labelled itself.
    pub owner: String,
    /// The mode it wants.
    pub mode: ModeKind,
    /// What it is for.
    pub meta: Vec<(String, String)>,
}

/// A live session, as the service knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its number.
    pub id: u64,
    /// Who, as it labelled itself.
    pub owner: String,
    /// How long it lives without a keep-alive.
    pub ttl: Duration,
    /// How long its holds stay closed if it expires.
    pub lock_delay: Duration,
    /// The time left once its client closed the stream; zero is off.
    pub linger: Duration,
    /// How many requests of it hold or wait.
    pub requests: u64,
    /// Whether a stream carries it at the moment.
    pub attached: bool,
    /// What is left of its ttl.
    pub left: Duration,
}

/// How the node that answered is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// The service's version.
    pub version: String,
    /// The node's number.
    pub node: u64,
    /// What tells its data directory from any other.
    pub incarnation: String,
    /// What tells its cluster from any other.
    pub cluster: String,
    /// Whether it leads.
    pub leads: bool,
    /// The leader's number, if one is known.
    pub leader: Option<u64>,
    /// The term of that leader.
    pub term: u64,
    /// The position in the log up to which commands are applied.
    pub applied: u64,
    /// The position up to which they are decided.
    pub committed: u64,
    /// The position of the latest snapshot.
    pub snapshot: u64,
    /// The last token that was given.
    pub last_token: u64,
    /// Live sessions.
    pub sessions: u64,
    /// Holds, waiters and closed holds.
    pub requests: u64,
    /// Streams of clients at this node.
    pub streams: u64,
    /// The version of the rules in force.
    pub rules: u32,
}

/// What one of a lock service's own settings means for its locks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Whether it spoils something that a user would count on: what, and what to set instead, stands in `says`.
    pub spoils: bool,
    /// The setting, its value, what follows from it, and what to do.
    pub says: String,
}

/// Meta data as bytes: `key=value` lines.
pub(crate) fn encode_meta(pairs: &[(String, String)]) -> Box<[u8]> {
    let lines: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    lines.join("\n").into_bytes().into()
}

/// The pairs of [`encode_meta`]; what is not one is shown as a value without a key.
pub(crate) fn decode_meta(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let pair = |line: &str| {
        let (key, value) = line.split_once('=').unwrap_or(("", line));
        (key.to_owned(), value.to_owned())
    };
    text.lines().map(pair).collect()
}

impl LockInfo {
    /// What a table says of a name, in the words of this library.
    pub(crate) fn from_description(
        name: LockName,
        description: lockkeeper_core::Description,
        label: impl Fn(lockkeeper_core::SessionId) -> String,
        held_for: impl Fn(Token) -> Option<Duration>,
        closed_left: impl Fn(Token, u64) -> Duration,
    ) -> Self {
        use lockkeeper_core::HoldState;
        let holders = description.holds.into_iter().map(|hold| HolderInfo {
            token: Some(hold.token),
            mode: hold.mode,
            subtree: hold.subtree,
            slot: hold.slot,
            owner: hold.owner.map(|(session, _)| label(session)).unwrap_or_default(),
            held_for: held_for(hold.token),
            state: match hold.state {
                HoldState::Held => HolderState::Held,
                HoldState::Revoked { reason, by } => {
                    HolderState::Revoked { reason: reason.into(), by: by.into() }
                }
                HoldState::Closed { ms } => HolderState::Closed { left: closed_left(hold.token, ms) },
            },
            meta: decode_meta(&hold.meta),
        });
        let waiters = description.waiters.into_iter().map(|waiter| WaiterInfo {
            owner: label(waiter.owner.0),
            mode: waiter.mode,
            meta: decode_meta(&waiter.meta),
        });
        Self {
            name,
            holders: holders.collect(),
            holder_count: description.hold_count,
            waiter_count: description.waiter_count,
            waiters: waiters.collect(),
            limit: description.limit.map(|(limit, _)| limit),
        }
    }
}
