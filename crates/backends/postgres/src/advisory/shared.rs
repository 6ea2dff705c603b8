//! What all sessions of a client share: the server's properties, the connections, the monitor.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::Pool;
use lockkeeper_backend::{BackendError, BackendErrorKind, Fencing};
use lockkeeper_core::LockName;
use tokio_util::sync::DropGuard;

use super::connection::{LockConnector, QueryConnection};
use super::monitor::Monitor;
use super::note::Contact;
use super::sql::{Common, unreadable};
use crate::keys::{AdvisoryKey, KeyError, PgKey};

/// State shared by all sessions of a client.
pub(super) struct Shared {
    pub(super) key: PgKey,
    pub(super) keepalive: Duration,
    pub(super) probe: Duration,
    pub(super) timeout: Duration,
    pub(super) connections: usize,
    pub(super) common: Common,
    pub(super) fencing: Fencing,
    pub(super) contact: Contact,
    pub(super) pool: Pool<LockConnector>,
    pub(super) queries: Arc<QueryConnection>,
    pub(super) monitor: Arc<Monitor>,
    /// Stops the monitor.
    pub(super) _stop: DropGuard,
}

impl Shared {
    /// The advisory lock key of a name.
    pub(super) async fn key_of(&self, name: &LockName) -> Result<AdvisoryKey, BackendError> {
        let Some(expression) = self.key.server_side(name.as_str()) else {
            let refused = |error: KeyError| BackendError::new(BackendErrorKind::Refused, error.to_string());
            return self.key.key(name.as_str()).map_err(refused);
        };
        let doing = "make a key of a name";
        let rows = self.queries.ask(&format!("select {expression}"), doing).await?;
        let number = rows.first().and_then(|row| row.get(0)?.parse().ok());
        number.map(AdvisoryKey::Number).ok_or_else(|| unreadable(doing))
    }
}
