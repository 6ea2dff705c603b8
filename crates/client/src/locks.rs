//! The client of one lock service: makes locks, answers questions, shuts down.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_core::{LockName, Mode, NameError, TokenStatus, validate};

use crate::backend::{Backend, BreakOrder, Broken};
use crate::backends;
use crate::backup::Backup;
use crate::capabilities::{Capabilities, Fencing};
use crate::cluster::{ClusterInfo, MembersChange};
use crate::error::{AcquireError, BackendError, BackendErrorKind, ConnectError, Unsupported};
use crate::info::{Finding, LockInfo, ServiceStatus, SessionInfo};
use crate::kind::{Fenced, Kind, Unfenced};
use crate::lock::Lock;
use crate::machine::Spec;
use crate::session::Session;
use crate::watch::Watch;
use crate::worker::Worker;

/// A client of one lock service. Cheap to clone; clones share sessions.
pub struct Locks<F: Kind = Unfenced> {
    core: Arc<Core>,
    kind: PhantomData<F>,
}

/// What the clones of a client share.
pub(crate) struct Core {
    backend: Arc<dyn Backend>,
    label: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    worker: Option<Worker>,
    /// One session per distinct spec: all locks of a process share it (DESIGN section 6).
    sessions: BTreeMap<Spec, Arc<Session>>,
    /// Those without renewal belong to one hold each; a shutdown must find them all the same.
    unshared: Vec<Weak<Session>>,
    stopping: bool,
}

/// What [`Locks::shutdown`] could not finish in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ShutdownReport {
    /// Sessions that were closed, with everything in them given back.
    pub closed: usize,
    /// Sessions that weren't yet. What they hold is free at the latest when their ttl has passed.
    pub left: usize,
}

impl Locks<Unfenced> {
    /// Makes a client: `file:///dir`, `memory:`, …
    ///
    /// # Errors
    /// [`ConnectError`]: the URL is wrong, or the lock service can't do what it asks for, or is out of reach.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_as(url, &default_label()).await
    }

    /// As [`Locks::connect`], with a label of one's own for people who look: 1 to 256 bytes.
    ///
    /// # Errors
    /// As [`Locks::connect`].
    pub async fn connect_as(url: &str, label: &str) -> Result<Self, ConnectError> {
        Ok(Self::over(backends::connect(url).await?, label))
    }

    pub(crate) fn over(backend: Arc<dyn Backend>, label: &str) -> Self {
        // A label is for people: one that is too long is cut, not refused.
        let cut = (0..=label.len().min(lockkeeper_core::limits::LABEL_BYTES_MAX))
            .rev()
            .find(|&at| label.is_char_boundary(at))
            .unwrap_or(0);
        let label = label[..cut].to_owned();
        Self { core: Arc::new(Core { backend, label, state: Mutex::default() }), kind: PhantomData }
    }

    /// The same client, of which every hold has a token.
    ///
    /// # Errors
    /// [`Unsupported`], once and here, if this lock service can't fence (P11).
    pub fn fenced(self) -> Result<Locks<Fenced>, Unsupported> {
        match self.capabilities().fencing {
            Fencing::Tokens { .. } => Ok(Locks { core: self.core, kind: PhantomData }),
            Fencing::None { why, instead } => Err(Unsupported {
                backend: self.core.backend_name(),
                what: "give fencing tokens",
                why,
                instead,
            }),
        }
    }
}

impl<F: Kind> Locks<F> {
    /// A lock that one holder has alone.
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock<F> {
        self.lock(parse(name), Mode::Exclusive)
    }

    /// A lock that readers share and a writer has alone.
    pub fn rw(&self, name: impl AsRef<str>) -> RwLock<F> {
        RwLock {
            read: self.lock(parse(&name), Mode::Shared),
            write: self.lock(parse(&name), Mode::Exclusive),
        }
    }

    /// A lock that `permits` holders have side by side. All who use it must name the same number, unless one is
    /// stored for it.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock<F> {
        self.lock(parse(name), Mode::Permit { of: Some(permits) })
    }

    /// As [`Locks::semaphore`], with the number of permits that is in force already.
    pub fn semaphore_in_force(&self, name: impl AsRef<str>) -> Lock<F> {
        self.lock(parse(name), Mode::Permit { of: None })
    }

    /// Several names at once, all or nothing, with one token; two of these never deadlock.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock<F> {
        self.lock(names.into_iter().map(|name| LockName::parse(name.as_ref())).collect(), Mode::Exclusive)
    }

    /// A lock with a name that is parsed already, in any mode.
    pub(crate) fn lock(&self, names: Result<Vec<LockName>, NameError>, mode: Mode) -> Lock<F> {
        Lock::new(self.core.clone(), names, mode)
    }

    /// What this lock service can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.core.capabilities()
    }

    /// Who holds a lock and who waits for it.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn inspect(&self, name: &LockName) -> Result<LockInfo, BackendError> {
        self.core.backend.inspect(name.clone()).await
    }

    /// Every lock in use at or below `prefix`, by name.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn list(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        self.core.backend.list(prefix.cloned()).await
    }

    /// What a token is worth now. Old when it arrives: only a fence decides.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn check_token(&self, name: &LockName, token: u64) -> Result<TokenStatus, BackendError> {
        self.core.backend.check_token(name.clone(), token).await
    }

    /// Ends another's hold: an operator's last resort.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn break_hold(&self, order: BreakOrder) -> Result<Broken, BackendError> {
        validate::break_texts(&order.reason, &order.by)?;
        self.core.backend.break_hold(order).await
    }

    /// The live sessions of the service, by id: for operators.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Unsupported`] where the service knows no sessions or doesn't tell.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, BackendError> {
        self.core.backend.sessions().await
    }

    /// The state of the locks at and below `prefix`, then every change of them.
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`] where the service can't say. All else comes as an event.
    pub fn watch(&self, prefix: Option<&LockName>) -> Result<Watch, BackendError> {
        self.core.backend.watch(prefix.cloned())
    }

    /// Stores a semaphore's number of permits, which then goes for everyone whatever they ask for; `None` removes it.
    /// After a shrink, permits above the number drain.
    ///
    /// # Errors
    /// [`BackendError`]. With [`BackendErrorKind::Unreachable`] it may have been stored: look, then repeat it.
    pub async fn set_limit(&self, name: &LockName, permits: Option<u32>) -> Result<(), BackendError> {
        permits.map_or(Ok(()), validate::permits)?;
        self.core.backend.set_limit(name.clone(), permits).await
    }

    /// A backup of the whole table, from the node that leads: everything that was answered before this call is in it. From
    /// its file `lockkeeper restore` makes a new cluster.
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`] where the service makes none. All else comes with the parts.
    pub fn backup(&self) -> Result<Backup, BackendError> {
        self.core.backend.backup()
    }

    /// The nodes of the service: who takes part, and how far each is.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Unsupported`] where the service isn't ours.
    pub async fn cluster(&self) -> Result<ClusterInfo, BackendError> {
        self.core.backend.cluster().await
    }

    /// Changes who takes part in the service. It is in force when this returns: an added node follows, and votes later; a
    /// removed one is on its way out. [`Locks::cluster`] shows how far it is. Asking again does nothing.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Refused`] says in words why not.
    pub async fn change_members(&self, change: MembersChange) -> Result<(), BackendError> {
        self.core.backend.change_members(change).await
    }

    /// Hands the leadership of the service to node `to`, else to the voter that is furthest; returns who leads then. Clients
    /// follow by themselves.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendErrorKind::Refused`] says in words why not.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<u64, BackendError> {
        self.core.backend.transfer(to).await
    }

    /// How the node of the service that answers is.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn status(&self) -> Result<ServiceStatus, BackendError> {
        self.core.backend.status().await
    }

    /// What the service's own settings mean for its locks: persistence, eviction, poolers, caches.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn findings(&self) -> Result<Vec<Finding>, BackendError> {
        self.core.backend.findings().await
    }

    /// Gives everything back and closes all sessions; holds count as lost at once. Waits at most `limit`.
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

impl Core {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.backend.capabilities()
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.capabilities().backend
    }

    /// The session that all locks with this spec share; one without renewal is nobody else's.
    pub(crate) fn session(&self, spec: Spec) -> Result<Arc<Session>, AcquireError> {
        let mut state = self.state();
        if state.stopping {
            return Err(AcquireError::ShuttingDown);
        }
        if let Some(session) = state.sessions.get(&spec) {
            return Ok(session.clone());
        }
        let worker = match self.backend.worker().or_else(|| state.worker.clone()) {
            Some(worker) => worker,
            None => {
                let started = Worker::start("lockkeeper-lease").map_err(|error| {
                    let what =
                        "the thread that renews leases could not be started; raise the limit on threads";
                    BackendError::caused(BackendErrorKind::Operator, what, error)
                })?;
                state.worker.insert(started).clone()
            }
        };
        let session = Session::start(self.backend.clone(), spec, &self.label, worker);
        if spec.renew {
            state.sessions.insert(spec, session.clone());
        } else {
            state.unshared.retain(|session| session.strong_count() > 0);
            state.unshared.push(Arc::downgrade(&session));
        }
        Ok(session)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Kind> Clone for Locks<F> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), kind: PhantomData }
    }
}

/// A lock that readers share and a writer has alone. Fair: a waiting writer holds up later readers.
#[derive(Clone)]
pub struct RwLock<F: Kind = Unfenced> {
    read: Lock<F>,
    write: Lock<F>,
}

impl<F: Kind> RwLock<F> {
    /// Sets options for both sides.
    #[must_use]
    pub fn with(self, change: impl Fn(Lock<F>) -> Lock<F>) -> Self {
        Self { read: change(self.read), write: change(self.write) }
    }

    /// The readers' side.
    pub fn read(&self) -> Lock<F> {
        self.read.clone()
    }

    /// The writers' side.
    pub fn write(&self) -> Lock<F> {
        self.write.clone()
    }
}

fn parse(name: impl AsRef<str>) -> Result<Vec<LockName>, NameError> {
    LockName::parse(name.as_ref()).map(|name| vec![name])
}

/// `program[pid]@host`: what people look for first.
fn default_label() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let program =
        std::path::Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let host = nix::unistd::gethostname().unwrap_or_default();
    format!("{program}[{}]@{}", std::process::id(), host.to_string_lossy())
}
