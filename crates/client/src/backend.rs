//! The interface between the library and a lock service.
//!
//! A new backend implements [`Backend`] and [`Conn`], adds its scheme in `backends/mod.rs`, one constructor to the
//! contract suite, and one page to `docs/backends/`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockName, Mode, Seq, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use crate::backup::Backup;
use crate::capabilities::Capabilities;
use crate::cluster::{ClusterInfo, MembersChange};
use crate::error::{BackendError, Unsupported};
use crate::info::{Finding, LockInfo, ServiceStatus, SessionInfo};
use crate::io::LeaseThread;
use crate::machine::{Answer, Push, Spec};
use crate::time::Clock;
use crate::watch::Watch;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// One lock service, as identified by the URL.
pub(crate) trait Backend: Send + Sync + 'static {
    fn capabilities(&self) -> &Capabilities;

    /// The clock on which its leases are measured.
    fn clock(&self) -> Clock {
        Clock::Boot
    }

    /// The backend's I/O thread, if it has one. Its sessions then send keep-alives on that thread too, so that they
    /// process the events of their streams without delay.
    fn worker(&self) -> Option<LeaseThread> {
        None
    }

    /// Creates the connection for one session. Does no I/O yet.
    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn>;

    /// The holders and the waiters of a lock.
    fn inspect(&self, name: LockName) -> BoxFuture<Result<LockInfo, BackendError>>;

    /// All locks in use at or below `prefix`, by name.
    fn list(&self, prefix: Option<LockName>) -> BoxFuture<Result<Vec<LockInfo>, BackendError>>;

    /// The present status of a token.
    fn check_token(&self, name: LockName, token: u64) -> BoxFuture<Result<TokenStatus, BackendError>>;

    /// Ends another client's hold.
    fn break_hold(&self, order: BreakOrder) -> BoxFuture<Result<Broken, BackendError>>;

    /// The live sessions, by id.
    fn sessions(&self) -> BoxFuture<Result<Vec<SessionInfo>, BackendError>> {
        let error = self.not_ours("list sessions");
        Box::pin(async { Err(error) })
    }

    /// The locks at and below `prefix`, then every change. Needs no runtime.
    fn watch(&self, _prefix: Option<LockName>) -> Result<Watch, BackendError> {
        Err(self.not_ours("watch locks"))
    }

    /// A backup of the whole table. Needs no runtime.
    fn backup(&self) -> Result<Backup, BackendError> {
        Err(self.not_ours("make a backup"))
    }

    /// Stores a name's number of permits, or removes it (L4).
    fn set_limit(&self, _name: LockName, _permits: Option<u32>) -> BoxFuture<Result<(), BackendError>> {
        let error = self.not_ours("store a number of permits");
        Box::pin(async { Err(error) })
    }

    /// The status of the node that answers.
    fn status(&self) -> BoxFuture<Result<ServiceStatus, BackendError>> {
        let error = self.not_ours("say how it is");
        Box::pin(async { Err(error) })
    }

    /// The members of the cluster.
    fn cluster(&self) -> BoxFuture<Result<ClusterInfo, BackendError>> {
        let error = self.not_ours("list its nodes");
        Box::pin(async { Err(error) })
    }

    /// Changes the members of the cluster.
    fn change_members(&self, _change: MembersChange) -> BoxFuture<Result<(), BackendError>> {
        let error = self.not_ours("change its nodes");
        Box::pin(async { Err(error) })
    }

    /// Transfers the leadership; returns the new leader.
    fn transfer(&self, _to: Option<u64>) -> BoxFuture<Result<u64, BackendError>> {
        let error = self.not_ours("hand its leadership over");
        Box::pin(async { Err(error) })
    }

    /// What the service's own settings imply for its locks, for `doctor`.
    fn findings(&self) -> BoxFuture<Result<Vec<Finding>, BackendError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The error for an ability that only Lockkeeper's own service has (P11).
    fn not_ours(&self, what: &'static str) -> BackendError {
        let backend = self.capabilities().backend;
        let (why, instead) = ("only our own service can", "use `lockkeeper://`");
        Unsupported { backend, what, why, instead }.into()
    }
}

/// The transport of one session: a connection, a stream, a directory.
pub(crate) trait Conn: Send + Sync + 'static {
    /// Submits a call. The service must see a session's calls in the order of `submit` (R5), so the step that fixes the
    /// order happens here; the future does the rest on the task that polls it. `submit` itself must not block.
    ///
    /// A call that does not wait in a queue is answered or fails within the backend's own time limit. The future of a
    /// waiting acquire resolves when the request is granted or has ended. Dropping a future discards the answer; the
    /// call may have been executed.
    fn submit(&self, call: Call) -> Submitted;

    /// The error of the latest call without an answer, for users: the node and its message.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Descriptors that keep the hold of request `seq` alive in any process that has them.
    fn descriptors(&self, _seq: Seq) -> Vec<std::os::fd::RawFd> {
        Vec::new()
    }
}

/// The state of a submitted call.
pub(crate) enum Submitted {
    /// Answered or failed already.
    Answered(Result<Answer, CallError>),
    /// The call proceeds while this future is polled.
    UnderWay(BoxFuture<Result<Answer, CallError>>),
}

impl Submitted {
    pub(crate) fn under_way(
        carried: impl Future<Output = Result<Answer, CallError>> + Send + 'static,
    ) -> Self {
        Self::UnderWay(Box::pin(carried))
    }
}

impl IntoFuture for Submitted {
    type Output = Result<Answer, CallError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        match self {
            Self::Answered(result) => Box::pin(std::future::ready(result)),
            Self::UnderWay(carried) => carried,
        }
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
        want: Arc<Wanted>,
        /// The rest of the caller's wait, for services that enforce it; `None` is unlimited.
        wait_left: Option<Duration>,
    },
    Finish {
        seq: Seq,
        target: Seq,
        done_through: Seq,
    },
    Close,
}

/// The content of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(unreachable_pub, missing_docs, reason = "public to the simulator only")]
pub struct Wanted {
    pub names: Vec<LockName>,
    pub mode: Mode,
    pub subtree: bool,
    /// Queue if the lock is not free.
    pub wait: bool,
    pub keep_closed: Duration,
    pub meta: Box<[u8]>,
}

/// The call got no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(unreachable_pub, reason = "public to the simulator only")]
pub struct CallError {
    /// Whether the service may have seen the call (P12).
    pub sent: bool,
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
