//! `redis://`: one Redis server, a primary that sentinels name, or a cluster.
//!
//! A lock is a plain string key set with `SET NX PX`, as other Redis lock clients do it, so that they and
//! this library exclude each other. Queue, tokens and permits are stored in keys beside it ([`layout`]).
//! Attempts, renewals and ends begin in [`store`]; every step that must be atomic is a script of its own
//! ([`scripts`]). Sessions over such entries are in [`leased`](lockkeeper_backend::leased). The lease thread
//! keeps the main connection up ([`main_connection`]); each runtime of callers has a connection of its own
//! ([`link`]).

#![allow(rustdoc::private_intra_doc_links, reason = "the code map is for those who read the code")]

mod answers;
mod cluster;
mod connect;
mod dial;
mod findings;
mod identity;
mod inspect;
mod layout;
mod link;
mod main_connection;
mod refusal;
mod reply_limit;
mod role;
mod scripts;
mod servers;
mod settings;
mod slots;
mod store;
mod target;

use std::sync::Arc;

use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, Finding, LockInfo, Promise, Promises, Push, Reach, Spec, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

pub use dial::RedisConnection;
#[doc(hidden)]
pub use layout::fuzz;
use servers::Servers;

pub use {
    findings::of as findings_of,
    identity::Identity,
    inspect::{NameState, Seen},
    settings::{PORT, Settings},
    store::{RedisStore, open_store},
};

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "redis://host",
    summary: "Redis: one server, its replicas by sentinels, or a cluster",
    schemes: &["redis", "rediss", "redis+unix"],
    default_port: Some(6379),
    has_password: true,
    excludes: "clients that use `SET NX PX` on the same key: redis-py, redsync, node-redlock …; Redisson fails",
    excluded_by: "the same; where Redisson holds, our request fails",
    pages: &["redis"],
    connect: |url| Box::pin(connect(url)),
};

/// Creates a client, after checking that the server answers and, for `fencing=counter` without `force`, that
/// its settings let tokens survive.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let (settings, topology) = Settings::parse(url)?;
    let lease_thread = lease_thread()?;
    let wakes = Wakes::default();
    let servers = Servers::open(&settings, topology, &lease_thread, wakes.clone()).await?;
    if settings.fencing && !settings.force {
        for store in servers.all() {
            findings::check_that_tokens_last(&store).await?;
        }
    }
    let capabilities = capabilities(settings.fencing);
    Ok(Arc::new(Redis { servers, wakes, lease_thread, capabilities }))
}

/// The lease thread that all Redis clients of this process share.
pub fn lease_thread() -> Result<LeaseThread, BackendError> {
    static WORKER: SharedLeaseThread = SharedLeaseThread::new();
    WORKER.get("lockkeeper-redis")
}

struct Redis {
    servers: Servers,
    wakes: Wakes,
    lease_thread: LeaseThread,
    capabilities: Capabilities,
}

const NO_TOKENS: (&str, &str) = (
    "a token must outlive what Redis may forget, so there are none unless they are asked for",
    "use `redis://…?fencing=counter`, whose tokens last as long as that Redis keeps its data, or `lockkeeper://`",
);

/// Capabilities depend on fencing: a hold to break is named by its token, so breaking needs tokens.
fn capabilities(fencing: bool) -> Capabilities {
    const LAST: &str = "the server's clock is not set back while its data are lost, also not by a fail-over to a host \
                        whose clock is behind";
    const RIGHT: &str = "the server loses no writes and its clock is not set forward, also not by a fail-over to a \
                         host whose clock is ahead";
    let (why, instead) = NO_TOKENS;
    let none = Promise::NotKept("there are no tokens without `?fencing=counter`");
    Capabilities {
        backend: "redis",
        reach: Reach::Network,
        fencing: if fencing {
            Fencing::Tokens { source: "a counter beside each lock, never below the server's clock" }
        } else {
            Fencing::None { why, instead }
        },
        ttl: true,
        shared: false,
        permits: true,
        subtree: false,
        multi: false,
        wait: true,
        fair: true,
        queue_limit: false,
        keep_closed: true,
        lock_delay: true,
        inspect: true,
        watch: false,
        break_hold: fencing,
        break_now: fencing,
        values: false,
        downgrade: false,
        cached: false,
        promises: Promises {
            exclusion: Promise::KeptIf(RIGHT),
            rising_tokens: if fencing { Promise::KeptIf(LAST) } else { none },
            fenced_sections: if fencing {
                Promise::KeptIf("the resource has a fence, and tokens rise (P2)")
            } else {
                none
            },
            client_gives_up_first: Promise::KeptIf(RIGHT),
            first_come_first_served: Promise::KeptIf(
                "all who hold or wait are clients of this library, holds end by a release, and the first in the queue comes \
                 within two seconds",
            ),
            survives_stalls: Promise::NotKept("holds and waits expire while the server stands still"),
            durable: Promise::KeptIf("the server is set to `appendonly yes` and `appendfsync always`"),
            ..Promises::ALL_KEPT
        },
    }
}

impl Backend for Redis {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.servers.store(), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move { Ok(self.servers.of(&name)?.inspect(&name).await?.into_info(name)) })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move {
            let list = self.servers.list(prefix.as_ref()).await?;
            Ok(list.into_iter().map(|(name, state)| state.into_info(name)).collect())
        })
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move { self.servers.of(&name)?.check_token(&name, token.get()).await })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(async move { self.servers.of(&order.name)?.break_hold(&order).await })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        let servers = self.servers.all();
        Box::pin(async move {
            let mut all = Vec::new();
            for server in &servers {
                let mut found = findings::of(server).await?;
                if servers.len() > 1 {
                    let name = server.server();
                    found.iter_mut().for_each(|finding| finding.says.insert_str(0, &format!("{name}: ")));
                }
                all.append(&mut found);
            }
            Ok(all)
        })
    }
}
