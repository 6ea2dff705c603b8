//! What the clones of a client, and its locks, share: the backend and the sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::{Backend, BackendError, BackendErrorKind, Capabilities, Spec};

use crate::error::AcquireError;
use crate::recorder::Recorder;
use crate::session::Session;

/// State shared by the clones of a client.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) label: String,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) state: Mutex<LocksState>,
}

#[derive(Default)]
pub(crate) struct LocksState {
    lease_thread: Option<LeaseThread>,
    /// One session per distinct spec, shared by all locks of the client: the cost of keep-alives does not
    /// grow with the locks.
    pub(crate) sessions: BTreeMap<Spec, Arc<Session>>,
    /// Sessions without renewal belong to one hold each. They are kept here so that a shutdown finds them.
    pub(crate) unshared: Vec<Weak<Session>>,
    pub(crate) stopping: bool,
}

impl Core {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.backend.capabilities()
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.capabilities().backend
    }

    /// The session shared by all locks with this spec. A session without renewal is not shared.
    pub(crate) fn session(&self, spec: Spec) -> Result<Arc<Session>, AcquireError> {
        let mut state = self.state();
        if state.stopping {
            return Err(AcquireError::ShuttingDown);
        }
        if let Some(session) = state.sessions.get(&spec) {
            return Ok(session.clone());
        }
        let lease_thread = match self.backend.lease_thread().or_else(|| state.lease_thread.clone()) {
            Some(lease_thread) => lease_thread,
            None => {
                let started = LeaseThread::start("lockkeeper-lease").map_err(|error| {
                    let what =
                        "the thread that renews leases could not be started; raise the limit on threads";
                    BackendError::caused(BackendErrorKind::Operator, what, error)
                })?;
                state.lease_thread.insert(started).clone()
            }
        };
        let session = Session::start(self.backend.clone(), spec, &self.label, lease_thread);
        if spec.renew {
            state.sessions.insert(spec, session.clone());
        } else {
            state.unshared.retain(|session| session.strong_count() > 0);
            state.unshared.push(Arc::downgrade(&session));
        }
        Ok(session)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LocksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
