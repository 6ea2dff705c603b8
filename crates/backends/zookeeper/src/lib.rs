//! `zookeeper://`: locks of a ZooKeeper ensemble, in the layout of Curator's recipes, or of kazoo's.
//!
//! Each session of this library has a session at the servers ([`session`]), and each request an ephemeral
//! sequential node in it ([`layout`], [`entry_nodes`]); the node with the lowest sequence holds the lock
//! ([`attempt`], [`store`]). [`inspect`] and [`search`] show the locks in use. Sessions over such nodes are
//! in [`leased`](lockkeeper_backend::leased).

#![allow(rustdoc::private_intra_doc_links, reason = "the code map is for those who read the code")]

mod attempt;
mod changes;
mod entry_nodes;
mod inspect;
mod layout;
mod search;
mod session;
mod settings;
mod store;

use std::sync::Arc;

use lockkeeper_backend::changes::{ReportsChanges, watch_by_inspection};
use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::leased::{LeasedConn, Wake, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, Finding, LockInfo, Promise, Promises, Push, Reach, Spec, Url, Watch,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use entry_nodes::EntryNodes;
use inspect::Inspector;
#[doc(hidden)]
pub use layout::fuzz;
use session::{CurrentSession, Ensemble};
use settings::Settings;
use store::ZooKeeperStore;

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "zookeeper://a,b,c",
    summary: "ZooKeeper, in the layout of Curator's locks or kazoo's",
    schemes: &["zookeeper", "zookeepers"],
    default_port: Some(2181),
    has_password: true,
    excludes: "with `layout=plain` Curator; with `layout=plain&recipe=kazoo` kazoo instead",
    excluded_by: "with `layout=plain` Curator and kazoo",
    pages: &["zookeeper"],
    connect: |url| Box::pin(connect(url)),
};

/// Creates a client, after checking that the servers answer.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    static WORKER: SharedLeaseThread = SharedLeaseThread::new();
    let settings = Settings::parse(url)?;
    let lease_thread = WORKER.get("lockkeeper-zookeeper")?;
    let ensemble = Arc::new(Ensemble::connect(&settings, &lease_thread).await?);
    let sessions = Arc::new(CurrentSession::new(ensemble, None, |_| {}));
    let capabilities = capabilities(settings.layout.has_permits());
    let inspector = Arc::new(Inspector { sessions, layout: settings.layout });
    Ok(Arc::new(ZooKeeperBackend { inspector, lease_thread, capabilities }))
}

struct ZooKeeperBackend {
    inspector: Arc<Inspector>,
    lease_thread: LeaseThread,
    capabilities: Capabilities,
}

fn capabilities(permits: bool) -> Capabilities {
    Capabilities {
        backend: "zookeeper",
        reach: Reach::Network,
        fencing: Fencing::Tokens { source: "the transaction that created the holder's node (czxid)" },
        ttl: true,
        shared: true,
        permits,
        subtree: false,
        multi: false,
        wait: true,
        fair: true,
        queue_limit: false,
        keep_closed: false,
        lock_delay: false,
        inspect: true,
        watch: true,
        break_hold: true,
        break_now: true,
        values: true,
        downgrade: false,
        cached: false,
        promises: Promises {
            rising_tokens: Promise::KeptIf(
                "the ensemble is not restored from older data: its transactions would be counted again",
            ),
            fenced_sections: Promise::KeptIf("the resource has a fence, and tokens rise (P2)"),
            survives_stalls: Promise::NotKept(
                "a waiter whose look is not answered for a ttl ends, without knowing whether it got the lock",
            ),
            ..Promises::ALL_KEPT
        },
    }
}

impl Backend for ZooKeeperBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        let (wakes, entry_nodes) = (Wakes::default(), Arc::new(EntryNodes::default()));
        let ended = {
            let (wakes, entry_nodes) = (wakes.clone(), entry_nodes.clone());
            move |session| {
                for entry in entry_nodes.of_session(session) {
                    wakes.deliver(&entry, Wake::Gone);
                }
            }
        };
        let Inspector { sessions, layout } = &*self.inspector;
        let sessions = Arc::new(CurrentSession::new(sessions.ensemble.clone(), spec.ttl, ended));
        let store = ZooKeeperStore { sessions, layout: layout.clone(), entry_nodes, wakes: wakes.clone() };
        LeasedConn::new(Arc::new(store), wakes, spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        self.inspector.inspect(name)
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        self.inspector.list(prefix)
    }

    fn watch(&self, prefix: Option<LockName>) -> Result<Watch, BackendError> {
        Ok(watch_by_inspection(&self.lease_thread, self.inspector.clone(), prefix))
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move { self.inspector.check_token(&name, token).await })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(async move {
            let mut findings = vec![self.inspector.sessions.ensemble.finding().await?];
            findings.extend(self.inspector.mixed_locks().await?);
            Ok(findings)
        })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(async move { self.inspector.break_hold(&order).await })
    }
}
