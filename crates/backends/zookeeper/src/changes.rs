//! Notifications about the nodes of locks, for `watch`.

use lockkeeper_backend::changes::{ChangedLocks, ReportsChanges};
use lockkeeper_backend::{BackendError, BoxFuture, LockInfo};
use lockkeeper_core::LockName;
use tokio::time::Instant;
use zookeeper_client::{AddWatchMode, EventType};

use super::inspect::{Inspector, LIMIT};
use super::session::by;

impl ReportsChanges for Inspector {
    fn follow<'a>(
        &'a self,
        changed: &'a ChangedLocks,
    ) -> BoxFuture<'a, Result<BoxFuture<'a, ()>, BackendError>> {
        Box::pin(follow(self, changed))
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move { self.lock_infos(prefix.as_ref()).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move { self.lock_info(name).await.map_err(|failure| self.explained(failure)) })
    }
}

/// Watches the nodes of all locks. The inner future ends with the connection; changes before the next
/// connection are not reported.
async fn follow<'a>(
    inspector: &'a Inspector,
    changed: &'a ChangedLocks,
) -> Result<BoxFuture<'a, ()>, BackendError> {
    let explained = |failure| inspector.explained(failure);
    let deadline = Instant::now() + LIMIT;
    let client = inspector.sessions.client(deadline).await.map_err(explained)?;
    let watching = client.watch(inspector.layout.root(), AddWatchMode::PersistentRecursive);
    let mut watcher = by(deadline, watching).await.map_err(explained)?;
    Ok(Box::pin(async move {
        // The session lasts as long as the watch.
        let _client = client;
        loop {
            let event = watcher.changed().await;
            if event.event_type == EventType::Session {
                return;
            }
            if let Some((folder, _)) = event.path.rsplit_once('/') {
                inspector.layout.name_of(folder).into_iter().for_each(|name| changed.add(name));
            }
        }
    }))
}
