//! `redlock://`: a majority of independent Redis servers.
//!
//! Each server is a [`RedisStore`](crate::backends::redis) of its own. The quorum over them ([`store`]) is a store
//! again, with sessions on top as for any other ([`leased`](crate::backends::leased)). A hold is one entry on each
//! server, and lasts as long as a majority of the servers has its entry.
//!
//! Why a session's deadline is safe (P5), provided that the servers keep the writes that they acknowledged: a hold
//! ends at the client before a majority of its entries can have expired.
//! - An entry is set for `ttl + 2 ms`. The session's deadline is `ttl - 1 %` after the time just before its
//!   keep-alive was sent. So, whenever an attempt began, the validity that is left when a majority has granted is
//!   `ttl - elapsed - (1 % + 2 ms)` for the entries' own ttl, as Redlock requires. If that is negative, the attempt
//!   fails.
//! - The deadline counts from the latest acknowledged keep-alive. That was acknowledged only if for every hold a
//!   *majority* renewed the entry; a majority that only may have renewed it is not enough. For a request that did not
//!   hold yet, only entries count that were set by a round which began after that keep-alive was sent (`Claim::win`).
//! - An entry's id on a server is never used again after it was taken back there, and a round asks for each id once.
//!   So a grant was set by the round that receives it, and never earlier.
//! - A renewal never creates an entry: a server that lost one stays without it, and the hold lasts as long as a
//!   majority is left. To set the entry there again would require to know that no other client held the lock there
//!   meanwhile.
//!
//! A failed attempt leaves no entries: all grants of a round without a majority are taken back on every server,
//! before that server is asked again, also if the caller is gone or the server did not answer.

mod book;
mod carry;
mod claim;
mod limit;
mod node;
mod renewal;
mod round;
mod server;
mod store;
mod taking_back;
mod tally;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockName, TokenStatus};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use self::claim::majority_of;
use self::node::Node;
use self::server::{Met, Server, Unfit};
use self::store::RedlockStore;
use crate::backend::{Backend, BoxFuture, BreakOrder, Broken, Conn};
use crate::backends::leased::{LeasedConn, Wakes};
use crate::backends::redis::{self, RedisStore};
use crate::capabilities::{Capabilities, Fencing, Promise, Reach};
use crate::error::{BackendError, BackendErrorKind, ConnectError, Unsupported};
use crate::info::{Finding, LockInfo};
use crate::io::LeaseThread;
use crate::machine::{Push, Spec};
use crate::time::BootInstant;
use crate::url::Url;

/// With fewer, no server may fail.
const SERVERS_MIN: usize = 3;
/// How long inspections wait for the other servers once a majority has answered.
const REST: Duration = Duration::from_millis(300);
/// Time limit of connecting and of inspections; a single server's limit is shorter.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);

/// Creates a client, if a majority of the servers can be used.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = settings(url)?;
    let worker = redis::worker()?;
    let met = Met::default();
    let client: Arc<str> = RedisStore::new_client()?.into();
    let new = |host| Server::new(host, settings.clone(), client.clone(), worker.clone(), met.clone());
    let servers: Vec<Arc<Server>> = url.hosts.iter().map(new).collect();
    first_contact(&servers, &worker).await?;
    let node = |server: &Arc<Server>| Node {
        name: server.name.clone(),
        wakes: server.wakes.clone(),
        store: server.clone(),
    };
    let wakes = Wakes::default();
    let nodes = servers.iter().map(node).collect();
    let store = Arc::new(RedlockStore::new(nodes, worker.clone(), wakes.clone(), BootInstant::now));
    Ok(Arc::new(Redlock { servers, store, wakes, worker }))
}

/// Parses the URL's settings, without its hosts.
fn settings(url: &Url) -> Result<redis::Settings, ConnectError> {
    if url.parameter::<String>("fencing", "left out")?.is_some() {
        let what = "draw tokens (`?fencing=`)";
        return Err(Unsupported { backend: "redlock", what, why: NO_TOKENS.0, instead: NO_TOKENS.1 }.into());
    }
    url.only_parameters(&["prefix", "tls-ca"])?;
    let shown: Vec<String> = url.hosts.iter().map(redis::shown).collect();
    if shown.len() < SERVERS_MIN {
        let wanted = "a list of 3 or more independent servers, better an odd number: with fewer none may fail; use \
                      `redis://` for one server";
        return Err(url.bad_part(shown.join(","), wanted).into());
    }
    if let Some((_, twice)) = shown.iter().enumerate().find(|&(at, name)| shown[..at].contains(name)) {
        return Err(url.bad_part(twice.clone(), "named once: a server must not vote twice").into());
    }
    redis::Settings::of(url, url.scheme == "redlocks")
}

/// Connects to all servers at once. A majority must succeed; the others are retried in the background.
async fn first_contact(servers: &[Arc<Server>], worker: &LeaseThread) -> Result<(), ConnectError> {
    let majority = majority_of(servers.len());
    let (says, mut said) = unbounded_channel();
    for server in servers {
        let (server, says) = (server.clone(), says.clone());
        worker.run(Box::pin(async move {
            let tried = server.connect().await;
            let failed = tried.is_err();
            // The caller may have stopped waiting.
            let _ = says.send(tried);
            drop(says);
            if failed {
                let weak = Arc::downgrade(&server);
                drop(server);
                Server::keep_trying(weak).await;
            }
        }));
    }
    drop(says);
    let (mut up, mut failures) = (0, Vec::new());
    let mut deadline = Instant::now() + QUESTION_LIMIT;
    while let Ok(Some(tried)) = timeout_at(deadline, said.recv()).await {
        match tried {
            Ok(()) => up += 1,
            Err(Unfit::NotIndependent(why)) => {
                return Err(BackendError::new(BackendErrorKind::Refused, why).into());
            }
            Err(Unfit::Failed(error)) => failures.push(error),
        }
        if up == majority {
            deadline = deadline.min(Instant::now() + REST);
        }
    }
    let down = |server: &&Arc<Server>| server.store().is_err();
    if up >= majority {
        for server in servers.iter().filter(down) {
            let why = server.store().err().unwrap_or_default();
            tracing::warn!(server = server.name, why, "can't be used; the others are a majority");
        }
        return Ok(());
    }
    let each: Vec<String> = servers
        .iter()
        .map(|server| match server.store() {
            Ok(_) => format!("{}: answers", server.name),
            Err(why) => format!("{}: {why}", server.name),
        })
        .collect();
    let kind = failures.iter().map(|error| error.kind).find(|kind| *kind != BackendErrorKind::Unreachable);
    let what = format!("{up} of {} servers can be used, {majority} must: {}", servers.len(), each.join("; "));
    Err(BackendError::new(kind.unwrap_or(BackendErrorKind::Unreachable), what).into())
}

struct Redlock {
    servers: Vec<Arc<Server>>,
    store: Arc<RedlockStore<Server>>,
    wakes: Wakes,
    worker: LeaseThread,
}

const NO_TOKENS: (&str, &str) = (
    "independent servers have no one counter that a majority could draw from in one step, and counters of their own \
     would cross",
    "use `lockkeeper://`, `postgres://` or `etcd://`, whose tokens come from one place",
);

static CAPABILITIES: Capabilities = Capabilities {
    backend: "redlock",
    reach: Reach::Network,
    fencing: Fencing::None { why: NO_TOKENS.0, instead: NO_TOKENS.1 },
    ttl: true,
    shared: false,
    permits: false,
    subtree: false,
    multi: false,
    wait: true,
    fair: false,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    break_hold: false,
    break_now: false,
    promises: [
        Promise::KeptIf(
            "no server of the holder's majority forgets what it acknowledged or has its clock set forward",
        ),
        Promise::NotKept("there are no tokens"),
        Promise::NotKept("there are no tokens for a fence to compare"),
        Promise::Kept,
        Promise::KeptIf(
            "no server of the holder's majority forgets what it acknowledged or has its clock set forward",
        ),
        Promise::Kept,
        Promise::Kept,
        Promise::NotKept("whoever asks when a majority is free gets it"),
        Promise::NotKept("holds and waits expire while the servers stand still"),
        Promise::KeptIf("every server is set to `appendonly yes` and `appendfsync always`"),
        Promise::Kept,
        Promise::Kept,
    ],
};

impl Redlock {
    /// Queries all servers that can be used. Returns the answers of a majority or more.
    fn ask_all<T, F>(
        &self,
        question: impl Fn(Arc<RedisStore>) -> F,
    ) -> BoxFuture<Result<Vec<T>, BackendError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let (says, mut said) = unbounded_channel();
        for (index, server) in self.servers.iter().enumerate() {
            let says = says.clone();
            match server.store() {
                Ok(store) => {
                    let answer = question(store);
                    // The caller may have stopped waiting.
                    self.worker.run(Box::pin(async move { drop(says.send((index, answer.await))) }));
                }
                Err(why) => {
                    let error = BackendError::new(BackendErrorKind::Unreachable, why);
                    let _ = says.send((index, Err(error)));
                }
            }
        }
        drop(says);
        let names: Vec<String> = self.servers.iter().map(|server| server.name.clone()).collect();
        let majority = majority_of(names.len());
        Box::pin(async move {
            let mut answers = Vec::new();
            let mut failures: Vec<Option<BackendError>> = names.iter().map(|_| None).collect();
            let mut deadline = Instant::now() + QUESTION_LIMIT;
            while let Ok(Some((index, answer))) = timeout_at(deadline, said.recv()).await {
                match answer {
                    Ok(answer) => answers.push(answer),
                    Err(error) => failures[index] = Some(error),
                }
                if answers.len() == majority {
                    deadline = deadline.min(Instant::now() + REST);
                }
            }
            if answers.len() >= majority {
                return Ok(answers);
            }
            let failed = names.iter().zip(&failures);
            let each: Vec<String> =
                failed.filter_map(|(name, error)| Some(format!("{name}: {}", error.as_ref()?))).collect();
            let kinds = failures.iter().flatten().map(|error| error.kind);
            let kind = kinds.into_iter().find(|kind| *kind != BackendErrorKind::Unreachable);
            let what = format!(
                "{} of {} servers answered, {majority} must: {}",
                answers.len(),
                names.len(),
                each.join("; ")
            );
            Err(BackendError::new(kind.unwrap_or(BackendErrorKind::Unreachable), what))
        })
    }

    fn has_no_tokens(&self, what: &'static str) -> BackendError {
        let (why, instead) = NO_TOKENS;
        Unsupported { backend: "redlock", what, why, instead }.into()
    }
}

impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn worker(&self) -> Option<LeaseThread> {
        Some(self.worker.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<LockInfo, BackendError>> {
        let majority = majority_of(self.servers.len());
        let asked = name.clone();
        let looks = self.ask_all(move |store| {
            let name = asked.clone();
            async move { store.look(&name).await }
        });
        Box::pin(async move { Ok(view::of_majority(name, looks.await?, majority)) })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<Result<Vec<LockInfo>, BackendError>> {
        let majority = majority_of(self.servers.len());
        let lists = self.ask_all(move |store| {
            let prefix = prefix.clone();
            async move { store.list(prefix.as_ref()).await }
        });
        Box::pin(async move { Ok(view::list_of_majority(lists.await?, majority)) })
    }

    fn check_token(&self, _name: LockName, _token: u64) -> BoxFuture<Result<TokenStatus, BackendError>> {
        let error = self.has_no_tokens("check a token");
        Box::pin(async { Err(error) })
    }

    fn break_hold(&self, _order: BreakOrder) -> BoxFuture<Result<Broken, BackendError>> {
        let error = self.has_no_tokens("break a hold, which is named by its token");
        Box::pin(async { Err(error) })
    }

    /// Findings on each server's settings, and on servers that do not take part.
    fn findings(&self) -> BoxFuture<Result<Vec<Finding>, BackendError>> {
        let (count, majority) = (self.servers.len(), majority_of(self.servers.len()));
        let mut findings = Vec::new();
        if count % 2 == 0 {
            let says = format!(
                "{count} servers: {majority} must agree, so that no more may fail than of {}; name an odd number",
                count - 1
            );
            findings.push(Finding { spoils: true, says });
        }
        let mut asked = Vec::new();
        for server in &self.servers {
            let finding = |spoils, says: String| Finding { spoils, says: format!("{}: {says}", server.name) };
            match server.store() {
                Ok(store) => asked.push((server.name.clone(), store)),
                Err(why) => findings.push(finding(true, format!("does not take part: {why}"))),
            }
            if let Some(why) = server.unchecked() {
                let says = format!("whether it is one of its own can't be checked: {why}; allow `INFO`");
                findings.push(finding(true, says));
            }
        }
        Box::pin(async move {
            for (name, store) in asked {
                let says = |found: Finding| Finding { says: format!("{name}: {}", found.says), ..found };
                findings.extend(redis::findings_of(&store).await?.into_iter().map(says));
            }
            Ok(findings)
        })
    }
}
