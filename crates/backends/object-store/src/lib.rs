//! `s3:`, `gs:` and `az:`: locks as objects in Amazon S3 and compatible stores, Google Cloud Storage and
//! Azure Blob Storage.
//!
//! A lock is one object (`record`), which is never deleted, and changed only on the condition that it is as
//! it was read (`objects`). Its holders renew by writing it; a waiter takes the place of a holder that does
//! not do so for a ttl (`observed`, `store`). Sessions over such holds are in
//! [`leased`](lockkeeper_backend::leased). `terraform` is the lock object of other programs.

#![allow(rustdoc::private_intra_doc_links, reason = "the code map is for those who read the code")]

mod check;
mod http;
mod inspect;
mod objects;
mod observed;
mod record;
mod settings;
mod store;
mod terraform;

use std::sync::Arc;

use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, Finding, LockInfo, Promise, Promises, Push, Spec, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use http::Http;
use objects::Objects;
use settings::{ObjectLayout, Settings};
use terraform::{TerraformBackend, TerraformLocks};

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "s3://bucket/locks",
    summary: "objects in Amazon S3 and compatible stores, Google Cloud Storage (gs:) and Azure Blob Storage (az:)",
    schemes: &["s3", "gs", "az"],
    default_port: None,
    has_password: false,
    excludes: "with `layout=terraform` Terraform and OpenTofu (`use_lockfile`), by their lock object",
    excluded_by: "with `layout=terraform` Terraform and OpenTofu (`use_lockfile`), by their lock object",
    pages: &["object-store"],
    connect: |url| Box::pin(connect(url)),
};

/// Creates a client, after checking that the store honours conditions.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = Settings::parse(url)?;
    static THREAD: SharedLeaseThread = SharedLeaseThread::new();
    let lease_thread = THREAD.get("lockkeeper-objects")?;
    let (backend, layout) = (settings.provider.scheme(), settings.layout);
    let objects = Objects::new(settings.store(Http::new(&lease_thread))?, settings);
    objects.check().await?;
    Ok(match layout {
        ObjectLayout::Own => {
            let capabilities = capabilities(backend);
            Arc::new(ObjectBackend { store: Arc::new(objects), lease_thread, capabilities })
        }
        ObjectLayout::Terraform => {
            let capabilities = terraform::capabilities(backend);
            Arc::new(TerraformBackend {
                locks: Arc::new(TerraformLocks(objects)),
                lease_thread,
                capabilities,
            })
        }
    })
}

struct ObjectBackend {
    store: Arc<Objects>,
    lease_thread: LeaseThread,
    capabilities: Capabilities,
}

fn capabilities(backend: &'static str) -> Capabilities {
    Capabilities {
        ttl: true,
        shared: true,
        permits: true,
        wait: true,
        lock_delay: true,
        inspect: true,
        break_hold: true,
        break_now: true,
        values: true,
        promises: Promises {
            rising_tokens: Promise::KeptIf(
                "the objects of locks are not deleted, and not replaced by older versions of them",
            ),
            fenced_sections: Promise::KeptIf("the resource has a fence, and tokens rise (P2)"),
            first_come_first_served: Promise::NotKept(
                "there is no queue: whoever looks first gets a free lock",
            ),
            survives_stalls: Promise::NotKept(
                "a waiter whose look is not answered for a ttl ends, without knowing whether it got the lock",
            ),
            ..Promises::ALL_KEPT
        },
        ..Capabilities::minimal(backend, Fencing::Tokens { source: "a counter in the lock's object" })
    }
}

impl Backend for ObjectBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), Wakes::default(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move { self.store.lock_info(name).await })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move { self.store.list(prefix.as_ref()).await })
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move { self.store.check_token(&name, token).await })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(async move { self.store.break_hold(&order).await })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(async move { self.store.findings().await })
    }
}
