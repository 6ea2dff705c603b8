//! `lockkeeper://`: the client of Lockkeeper's own service.
//!
//! One stream carries all sessions of a client, on a thread of the library: a blocked user runtime loses no
//! locks. The pure [`carrier`] holds the stream's protocol logic; [`driver`] keeps the stream connected;
//! [`shared`] is where callers submit their calls. Queries and operator commands are unary calls ([`unary`])
//! to nodes found by [`search`].

#[allow(unreachable_pub, reason = "public to the simulator only")]
pub(crate) mod addresses;
mod administration;
mod caller_runtimes;
#[allow(unreachable_pub, reason = "public to the simulator only")]
pub(crate) mod carrier;
mod cluster;
mod credentials;
mod describe;
mod driver;
mod failures;
mod nodes;
mod search;
mod shared;
#[cfg(test)]
mod tests;
mod unary;

use std::sync::Arc;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::{
    Administration, Answer, Backend, BackendError, BackendErrorKind, BackendInfo, BoxFuture, BreakOrder,
    Broken, Call, Capabilities, Conn, ConnectError, Fencing, LockInfo, Promise, Promises, Push, Reach,
    Responder, Spec, Url, Watch, WatchEvent, random_bytes,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1;
use tokio::sync::mpsc::UnboundedSender;

use addresses::Addresses;
use carrier::SessionKey;
use credentials::Credentials;
use driver::{GrpcClient, random};
use shared::Owner;
use unary::{Asker, Repeat};

/// Maximum number of waiters in an inspection.
const WAITERS_SHOWN: u32 = 20;
/// Maximum number of locks or sessions in one answer.
const PAGE: u32 = 1000;

/// The backend's description for users, and its `connect`.
pub(crate) const INFO: BackendInfo = BackendInfo {
    example: "lockkeeper://a,b,c",
    summary: "Lockkeeper's own service, one node or a cluster",
    schemes: &["lockkeeper", "lockkeepers"],
    default_port: Some(5625),
    has_password: false,
    excludes: "none: every client of the service is ours, also by HTTP",
    excluded_by: "none: every client of the service is ours, also by HTTP",
    pages: &["lockkeeper"],
    connect: |url| Box::pin(connect(url)),
};

/// Creates a client, if any node answers.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let addresses = Addresses::of(url, random())?;
    let owner = Owner::start(addresses, Credentials::of(url)?)?;
    let asker = Asker::new(owner.lease_thread.clone(), owner.shared.clone());
    unary::probe(&asker).await?;
    owner.lease_thread.run(Box::pin(driver::drive(owner.shared.clone())));
    Ok(Arc::new(Service { owner: Arc::new(owner), asker }))
}

struct Service {
    owner: Arc<Owner>,
    asker: Asker,
}

static CAPABILITIES: Capabilities = Capabilities {
    backend: "lockkeeper",
    reach: Reach::Network,
    fencing: Fencing::Tokens { source: "a counter of the replicated table" },
    ttl: true,
    shared: true,
    permits: true,
    subtree: true,
    multi: true,
    wait: true,
    fair: true,
    queue_limit: true,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    watch: true,
    break_hold: true,
    break_now: true,
    values: true,
    downgrade: true,
    cached: true,
    promises: Promises {
        rising_tokens: Promise::KeptIf(
            "the table grants fewer than 10^6 times a second over its life and the wall clock is not set back \
             before its data are wiped",
        ),
        fenced_sections: Promise::KeptIf("the resource has a fence"),
        client_gives_up_first: Promise::KeptIf(
            "`linger` is off, or nothing between client and service closes their streams",
        ),
        durable: Promise::KeptIf("the disks keep what fdatasync wrote"),
        ..Promises::ALL_KEPT
    },
};

impl Backend for Service {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    /// Sessions run on the stream's thread. When this client closes a stream, its sessions with `linger` thus
    /// shorten their lease deadlines before the service can see the close.
    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.owner.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        match random_bytes() {
            Ok(secret) => {
                let key = self.owner.shared.add(spec, label, Secret(secret), pushes);
                Arc::new(ServiceConn { owner: self.owner.clone(), key })
            }
            Err(error) => Arc::new(NoConn(error.to_string())),
        }
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'static, Result<LockInfo, BackendError>> {
        let asked = v1::DescribeRequest {
            name: name.as_str().to_owned(),
            waiters_max: WAITERS_SHOWN,
            ..v1::DescribeRequest::default()
        };
        let answer = self.asker.ask(Repeat::Again, move |mut client: GrpcClient| {
            let asked = asked.clone();
            async move { client.describe(asked).await }
        });
        Box::pin(async move {
            let unused = v1::Lock { name: name.as_str().to_owned(), ..v1::Lock::default() };
            describe::lock(answer.await?.lock.unwrap_or(unused))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'static, Result<Vec<LockInfo>, BackendError>> {
        let asker = self.asker.clone();
        let prefix = prefix.map(|prefix| prefix.as_str().to_owned()).unwrap_or_default();
        Box::pin(async move {
            let (mut locks, mut after) = (Vec::new(), 0);
            loop {
                let asked = v1::ListRequest { prefix: prefix.clone(), page_size: PAGE, after };
                let page = asker.ask(Repeat::Again, move |mut client: GrpcClient| {
                    let asked = asked.clone();
                    async move { client.list(asked).await }
                });
                let page = page.await?;
                for lock in page.locks {
                    locks.push(describe::lock(lock)?);
                }
                if page.next_after == 0 {
                    // The pages are not sorted by name.
                    locks.sort_unstable_by(|a: &LockInfo, b| a.name.cmp(&b.name));
                    return Ok(locks);
                }
                after = page.next_after;
            }
        })
    }

    fn check_token(
        &self,
        name: LockName,
        token: Token,
    ) -> BoxFuture<'static, Result<TokenStatus, BackendError>> {
        let asked = v1::CheckTokenRequest { name: name.as_str().to_owned(), token: token.get() };
        let answer = self.asker.ask(Repeat::Again, move |mut client: GrpcClient| {
            let asked = asked.clone();
            async move { client.check_token(asked).await }
        });
        Box::pin(async move { describe::token_status(&answer.await?) })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'static, Result<Broken, BackendError>> {
        let asked = v1::BreakRequest {
            name: order.name.as_str().to_owned(),
            token: order.token.get(),
            reason: order.reason,
            by: order.by,
            now: order.now,
        };
        // Safe to repeat: a break names a token, and tokens are never reused (O1).
        let answer = self.asker.ask(Repeat::Again, move |mut client: GrpcClient| {
            let asked = asked.clone();
            async move { client.r#break(asked).await }
        });
        Box::pin(async move { describe::broken(&answer.await?) })
    }

    fn watch(&self, prefix: Option<LockName>) -> Result<Watch, BackendError> {
        let asked =
            v1::WatchRequest { prefix: prefix.map(|prefix| prefix.as_str().to_owned()).unwrap_or_default() };
        let mut answers = self.asker.follow(move |mut client: GrpcClient| {
            let asked = asked.clone();
            async move { client.watch(asked).await }
        });
        let (events, receiver) = tokio::sync::mpsc::channel(1);
        self.owner.lease_thread.run(Box::pin(async move {
            while let Some(answer) = answers.recv().await {
                let event = match answer.map(|answer| answer.what) {
                    Ok(Some(v1::watch_response::What::State(lock))) => {
                        describe::lock(lock).map(WatchEvent::State)
                    }
                    Ok(Some(v1::watch_response::What::Synced(_))) => Ok(WatchEvent::Synced),
                    Ok(Some(v1::watch_response::What::Changed(lock))) => {
                        describe::lock(lock).map(WatchEvent::Changed)
                    }
                    // An item of a newer service, unknown to this version.
                    Ok(None) => continue,
                    Err(error) => Err(error),
                };
                let is_over = event.is_err();
                if events.send(event).await.is_err() || is_over {
                    return;
                }
            }
            let what = "the lock service ended the watch; watch again";
            // The receiver may have been dropped.
            let _ = events.send(Err(BackendError::new(BackendErrorKind::Unreachable, what))).await;
        }));
        Ok(Watch::new(receiver))
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }
}

/// One session on the client's stream.
struct ServiceConn {
    owner: Arc<Owner>,
    key: SessionKey,
}

impl Conn for ServiceConn {
    fn submit(&self, call: Call, responder: Responder) {
        self.owner.shared.submit(self.key, call, responder);
    }

    fn trouble(&self) -> Option<String> {
        self.owner.shared.trouble()
    }
}

impl Drop for ServiceConn {
    fn drop(&mut self) {
        self.owner.shared.remove(self.key);
    }
}

/// A session that could not create its secret; every call is refused.
struct NoConn(String);

impl Conn for NoConn {
    fn submit(&self, _call: Call, responder: Responder) {
        let refused = BackendError::new(BackendErrorKind::Operator, self.0.clone());
        responder.send(Ok(Answer::Refused(refused)));
    }
}
