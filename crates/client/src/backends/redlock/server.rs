//! One server of a quorum.
//!
//! A quorum works while a minority of its servers is down, so each unusable server is retried in the background.
//! Without a connection its calls fail at once: the other servers decide, and no caller waits for one that is down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_core::End;

use super::limit::RoundLimit;
use super::node::{EndLetter, NodeStore, TryLetter};
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Entry, Renewed, Store, Tried, Wake, Wakes};
use crate::backends::redis::{self, Identity, RedisStore};
use crate::error::{BackendError, BackendErrorKind};
use crate::io::LeaseThread;
use crate::url::Host;

/// Pauses between attempts to use an unusable server: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The address under which each `run_id` was first seen: one server under two addresses must not vote twice.
pub(super) type Met = Arc<Mutex<BTreeMap<String, String>>>;

/// One of the URL's servers.
pub(super) struct Server {
    /// As the URL names it.
    pub(super) name: String,
    /// The listener for its wake-ups.
    pub(super) wakes: Wakes,
    host: Host,
    settings: redis::Settings,
    worker: LeaseThread,
    met: Met,
    /// The name by which all servers know this client, so that one encoded call fits all of them.
    client: Arc<str>,
    /// Set at the first success: from then on its store keeps the connection up.
    known: OnceLock<Known>,
    /// Why it could not be used yet.
    down: Mutex<String>,
}

struct Known {
    store: Arc<RedisStore>,
    /// Why its independence of the other servers could not be checked, if so.
    unchecked: Option<String>,
}

/// Why a server can't be used.
#[derive(Debug)]
pub(super) enum Unfit {
    /// It may be usable later.
    Failed(BackendError),
    /// It is a replica, or the same server as another one.
    NotIndependent(String),
}

impl Server {
    pub(super) fn new(
        host: &Host,
        settings: redis::Settings,
        client: Arc<str>,
        worker: LeaseThread,
        met: Met,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: redis::shown(host),
            wakes: Wakes::default(),
            host: host.clone(),
            settings,
            worker,
            met,
            client,
            known: OnceLock::new(),
            down: Mutex::new("it has not answered yet".to_owned()),
        })
    }

    fn down(&self) -> MutexGuard<'_, String> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, if it has a connection at the moment.
    fn up(&self) -> Option<&Arc<RedisStore>> {
        self.known.get().map(|known| &known.store).filter(|store| store.is_up())
    }

    /// The server, if it has a connection at the moment; otherwise the reason.
    pub(super) fn store(&self) -> Result<Arc<RedisStore>, String> {
        self.up().cloned().ok_or_else(|| match self.known.get() {
            Some(known) => known.store.trouble().unwrap_or_else(|| "its connection is lost".to_owned()),
            None => self.down().clone(),
        })
    }

    /// Why its independence of the other servers could not be checked, if so.
    pub(super) fn unchecked(&self) -> Option<String> {
        self.known.get().and_then(|known| known.unchecked.clone())
    }

    /// Tries to use it. After a success its store keeps the connection up.
    pub(super) async fn connect(&self) -> Result<(), Unfit> {
        let tried = self.try_to_connect().await;
        if let Err(unfit) = &tried {
            let (Unfit::NotIndependent(why) | Unfit::Failed(BackendError { message: why, .. })) = unfit;
            self.down().clone_from(why);
        }
        tried
    }

    async fn try_to_connect(&self) -> Result<(), Unfit> {
        let failed = |error: crate::error::ConnectError| {
            Unfit::Failed(match error {
                crate::error::ConnectError::Backend(error) => error,
                other => BackendError::new(BackendErrorKind::Refused, other.to_string()),
            })
        };
        let wakes = self.wakes.clone();
        let opened = redis::open_store(&self.host, &self.settings, &self.worker, wakes, &self.client);
        let store = opened.await.map_err(failed)?;
        let unchecked = match store.identity().await {
            Ok(identity) => self.check(identity).map(|()| None)?,
            Err(error) => {
                tracing::warn!(server = self.name, %error, "whether this server is one of its own can't be checked");
                Some(error.message)
            }
        };
        // No other task sets it.
        let _ = self.known.set(Known { store, unchecked });
        Ok(())
    }

    fn check(&self, identity: Identity) -> Result<(), Unfit> {
        if let Some(primary) = identity.replica_of {
            return Err(Unfit::NotIndependent(format!(
                "{} is a replica of {primary}: it says what that server says, a moment later; name primaries that have \
                 nothing to do with each other",
                self.name
            )));
        }
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let other = met.entry(identity.run_id).or_insert_with(|| self.name.clone());
        if *other == self.name {
            return Ok(());
        }
        Err(Unfit::NotIndependent(format!(
            "{} and {other} are the same server (`run_id` of `INFO`): it would vote twice; name each server once",
            self.name
        )))
    }

    /// Retries until it can be used, or until the client is dropped.
    pub(super) async fn keep_trying(server: Weak<Self>) {
        let mut pause = PAUSES.0;
        loop {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
            let Some(server) = server.upgrade() else { return };
            match server.connect().await {
                Ok(()) => {
                    tracing::info!(server = server.name, "takes part again");
                    // Waiters have no place in its queue yet.
                    return server.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
                }
                Err(unfit) => tracing::debug!(server = server.name, ?unfit, "can't be used yet"),
            }
        }
    }
}

/// Nothing was sent.
const DOWN: CallError = CallError { sent: false };
/// No answer within the round's limit.
const LATE: CallError = CallError { sent: true };

impl NodeStore for Server {
    async fn attempt(&self, letter: &TryLetter, limit: &RoundLimit) -> Result<Tried, CallError> {
        let Some(store) = self.up() else { return Err(DOWN) };
        limit.within(store.attempt(letter.attempt.clone())).await.unwrap_or(Err(LATE))
    }

    async fn finish(&self, letter: &EndLetter, limit: &RoundLimit) -> Result<End, CallError> {
        let Some(store) = self.up() else { return Err(DOWN) };
        limit.within(store.finish(letter.entry.clone(), letter.doubt)).await.unwrap_or(Err(LATE))
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        match self.up() {
            Some(store) => store.renew(entries),
            None => Box::pin(async { Err(DOWN) }),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.store().err()
    }
}
