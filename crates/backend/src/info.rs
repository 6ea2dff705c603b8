//! The descriptions of locks, sessions and services that operators see.

use std::time::{Duration, SystemTime};

use lockkeeper_core::{LockName, ModeKind, Slot, Token};

/// The holds and the waiters of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockInfo {
    /// Its name.
    pub name: LockName,
    /// Holds that cover the lock, by token; only the first ones if there are very many.
    pub holds: Vec<HolderInfo>,
    /// The number of holds.
    pub hold_count: usize,
    /// The number of waiters.
    pub waiter_count: usize,
    /// The first waiters, in the order of the queue.
    pub waiters: Vec<WaiterInfo>,
    /// The semaphore's number of permits in force.
    pub permits: Option<u32>,
    /// Whether an operator has set that number.
    pub permits_stored: bool,
}

impl LockInfo {
    /// A lock without holds and waiters.
    #[must_use]
    pub const fn free(name: LockName) -> Self {
        Self {
            name,
            holds: Vec::new(),
            hold_count: 0,
            waiter_count: 0,
            waiters: Vec::new(),
            permits: None,
            permits_stored: false,
        }
    }

    /// A lock with these holds and without waiters.
    #[must_use]
    pub fn held_by(name: LockName, holds: Vec<HolderInfo>) -> Self {
        Self { hold_count: holds.len(), holds, ..Self::free(name) }
    }
}

/// A hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderInfo {
    /// Its token; `None` if the backend issues none.
    pub token: Option<Token>,
    /// The id of the holder's session; `None` for a closed hold, or if the backend has no ids of sessions.
    pub session: Option<u64>,
    /// Its mode.
    pub mode: ModeKind,
    /// Whether it covers all names below its own.
    pub subtree: bool,
    /// The slot of its permit, in mode `permit`.
    pub slot: Option<Slot>,
    /// The holder's label; empty for a closed hold.
    pub label: String,
    /// Who the holder is, as the service has authenticated it; empty if that is unknown.
    pub identity: String,
    /// How long it has been held, if the backend knows.
    pub held_for: Option<Duration>,
    /// When it was granted, by the wall clock of the node that led then; only our own service and `memory:`
    /// know it.
    pub since: Option<SystemTime>,
    /// Held, under a break, or closed.
    pub state: HolderState,
    /// Whether its client keeps it between its sections, and gives it back once others wait.
    pub cached: bool,
    /// Whether it is cached, and others wait for it.
    pub recalled: bool,
    /// The last of its tokens, if it has several: a cached hold has one for each section.
    pub last_token: Option<Token>,
    /// The holder's meta data.
    pub meta: Vec<(String, String)>,
    /// The value that the holder has set; empty if none.
    pub value: Vec<u8>,
}

impl HolderInfo {
    /// An exclusive hold of a client with this label.
    #[must_use]
    pub const fn exclusive(label: String) -> Self {
        Self {
            token: None,
            session: None,
            mode: ModeKind::Exclusive,
            subtree: false,
            slot: None,
            label,
            identity: String::new(),
            held_for: None,
            since: None,
            state: HolderState::Held,
            cached: false,
            recalled: false,
            last_token: None,
            meta: Vec::new(),
            value: Vec::new(),
        }
    }
}

/// The state of a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HolderState {
    /// Held.
    Held,
    /// Under a break; its holder was asked to stop.
    Revoked {
        /// The reason.
        reason: String,
        /// The operator who ordered it.
        by: String,
    },
    /// Ended, but the lock stays closed for a time.
    Closed {
        /// The remaining time.
        left: Duration,
    },
}

/// A waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterInfo {
    /// The id of the waiter's session; `None` if the backend has no ids of sessions.
    pub session: Option<u64>,
    /// The waiter's label.
    pub label: String,
    /// Who the waiter is, as the service has authenticated it; empty if that is unknown.
    pub identity: String,
    /// The requested mode.
    pub mode: ModeKind,
    /// Whether the request covers all names below its own.
    pub subtree: bool,
    /// The waiter's meta data.
    pub meta: Vec<(String, String)>,
    /// How long it has been waiting, if the backend knows.
    pub waiting_for: Option<Duration>,
    /// When it was queued; as [`HolderInfo::since`].
    pub since: Option<SystemTime>,
}

impl WaiterInfo {
    /// A waiter with this label at one name, of a backend without ids of sessions.
    #[must_use]
    pub const fn new(label: String, mode: ModeKind, meta: Vec<(String, String)>) -> Self {
        Self {
            session: None,
            label,
            identity: String::new(),
            mode,
            subtree: false,
            meta,
            waiting_for: None,
            since: None,
        }
    }
}

/// A live session, as seen by the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// Its id.
    pub id: u64,
    /// The client's label.
    pub label: String,
    /// Who the client is, as the service has authenticated it; empty if that is unknown.
    pub identity: String,
    /// Its ttl: how long it lives without a keep-alive.
    pub ttl: Duration,
    /// How long its holds stay closed if it expires.
    pub lock_delay: Duration,
    /// The time left to the session once its client has closed the stream; zero disables it.
    pub linger: Duration,
    /// The number of its requests that hold or wait.
    pub requests: u64,
    /// Whether its client has a stream open, or makes calls instead and has made one in the last half of the
    /// ttl; also true after a change of leader, until the client was heard or its ttl is over.
    pub attached: bool,
    /// The rest of its ttl.
    pub left: Duration,
}

/// What one setting of a lock service implies for its locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Whether the setting breaks a guarantee that users rely on. `says` then names the guarantee and a
    /// better setting.
    pub spoils: bool,
    /// The setting, its value, the consequence and the remedy.
    pub says: String,
}

/// Meta data as bytes: one `key=value` per line.
pub fn encode_meta(pairs: &[(String, String)]) -> Box<[u8]> {
    let lines: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    lines.join("\n").into_bytes().into()
}

/// The pairs of [`encode_meta`]; a line without `=` becomes a value without a key.
pub fn decode_meta(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let pair = |line: &str| {
        let (key, value) = line.split_once('=').unwrap_or(("", line));
        (key.to_owned(), value.to_owned())
    };
    text.lines().map(pair).collect()
}

impl LockInfo {
    /// Converts a table's description of a name. `age`: of a hold with a token, or of a waiter, that began at
    /// this time.
    pub fn from_description(
        name: LockName,
        description: lockkeeper_core::Description,
        label: impl Fn(lockkeeper_core::SessionId) -> String,
        age: impl Fn(Option<Token>, lockkeeper_core::WallTime) -> Option<Duration>,
        closed_left: impl Fn(Token, u64) -> Duration,
    ) -> Self {
        use lockkeeper_core::HoldState;
        let holds = description.holds.into_iter().map(|hold| HolderInfo {
            identity: String::new(),
            token: Some(hold.token),
            session: hold.owner.map(|(session, _)| session.0),
            mode: hold.mode,
            subtree: hold.subtree,
            slot: hold.slot,
            label: hold.owner.map(|(session, _)| label(session)).unwrap_or_default(),
            held_for: age(Some(hold.token), hold.since),
            since: hold.since.time(),
            state: match hold.state {
                HoldState::Held => HolderState::Held,
                HoldState::Revoked { reason, by } => {
                    HolderState::Revoked { reason: reason.into(), by: by.into() }
                }
                HoldState::Closed { ms } => HolderState::Closed { left: closed_left(hold.token, ms) },
            },
            cached: hold.caching.is_held(),
            recalled: hold.caching == lockkeeper_core::Caching::Recalled,
            last_token: hold.token.after(hold.spare_tokens),
            meta: decode_meta(&hold.meta),
            value: hold.value.to_vec(),
        });
        let waiters = description.waiters.into_iter().map(|waiter| WaiterInfo {
            session: Some(waiter.owner.0.0),
            subtree: waiter.subtree,
            waiting_for: age(None, waiter.since),
            since: waiter.since.time(),
            ..WaiterInfo::new(label(waiter.owner.0), waiter.mode, decode_meta(&waiter.meta))
        });
        Self {
            name,
            holds: holds.collect(),
            hold_count: description.hold_count,
            waiter_count: description.waiter_count,
            waiters: waiters.collect(),
            permits: description.limit.map(|(limit, _)| limit),
            permits_stored: description.limit.is_some_and(|(_, stored)| stored),
        }
    }
}
