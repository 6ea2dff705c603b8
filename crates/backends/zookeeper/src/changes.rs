//! Messages about the nodes of all locks, for watches.

use std::future::Future;
use std::sync::Arc;

use lockkeeper_backend::BackendError;
use lockkeeper_backend::changes::ChangedLocks;
use tokio::time::Instant;
use zookeeper_client::{AddWatchMode, EventType};

use super::inspect::{Inspector, LIMIT};
use super::session::by;

/// Begins to follow the changes of all locks' nodes. The future that it returns ends with the connection:
/// what happens until the next one is not reported.
pub(super) async fn follow(
    inspector: Arc<Inspector>,
    changed: ChangedLocks,
) -> Result<impl Future<Output = ()> + Send, BackendError> {
    let explained = |failure| inspector.explained(failure);
    let deadline = Instant::now() + LIMIT;
    let client = inspector.sessions.client(deadline).await.map_err(explained)?;
    let watching = client.watch(inspector.layout.root(), AddWatchMode::PersistentRecursive);
    let mut watcher = by(deadline, watching).await.map_err(explained)?;
    Ok(async move {
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
    })
}
