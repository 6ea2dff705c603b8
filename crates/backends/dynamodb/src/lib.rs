//! `dynamodb://`: locks in a table of Amazon DynamoDB, in the layout of other lock clients of it.
//!
//! A lock is a lock item, which its holder renews by changing the item's version, and a fence item with the
//! last token. One transaction writes both (`items`, `store`, `writes`). A waiter takes the lock over if the
//! version does not change for a lease (`observed`). Sessions over such items are in
//! [`leased`](lockkeeper_backend::leased).

#![allow(rustdoc::private_intra_doc_links, reason = "the code map is for those who read the code")]

mod connection;
mod inspect;
mod items;
mod observed;
mod settings;
mod store;
mod table;
mod writes;

use std::sync::Arc;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, LockInfo, Promise, Promises, Push, Reach, Spec, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use connection::{DynamoClients, configure};
use observed::Observed;
use settings::Settings;
use writes::DynamoStore;

pub use table::client;
pub use table::init;

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "dynamodb://table?region=eu-central-1",
    summary: "a table of Amazon DynamoDB, in the layout of other lock clients of it",
    schemes: &["dynamodb"],
    default_port: None,
    has_password: false,
    excludes: "AWS Labs' lock client (Java) and its ports; with `attributes=python` `python_dynamodb_lock`",
    excluded_by: "AWS Labs' lock client (Java) and its ports; with `attributes=python` `python_dynamodb_lock`",
    pages: &["dynamodb"],
    connect: |url| Box::pin(connect(url)),
};

/// Creates a client, after checking that the table exists and has the right keys.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = Settings::parse(url)?;
    let lease_thread = table::lease_thread()?;
    let link = DynamoClients::new(configure(&settings).await?, &settings.table, &lease_thread);
    table::check(&link, &settings.attributes).await?;
    let Settings { attributes, poll, .. } = settings;
    let store = Arc::new(DynamoStore { link, attributes, observed: Observed::default(), poll });
    Ok(Arc::new(DynamoBackend { store, lease_thread, capabilities: capabilities() }))
}

struct DynamoBackend {
    store: Arc<DynamoStore>,
    lease_thread: LeaseThread,
    capabilities: Capabilities,
}

fn capabilities() -> Capabilities {
    Capabilities {
        backend: "dynamodb",
        reach: Reach::Network,
        fencing: Fencing::Tokens {
            source: "a counter in an item of its own, written with the lock in one transaction",
        },
        ttl: true,
        shared: true,
        permits: false,
        subtree: false,
        multi: false,
        wait: true,
        fair: false,
        queue_limit: false,
        keep_closed: false,
        lock_delay: true,
        inspect: true,
        watch: false,
        break_hold: true,
        break_now: true,
        values: false,
        downgrade: false,
        cached: false,
        promises: Promises {
            rising_tokens: Promise::KeptIf(
                "the items of tokens are not deleted, and the table is not restored from a backup",
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
    }
}

impl Backend for DynamoBackend {
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
}
