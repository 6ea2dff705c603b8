//! `redlock://`: a majority of independent Redis servers.
//!
//! Each server is a [`RedisStore`](lockkeeper_redis) of its own. The quorum over them ([`store`]) is a store
//! again, with sessions on top as for any other ([`leased`](lockkeeper_backend::leased)). A hold is one entry
//! on each server, and lasts as long as a majority of the servers has its entry.
//!
//! Why a session's deadline is safe (P5), provided that the servers keep the writes that they acknowledged: a
//! hold ends at the client before a majority of its entries can have expired.
//! - An entry is set for `ttl + 2 ms`. The session's deadline is `ttl - 1 %` after the time just before its
//!   keep-alive was sent. With `elapsed` counted from before the attempt's first send, the validity that is
//!   left when a majority has granted is thus at most `ttl - elapsed - (1 % + 2 ms)` for the entries' own
//!   ttl, as Redlock requires. If that is negative, the attempt fails.
//! - The deadline counts from the latest acknowledged keep-alive. A keep-alive is acknowledged only if for
//!   every hold a *majority* has confirmed the renewal of its entry; nodes that only may have renewed it do
//!   not count. For a request that did not hold yet, only entries count that were set by a round which began
//!   after that keep-alive was sent (`Claim::win`).
//! - An entry's id on a server is never used again after the entry was removed there, and a round makes one
//!   attempt per server. So an entry that a round is granted was set in this round, and never earlier.
//! - A renewal never creates an entry: a server that lost one stays without it, and the hold lasts as long as
//!   a majority is left. To create the entry again, the client would have to know that no other client held
//!   the lock there meanwhile.
//!
//! A failed round leaves no granted entries: they are removed from every server before the next attempt
//! there, also if the caller is gone or the server did not answer. Only the places in queues are kept, until
//! the request ends.

#![allow(rustdoc::private_intra_doc_links, reason = "the code map is for those who read the code")]

mod acquire;
mod claim;
mod claims;
mod connect;
mod inspect;
mod majority;
mod removal;
mod renewal;
mod server;
mod store;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, Capabilities, Conn, Fencing, Finding, LockInfo, Promise,
    Promises, Push, Reach, Spec,
};
use lockkeeper_core::LockName;
use lockkeeper_redis as redis;
use lockkeeper_redis::RedisStore;
use tokio::sync::mpsc::UnboundedSender;

use self::connect::connect;
use self::inspect::{ask_majority, list_of_majority, of_majority};
use self::majority::majority_of;
use self::server::QuorumServer;
use self::store::RedlockStore;

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "redlock://a,b,c,d,e",
    summary: "a majority of independent Redis servers",
    schemes: &["redlock", "redlocks"],
    default_port: Some(6379),
    has_password: true,
    excludes: "Redlock clients of the same servers and key; a client of one server alone only there",
    excluded_by: "Redlock clients of the same servers and key; a client of one server alone never",
    pages: &["redlock"],
    connect: |url| Box::pin(connect(url)),
};

struct Redlock {
    servers: Vec<Arc<QuorumServer>>,
    store: Arc<RedlockStore>,
    wakes: Wakes,
    lease_thread: LeaseThread,
}

static CAPABILITIES: Capabilities = Capabilities {
    backend: "redlock",
    reach: Reach::Network,
    fencing: Fencing::None {
        why: "independent servers have no one counter that a majority could draw from in one step, and counters of \
              their own would cross",
        instead: "use `lockkeeper://`, `postgres://` or `etcd://`, whose tokens come from one place",
    },
    ttl: true,
    shared: false,
    permits: false,
    subtree: false,
    multi: false,
    wait: true,
    fair: false,
    queue_limit: false,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    watch: false,
    break_hold: false,
    break_now: false,
    values: false,
    downgrade: false,
    cached: false,
    promises: Promises {
        exclusion: Promise::KeptIf(
            "no server of the holder's majority forgets what it acknowledged or has its clock set forward",
        ),
        rising_tokens: Promise::NotKept("there are no tokens"),
        fenced_sections: Promise::NotKept("there are no tokens for a fence to compare"),
        client_gives_up_first: Promise::KeptIf(
            "no server of the holder's majority forgets what it acknowledged or has its clock set forward",
        ),
        first_come_first_served: Promise::NotKept("whoever asks when a majority is free gets it"),
        survives_stalls: Promise::NotKept("holds and waits expire while the servers stand still"),
        durable: Promise::KeptIf("every server is set to `appendonly yes` and `appendfsync always`"),
        ..Promises::ALL_KEPT
    },
};

impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move {
            let inspect = |store: Arc<RedisStore>| {
                let name = &name;
                async move { store.inspect(name).await }
            };
            let states = ask_majority(&self.servers, inspect).await?;
            Ok(of_majority(name, states, majority_of(self.servers.len())))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move {
            let below = prefix.as_ref();
            let list = |store: Arc<RedisStore>| async move { store.list(below).await };
            let lists = ask_majority(&self.servers, list).await?;
            Ok(list_of_majority(lists, majority_of(self.servers.len())))
        })
    }

    /// Findings on each server's settings, and on servers that do not take part.
    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
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
            match server.usable() {
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
