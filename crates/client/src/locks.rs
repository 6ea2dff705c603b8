//! The client of one lock service: creates locks, answers queries, shuts down.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

#[cfg(doc)]
use lockkeeper_backend::BackendErrorKind;
use lockkeeper_backend::{
    Administration, Backend, BackendError, Backup, BootInstant, BreakOrder, Broken, Capabilities,
    ClusterInfo, ConnectError, EndSessionOrder, EndedSession, Finding, LockInfo, MembersChange, NodeReport,
    ServiceStatus, SessionInfo, Unsupported, Watch,
};
use lockkeeper_core::{LockName, Mode, NameError, Token, TokenStatus, validate};

use crate::backends;
use crate::kind::{Fenced, Kind, Unfenced};
use crate::lock::Lock;
use crate::locks_core::Core;
use crate::recipes::{Election, Partitions, Striped};
use crate::recorder::{self, Recorder};
use crate::session::Session;

/// A client of one lock service. Cheap to clone; clones share sessions.
pub struct Locks<F: Kind = Unfenced> {
    core: Arc<Core>,
    kind: PhantomData<F>,
}

/// The result of [`Locks::shutdown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ShutdownReport {
    /// Sessions that were closed, with all their holds released.
    pub closed: usize,
    /// Sessions not closed in time. Their holds are free once the ttl has passed.
    pub left: usize,
}

impl Locks<Unfenced> {
    /// Creates a client of the lock service at `url`: `file:///dir`, `memory:`, …
    ///
    /// # Errors
    /// [`ConnectError`]: the URL is invalid, or the lock service lacks an ability that the URL requests, or
    /// is unreachable.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_as(url, &default_label()).await
    }

    /// As [`Locks::connect`], with an explicit label, which is shown to operators. It is cut to 256 bytes.
    ///
    /// # Errors
    /// As [`Locks::connect`].
    pub async fn connect_as(url: &str, label: &str) -> Result<Self, ConnectError> {
        let connected = backends::connect(url).await?;
        let by_environment = || std::env::var_os(recorder::FILE_VARIABLE).filter(|file| !file.is_empty());
        let recorder = match connected.history.map(Into::into).or_else(by_environment) {
            Some(file) => Some(Recorder::open(file.as_ref(), url, label)?),
            None => None,
        };
        Ok(Self::recorded(connected.backend, label, recorder))
    }

    /// A client of any lock service, with this label, which is cut to 256 bytes.
    pub fn over(backend: Arc<dyn Backend>, label: &str) -> Self {
        Self::recorded(backend, label, None)
    }

    fn recorded(backend: Arc<dyn Backend>, label: &str, recorder: Option<Recorder>) -> Self {
        // The label is informative only: one that is too long is cut, not refused.
        let cut = (0..=label.len().min(lockkeeper_core::limits::LABEL_BYTES_MAX))
            .rev()
            .find(|&at| label.is_char_boundary(at))
            .unwrap_or(0);
        let label = label[..cut].to_owned();
        Self { core: Arc::new(Core { backend, label, recorder, state: Mutex::default() }), kind: PhantomData }
    }

    /// Converts the client to one on which every hold has a token.
    ///
    /// # Errors
    /// [`Unsupported`] if this lock service issues no tokens (P11). Acquires on the returned client need no
    /// such check.
    pub fn fenced(self) -> Result<Locks<Fenced>, Unsupported> {
        match self.capabilities().has_tokens() {
            true => Ok(Locks { core: self.core, kind: PhantomData }),
            false => Err(self.capabilities().lacks_tokens("give fencing tokens")),
        }
    }
}

impl<F: Kind> Locks<F> {
    /// A lock with one holder at a time. Not reentrant: a task that acquires it again waits for itself; see
    /// [`Guard::reenter`](crate::Guard::reenter).
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock<F> {
        self.lock(parse(name), Mode::Exclusive)
    }

    /// A lock that readers share and a writer holds alone.
    pub fn rw(&self, name: impl AsRef<str>) -> RwLock<F> {
        RwLock {
            read: self.lock(parse(&name), Mode::Shared),
            write: self.lock(parse(&name), Mode::Exclusive),
        }
    }

    /// A lock with up to `permits` holders at a time. All clients must give the same number, unless a limit
    /// is stored for the name.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock<F> {
        self.lock(parse(name), Mode::Permit { of: Some(permits) })
    }

    /// As [`Locks::semaphore`], with the number of permits that is in force already.
    pub fn semaphore_in_force(&self, name: impl AsRef<str>) -> Lock<F> {
        self.lock(parse(name), Mode::Permit { of: None })
    }

    /// Several names at once, all or nothing, with one token; two such requests never deadlock.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock<F> {
        self.lock(names.into_iter().map(|name| LockName::parse(name.as_ref())).collect(), Mode::Exclusive)
    }

    /// An election of this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election<F> {
        let name = LockName::parse(name.as_ref());
        let lock = self.lock(name.clone().map(|name| vec![name]), Mode::Exclusive);
        Election::new(self.core.backend.clone(), name, lock)
    }

    /// Partitions 0 to `count - 1`, at most 65,536, that a group of this name divides among its members.
    pub fn partitions(&self, name: impl AsRef<str>, count: u32) -> Partitions<F> {
        Partitions::new(self.clone(), self.core.backend.clone(), name.as_ref(), count)
    }

    /// A rate limit: at most `count` acquires within any period of `per`. A semaphore whose permits stay
    /// closed for `per` after their holds; if only the starts count, release a permit at once.
    pub fn rate(&self, name: impl AsRef<str>, count: u32, per: Duration) -> Lock<F> {
        self.semaphore(name, count).keep_closed(per)
    }

    /// A name that is split into `stripes` locks, for keys that need not exclude each other: reduces
    /// contention.
    ///
    /// # Panics
    /// If `stripes` is 0.
    pub fn striped(&self, name: impl AsRef<str>, stripes: u32) -> Striped<F> {
        Striped::new(self.clone(), name.as_ref(), stripes)
    }

    /// A lock in any mode for parsed names.
    pub(crate) fn lock(&self, names: Result<Vec<LockName>, NameError>, mode: Mode) -> Lock<F> {
        Lock::new(self.core.clone(), names, mode)
    }

    /// The abilities of this lock service.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.core.capabilities()
    }

    /// The holders and the waiters of a lock.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo, BackendError> {
        let asked = self.asked();
        let info = self.core.backend.inspect(LockName::parse(name.as_ref())?).await?;
        if let (Some(recorder), Some(asked)) = (&self.core.recorder, asked) {
            recorder.listed(&info, asked);
        }
        Ok(info)
    }

    /// All locks in use at or below `prefix`, by name.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn list(&self, prefix: Option<&str>) -> Result<Vec<LockInfo>, BackendError> {
        self.core.backend.list(prefix.map(LockName::parse).transpose()?).await
    }

    /// The present status of a token. The answer may be stale on arrival: only a fence gives a guarantee.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn check_token(
        &self,
        name: impl AsRef<str>,
        token: Token,
    ) -> Result<TokenStatus, BackendError> {
        self.needs_tokens("check a token")?;
        let (name, asked) = (LockName::parse(name.as_ref())?, self.asked());
        let status = self.core.backend.check_token(name.clone(), token).await?;
        if let (Some(recorder), Some(asked)) = (&self.core.recorder, asked) {
            recorder.status(&name, token, asked, &status);
        }
        Ok(status)
    }

    /// The present moment, if this client writes a history.
    fn asked(&self) -> Option<BootInstant> {
        self.core.recorder.as_ref().map(|_| BootInstant::now())
    }

    /// Ends another client's hold: an operator's last resort.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn break_hold(&self, order: BreakOrder) -> Result<Broken, BackendError> {
        self.needs_tokens("break a hold, which is named by its token")?;
        validate::break_texts(&order.reason, &order.by)?;
        self.core.backend.break_hold(order).await
    }

    /// Checked here for all backends, so that none is called for an operation on tokens that it does not
    /// issue (P11).
    fn needs_tokens(&self, what: &'static str) -> Result<(), BackendError> {
        match self.capabilities().has_tokens() {
            true => Ok(()),
            false => Err(self.capabilities().lacks_tokens(what).into()),
        }
    }

    fn administration(&self, what: &'static str) -> Result<&dyn Administration, Unsupported> {
        self.core.backend.administration().ok_or_else(|| self.capabilities().lacks_own_service(what))
    }

    /// The live sessions of the service, by id, for operators.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Unsupported`] where the service has no sessions or does not list
    /// them.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, BackendError> {
        self.administration("list sessions")?.sessions().await
    }

    /// Ends a session of another client with all its holds and waiters, as if the client were gone: for a
    /// host that has died and whose ttl is long.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Unsupported`] where the service has no sessions.
    pub async fn end_session(&self, order: EndSessionOrder) -> Result<EndedSession, BackendError> {
        validate::break_texts(&order.reason, &order.by)?;
        self.administration("end sessions")?.end_session(order).await
    }

    /// The state of the locks at and below `prefix`, then every change of them.
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`] where the service has no watches. Other errors arrive as events.
    pub fn watch(&self, prefix: Option<&str>) -> Result<Watch, BackendError> {
        self.core.backend.watch(prefix.map(LockName::parse).transpose()?)
    }

    /// Stores a semaphore's limit, which overrides the limits given in requests; `None` removes it. After a
    /// reduction, permits in excess are not revoked: the number falls as they are released.
    ///
    /// # Errors
    /// [`BackendError`]. With [`BackendErrorKind::Unreachable`] the limit may have been stored: check it,
    /// then repeat the call.
    pub async fn set_limit(&self, name: impl AsRef<str>, permits: Option<u32>) -> Result<(), BackendError> {
        permits.map_or(Ok(()), validate::permits)?;
        self.administration("store a number of permits")?
            .set_limit(LockName::parse(name.as_ref())?, permits)
            .await
    }

    /// A backup of the whole table from the leader. It contains everything acknowledged before this call.
    /// `lockkeeper restore` makes a new cluster from its file.
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`] where the service makes no backups. Other errors arrive in place of
    /// a part.
    pub fn backup(&self) -> Result<Backup, BackendError> {
        self.administration("make a backup")?.backup()
    }

    /// The nodes of the service: the members of the cluster and their progress.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Unsupported`] where the service is not Lockkeeper's own.
    pub async fn cluster(&self) -> Result<ClusterInfo, BackendError> {
        self.administration("list its nodes")?.cluster().await
    }

    /// Changes the members of the cluster. The change is in force on return: an added node is a learner first
    /// and a voter later; a removed node is leaving. [`Locks::cluster`] shows the progress. Repeating a
    /// change has no effect. A node that is removed may end before it has answered: the URL needs the address
    /// of another one.
    ///
    /// # Errors
    /// [`BackendError`]; the message of [`BackendErrorKind::Refused`] gives the reason.
    pub async fn change_members(&self, change: MembersChange) -> Result<(), BackendError> {
        self.administration("change its nodes")?.change_members(change).await
    }

    /// Transfers the leadership of the service to node `to`, or else to the voter with the longest log;
    /// returns the new leader. Clients reconnect on their own.
    ///
    /// # Errors
    /// [`BackendError`]; the message of [`BackendErrorKind::Refused`] gives the reason.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<u64, BackendError> {
        self.administration("hand its leadership over")?.transfer(to).await
    }

    /// The status of the node that answers.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn status(&self) -> Result<ServiceStatus, BackendError> {
        self.administration("say how it is")?.status().await
    }

    /// The status of every node: the nodes of the URL in its order, then further members that they report.
    /// Needs no majority. All nodes are called at once; one without an answer takes up to 5 s.
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`] where the service is not Lockkeeper's own.
    pub async fn nodes(&self) -> Result<Vec<NodeReport>, BackendError> {
        self.administration("say how its nodes are")?.nodes().await
    }

    /// What the service's own settings (persistence, eviction, poolers, caches) imply for its locks.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn findings(&self) -> Result<Vec<Finding>, BackendError> {
        self.core.backend.findings().await
    }

    /// Releases everything and closes all sessions; holds count as lost at once. Waits for at most `limit`. A
    /// [`Watch`] goes on until it is dropped.
    pub async fn shutdown(self, limit: Duration) -> ShutdownReport {
        let sessions: Vec<Arc<Session>> = {
            let mut state = self.core.state();
            state.stopping = true;
            let unshared = std::mem::take(&mut state.unshared);
            let shared = std::mem::take(&mut state.sessions).into_values();
            shared.chain(unshared.iter().filter_map(Weak::upgrade)).collect()
        };
        sessions.iter().for_each(|session| session.shut_down());
        let all_closed = async {
            for session in &sessions {
                session.closed().await;
            }
        };
        let _ = tokio::time::timeout(limit, all_closed).await;
        let closed = sessions.iter().filter(|session| session.is_closed()).count();
        ShutdownReport { closed, left: sessions.len() - closed }
    }
}

impl<F: Kind> Clone for Locks<F> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), kind: PhantomData }
    }
}

impl<F: Kind> fmt::Debug for Locks<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (backend, label) = (self.core.backend_name(), &self.core.label);
        f.debug_struct("Locks").field("backend", &backend).field("label", label).finish_non_exhaustive()
    }
}

/// A lock that readers share and a writer holds alone. Fair: a waiting writer blocks later readers.
#[derive(Clone, Debug)]
pub struct RwLock<F: Kind = Unfenced> {
    read: Lock<F>,
    write: Lock<F>,
}

impl<F: Kind> RwLock<F> {
    /// Sets options for both locks.
    #[must_use]
    pub fn with(self, change: impl Fn(Lock<F>) -> Lock<F>) -> Self {
        Self { read: change(self.read), write: change(self.write) }
    }

    /// The readers' lock.
    pub fn read(&self) -> Lock<F> {
        self.read.clone()
    }

    /// The writer's lock.
    pub fn write(&self) -> Lock<F> {
        self.write.clone()
    }
}

fn parse(name: impl AsRef<str>) -> Result<Vec<LockName>, NameError> {
    LockName::parse(name.as_ref()).map(|name| vec![name])
}

/// `program[pid]@host`.
fn default_label() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let program =
        std::path::Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let host = nix::unistd::gethostname().unwrap_or_default();
    format!("{program}[{}]@{}", std::process::id(), host.to_string_lossy())
}
