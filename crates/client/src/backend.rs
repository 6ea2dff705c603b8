//! The interface between the library and a lock service.
//!
//! How to add a backend, in this order:
//!
//! 1. A folder `backends/<name>/` with its [`Capabilities`], and implementations of [`Backend`] (two methods are
//!    required) and [`Conn`] (one is). A lock service without sessions, whose entries expire, implements
//!    `backends::leased::Store` instead of `Conn`.
//! 2. `backends/mod.rs`: its module, and its entry in `BACKENDS`. URL errors, help texts and `torture` read that table.
//! 3. `Cargo.toml`: a cargo feature, here and in `crates/cli`.
//! 4. `docs/backends/<page>.md`, and its row in `README.md`.
//! 5. The contract suite: a module in `tests/contract/subjects`, and a line in `tests/contract/main.rs`.
//!
//! Tests compare 3, 4 and 5 with the table.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockName, Mode, Seq, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use crate::backup::Backup;
use crate::capabilities::Capabilities;
use crate::cluster::{ClusterInfo, MembersChange, NodeReport};
use crate::error::{BackendError, Unsupported};
use crate::info::{Finding, LockInfo, ServiceStatus, SessionInfo};
use crate::io::LeaseThread;
use crate::machine::{Push, Spec};
use crate::responder::Responder;
use crate::time::Clock;
use crate::watch::Watch;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// One lock service, as identified by the URL.
///
/// Required: [`Backend::capabilities`] and [`Backend::session`]. The other methods have defaults; those of abilities
/// return an [`Unsupported`] error. A backend overrides the methods of the abilities that it
/// has.
pub(crate) trait Backend: Send + Sync + 'static {
    fn capabilities(&self) -> &Capabilities;

    /// Creates the connection for one session. Does no I/O yet.
    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn>;

    /// The clock on which the backend's leases are measured.
    fn clock(&self) -> Clock {
        Clock::Boot
    }

    /// The backend's I/O thread, if it has one. The backend's sessions then run on that thread too, so that they
    /// process the events of their streams without delay.
    fn lease_thread(&self) -> Option<LeaseThread> {
        None
    }

    /// The holders and the waiters of a lock.
    fn inspect(&self, _name: LockName) -> BoxFuture<Result<LockInfo, BackendError>> {
        failed(self.capabilities().lacks("show holders and waiters"))
    }

    /// All locks in use at or below `prefix`, by name.
    fn list(&self, _prefix: Option<LockName>) -> BoxFuture<Result<Vec<LockInfo>, BackendError>> {
        failed(self.capabilities().lacks("list locks"))
    }

    /// The present status of a token. Called only if the capabilities declare tokens.
    fn check_token(&self, _name: LockName, _token: Token) -> BoxFuture<Result<TokenStatus, BackendError>> {
        failed(self.capabilities().lacks_tokens("check a token"))
    }

    /// Ends another client's hold. Called only if the capabilities declare tokens.
    fn break_hold(&self, _order: BreakOrder) -> BoxFuture<Result<Broken, BackendError>> {
        failed(self.capabilities().lacks_tokens("break a hold"))
    }

    /// What the service's own settings imply for its locks, for `doctor`.
    fn findings(&self) -> BoxFuture<Result<Vec<Finding>, BackendError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    // The rest is for Lockkeeper's own service.

    /// The live sessions, by id.
    fn sessions(&self) -> BoxFuture<Result<Vec<SessionInfo>, BackendError>> {
        failed(self.capabilities().lacks_own_service("list sessions"))
    }

    /// The locks at and below `prefix`, then every change. May be called outside of a tokio runtime.
    fn watch(&self, _prefix: Option<LockName>) -> Result<Watch, BackendError> {
        Err(self.capabilities().lacks_own_service("watch locks").into())
    }

    /// A backup of the whole table. May be called outside of a tokio runtime.
    fn backup(&self) -> Result<Backup, BackendError> {
        Err(self.capabilities().lacks_own_service("make a backup").into())
    }

    /// Stores a name's number of permits, or removes it (L4).
    fn set_limit(&self, _name: LockName, _permits: Option<u32>) -> BoxFuture<Result<(), BackendError>> {
        failed(self.capabilities().lacks_own_service("store a number of permits"))
    }

    /// The status of the node that answers.
    fn status(&self) -> BoxFuture<Result<ServiceStatus, BackendError>> {
        failed(self.capabilities().lacks_own_service("say how it is"))
    }

    /// The status of each node of the URL, and of each further member that those name.
    fn nodes(&self) -> BoxFuture<Result<Vec<NodeReport>, BackendError>> {
        failed(self.capabilities().lacks_own_service("say how its nodes are"))
    }

    /// The members of the cluster.
    fn cluster(&self) -> BoxFuture<Result<ClusterInfo, BackendError>> {
        failed(self.capabilities().lacks_own_service("list its nodes"))
    }

    /// Changes the members of the cluster.
    fn change_members(&self, _change: MembersChange) -> BoxFuture<Result<(), BackendError>> {
        failed(self.capabilities().lacks_own_service("change its nodes"))
    }

    /// Transfers the leadership; returns the new leader.
    fn transfer(&self, _to: Option<u64>) -> BoxFuture<Result<u64, BackendError>> {
        failed(self.capabilities().lacks_own_service("hand its leadership over"))
    }
}

fn failed<T: Send + 'static>(error: Unsupported) -> BoxFuture<Result<T, BackendError>> {
    Box::pin(std::future::ready(Err(error.into())))
}

/// The transport of one session: a connection, a stream, a directory.
pub(crate) trait Conn: Send + Sync + 'static {
    /// Submits a call. The service must see a session's calls in the order of `submit` (R5), so the step that fixes the
    /// order happens here; [`Responder::send_when`] takes the rest. `submit` itself must not block.
    ///
    /// A call that does not wait in a queue is answered or fails within the backend's own time limit. A waiting acquire
    /// is answered when the request is granted or has ended.
    fn submit(&self, call: Call, responder: Responder);

    /// Why there is no connection, or the latest call on it has no answer, for users: the node and its message.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Descriptors that keep the hold of request `seq` alive in any process that has them.
    fn descriptors(&self, _seq: Seq) -> Vec<std::os::fd::RawFd> {
        Vec::new()
    }
}

/// One call of a session.
#[derive(Clone, Debug)]
#[allow(unreachable_pub, missing_docs, reason = "public to the simulator only")]
pub enum Call {
    /// Opens the session: with `fresh` a new one, otherwise the same one again, because the answer was lost.
    Open {
        fresh: bool,
    },
    KeepAlive,
    Acquire {
        seq: Seq,
        done_through: Seq,
        request: Arc<AcquireRequest>,
        /// The rest of the caller's wait, for services that enforce it; `None` is unlimited.
        wait_left: Option<Duration>,
    },
    Finish {
        seq: Seq,
        target: Seq,
        done_through: Seq,
    },
    /// Changes the hold `target`. Sent once: its caller may repeat it, under another seq.
    Change {
        seq: Seq,
        target: Seq,
        done_through: Seq,
        change: HoldChange,
    },
    Close,
}

/// A change of a hold that leaves it as it is if it is applied twice.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(unreachable_pub, missing_docs, reason = "public to the simulator only")]
pub enum HoldChange {
    SetValue(Arc<[u8]>),
    Downgrade,
}

/// The content of an acquire, as the service receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(unreachable_pub, missing_docs, reason = "public to the simulator only")]
pub struct AcquireRequest {
    pub names: Vec<LockName>,
    pub mode: Mode,
    pub subtree: bool,
    /// Queue if the lock is not free.
    pub wait: bool,
    pub keep_closed: Duration,
    /// The value of the hold from its grant on; empty where the service has none.
    pub value: Box<[u8]>,
    pub meta: Box<[u8]>,
    /// The span of the acquire, for our own service, if it is sampled.
    pub traceparent: Option<Box<str>>,
}

#[cfg(test)]
impl AcquireRequest {
    /// An exclusive hold of `x`.
    pub(crate) fn of_a_test() -> Arc<Self> {
        Arc::new(Self {
            names: vec![LockName::parse("x").expect("a valid name")],
            mode: Mode::Exclusive,
            subtree: false,
            wait: true,
            keep_closed: Duration::ZERO,
            value: Box::default(),
            meta: Box::default(),
            traceparent: None,
        })
    }
}

/// The call got no answer, or a refusal that may pass.
#[derive(Clone, Debug)]
#[allow(unreachable_pub, reason = "public to the simulator only")]
pub struct CallError {
    /// Whether the service may have executed the call (P12).
    pub sent: bool,
    /// The service's refusal, if it gave one.
    pub refusal: Option<Arc<BackendError>>,
}

impl CallError {
    /// Nothing was sent, or the service did nothing.
    pub(crate) const NOT_SENT: Self = Self::new(false);
    /// The service may have executed the call, or may still execute it.
    pub(crate) const IN_DOUBT: Self = Self::new(true);

    pub(crate) const fn new(sent: bool) -> Self {
        Self { sent, refusal: None }
    }

    /// The service did nothing, and said why.
    pub(crate) fn refused(refusal: BackendError) -> Self {
        Self { sent: false, refusal: Some(Arc::new(refusal)) }
    }
}

#[cfg(test)]
impl PartialEq for CallError {
    fn eq(&self, other: &Self) -> bool {
        self.sent == other.sent
    }
}

/// An operator's order to end a hold (B1–B3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BreakOrder {
    /// A name that the hold covers.
    pub name: LockName,
    /// The hold's token, so that a break never ends a later hold.
    pub token: Token,
    /// The reason, for the audit log.
    pub reason: String,
    /// The operator, for the audit log.
    pub by: String,
    /// End the hold without waiting for the holder to stop.
    pub now: bool,
}

/// The result of a break.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Broken {
    /// The holder has been asked to stop, or the hold has ended already.
    Done,
    /// No live hold has that token and covers that name.
    NotCurrent {
        /// The tokens of the live holds that cover the name, ascending.
        live: Vec<Token>,
    },
    /// The hold has ended but stays closed; only a break with `now` opens it.
    StillClosed,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("broken"),
            Self::NotCurrent { live } if live.is_empty() => {
                f.write_str("not held with that token, nor with another")
            }
            Self::NotCurrent { live } => {
                let live: Vec<String> = live.iter().map(Token::to_string).collect();
                write!(f, "not held with that token; live tokens: {}", live.join(", "))
            }
            Self::StillClosed => f.write_str("over already, but closed for a while; only `now` opens it"),
        }
    }
}
