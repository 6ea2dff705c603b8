//! One server of a quorum.
//!
//! A quorum works while a minority of its servers is down, so each unusable server is retried in the
//! background. Without a connection its calls fail at once: the other servers decide, and no caller waits for
//! one that is down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Attempt, Entry, Renewed, Store, Tried, Wake, Wakes};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, CallError, ConnectError, Host};
use lockkeeper_core::End;
use lockkeeper_redis as redis;
use lockkeeper_redis::{Identity, RedisStore};
use tokio::time::sleep;

/// Pauses between attempts to use an unusable server: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Settings and state that all servers of a quorum share.
pub(super) struct QuorumSettings {
    pub(super) redis: redis::Settings,
    /// This client's random name, the same at all servers.
    pub(super) client: String,
    pub(super) lease_thread: LeaseThread,
    /// The address under which each `run_id` was first seen: one server under two addresses must not vote
    /// twice.
    pub(super) run_ids: Mutex<BTreeMap<String, String>>,
}

/// One of the URL's servers.
pub(super) struct QuorumServer {
    /// As the URL names it.
    pub(super) name: String,
    /// The listener for its wake-ups.
    pub(super) wakes: Wakes,
    host: Host,
    settings: Arc<QuorumSettings>,
    /// Set at the first success: from then on the store reconnects by itself. `Err`: why no attempt has
    /// succeeded yet.
    opened: Mutex<Result<OpenedServer, String>>,
}

struct OpenedServer {
    store: Arc<RedisStore>,
    /// The error of the check whether this server is independent of the others; `None`: checked.
    unchecked: Option<String>,
}

/// Why a server can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// It may be usable later.
    #[error("{}", .0.message)]
    Failed(BackendError),
    /// It is a replica, or the same server as another one.
    #[error("{0}")]
    NotIndependent(String),
}

impl From<ConnectError> for Unusable {
    fn from(error: ConnectError) -> Self {
        Self::Failed(match error {
            ConnectError::Backend(error) => error,
            other => BackendError::new(BackendErrorKind::Refused, other.to_string()),
        })
    }
}

impl QuorumServer {
    pub(super) fn new(host: &Host, settings: &Arc<QuorumSettings>) -> Arc<Self> {
        Arc::new(Self {
            name: host.address(redis::PORT),
            wakes: Wakes::default(),
            host: host.clone(),
            settings: settings.clone(),
            opened: Mutex::new(Err("it has not answered yet".to_owned())),
        })
    }

    fn opened(&self) -> MutexGuard<'_, Result<OpenedServer, String>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's store, if it has a connection at the moment; otherwise the reason.
    pub(super) fn usable(&self) -> Result<Arc<RedisStore>, String> {
        match &*self.opened() {
            Ok(opened) if opened.store.is_up() => Ok(opened.store.clone()),
            Ok(opened) => Err(opened.store.trouble().unwrap_or_else(|| "its connection is lost".to_owned())),
            Err(why) => Err(why.clone()),
        }
    }

    /// Whether it has been usable at any time so far.
    pub(super) fn is_open(&self) -> bool {
        self.opened().is_ok()
    }

    /// The error of the check whether this server is independent of the others; `None`: checked.
    pub(super) fn unchecked(&self) -> Option<String> {
        self.opened().as_ref().ok()?.unchecked.clone()
    }

    /// Tries to connect to it. After a success its store keeps the connection up.
    pub(super) async fn connect(&self) -> Result<(), Unusable> {
        let (opened, result) = match self.open().await {
            Ok(opened) => (Ok(opened), Ok(())),
            Err(unusable) => (Err(unusable.to_string()), Err(unusable)),
        };
        *self.opened() = opened;
        result
    }

    async fn open(&self) -> Result<OpenedServer, Unusable> {
        let QuorumSettings { redis, client, lease_thread, .. } = &*self.settings;
        let store = redis::open_store(&self.host, redis, lease_thread, self.wakes.clone(), client).await?;
        let unchecked = match store.identity().await {
            Ok(identity) => self.check(identity).map(|()| None)?,
            Err(error) => {
                tracing::warn!(server = self.name, %error, "whether this server is one of its own can't be checked");
                Some(error.message)
            }
        };
        Ok(OpenedServer { store, unchecked })
    }

    fn check(&self, identity: Identity) -> Result<(), Unusable> {
        if let Some(primary) = identity.replica_of {
            return Err(Unusable::NotIndependent(format!(
                "{} is a replica of {primary}: it says what that server says, a moment later; name primaries that have \
                 nothing to do with each other",
                self.name
            )));
        }
        let mut run_ids = self.settings.run_ids.lock().unwrap_or_else(PoisonError::into_inner);
        let first = run_ids.entry(identity.run_id).or_insert_with(|| self.name.clone());
        if *first == self.name {
            return Ok(());
        }
        Err(Unusable::NotIndependent(format!(
            "{} and {first} are the same server (`run_id` of `INFO`): it would vote twice; name each server once",
            self.name
        )))
    }

    /// Retries until it can be used, or until the client is dropped.
    pub(super) async fn keep_trying(server: Weak<Self>) {
        let mut pause = PAUSES.0;
        loop {
            sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
            let Some(server) = server.upgrade() else { return };
            match server.connect().await {
                Ok(()) => {
                    tracing::info!(server = server.name, "takes part again");
                    // Waiters have no place in its queue yet.
                    return server.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
                }
                Err(unusable) => tracing::debug!(server = server.name, ?unusable, "can't be used yet"),
            }
        }
    }

    /// The server's store, for a call.
    fn for_call(&self) -> Result<Arc<RedisStore>, CallError> {
        self.usable().map_err(|_| CallError::NOT_SENT)
    }
}

impl Store for QuorumServer {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.for_call()?.attempt(attempt).await })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move { self.for_call()?.renew(entries).await })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.for_call()?.finish(entry, doubt).await })
    }

    fn trouble(&self) -> Option<String> {
        self.usable().err()
    }
}
