//! `etcd://`: locks of an etcd cluster, in the layout of etcd's own locks.
//!
//! Each request has a lease, and a key with that lease below the lock's prefix ([`layout`], [`leases`]); the
//! key that was created first holds the lock ([`attempt`], [`store`]). Waiters watch the key before theirs
//! ([`watcher`]). Sessions over such keys are in [`leased`](lockkeeper_backend::leased).

#![allow(rustdoc::private_intra_doc_links, reason = "the code map is for those who read the code")]

mod attempt;
mod changes;
mod closing;
mod connection;
mod inspect;
mod layout;
mod leases;
mod settings;
mod store;
mod watcher;

use std::sync::Arc;

use lockkeeper_backend::changes::{ReportsChanges, watch_by_inspection};
use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, LockInfo, Promise, Promises, Push, Reach, Spec, Url, Watch, hex, random_bytes,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use connection::Link;
#[doc(hidden)]
pub use layout::fuzz;
use leases::Leases;
use settings::Settings;
use store::EtcdStore;
use watcher::KeyWatcher;

/// The generated client.
#[expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated; the schema documents it")]
mod api {
    include!("generated/etcdserverpb.rs");
}

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "etcd://a,b,c",
    summary: "etcd, in the layout of its own locks",
    schemes: &["etcd", "etcds"],
    default_port: Some(2379),
    has_password: true,
    excludes: "with `layout=plain` `etcdctl lock` and Go's `concurrency.Mutex`",
    excluded_by: "with `layout=plain` `etcdctl lock` and Go's `concurrency.Mutex`",
    pages: &["etcd"],
    connect: |url| Box::pin(connect(url)),
};

/// Creates a client, after checking that the cluster answers.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    static WORKER: SharedLeaseThread = SharedLeaseThread::new();
    let settings = Settings::parse(url)?;
    let lease_thread = WORKER.get("lockkeeper-etcd")?;
    let client = hex(&random_bytes::<8>()?);
    let link = Arc::new(Link::new(&settings, &lease_thread));
    link.check().await?;
    let wakes = Wakes::default();
    let watcher = KeyWatcher::start(link.clone(), &client, wakes.clone(), &lease_thread);
    let store = EtcdStore { link, layout: settings.layout, leases: Leases::default(), watcher, client };
    let capabilities = capabilities();
    Ok(Arc::new(EtcdBackend { store: Arc::new(store), wakes, lease_thread, capabilities }))
}

struct EtcdBackend {
    store: Arc<EtcdStore>,
    wakes: Wakes,
    lease_thread: LeaseThread,
    capabilities: Capabilities,
}

fn capabilities() -> Capabilities {
    Capabilities {
        backend: "etcd",
        reach: Reach::Network,
        fencing: Fencing::Tokens { source: "the revision at which etcd created the holder's key" },
        ttl: true,
        shared: true,
        permits: true,
        subtree: false,
        multi: false,
        wait: true,
        fair: true,
        queue_limit: false,
        keep_closed: true,
        lock_delay: true,
        inspect: true,
        watch: true,
        break_hold: true,
        break_now: true,
        values: true,
        downgrade: false,
        cached: false,
        promises: Promises {
            rising_tokens: Promise::KeptIf(
                "the cluster is not restored from a backup, or restored with `--bump-revision`: revisions start again",
            ),
            fenced_sections: Promise::KeptIf("the resource has a fence, and tokens rise (P2)"),
            survives_stalls: Promise::NotKept(
                "a leader that stalls expires leases whose keep-alives wait in its sockets",
            ),
            ..Promises::ALL_KEPT
        },
    }
}

impl Backend for EtcdBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        self.store.inspect(name)
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        self.store.list(prefix)
    }

    fn watch(&self, prefix: Option<LockName>) -> Result<Watch, BackendError> {
        Ok(watch_by_inspection(&self.lease_thread, self.store.clone(), prefix))
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move { self.store.check_token(&name, token).await })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(async move { self.store.break_hold(&order).await })
    }
}
