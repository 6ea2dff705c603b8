//! ZooKeeper: ephemeral sequential nodes with Curator's names, and a watch on the preceding node.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use super::{CONNECTIONS, KEEPALIVE_TTL, Peer, Setup, failed, many, watch_cpu};
use crate::TaskResult;
use crate::bench::server::ServerProcesses;

/// The longest session time-out that the server grants: 20 of its ticks.
const SESSION_TIMEOUT_MAX: Duration = Duration::from_secs(40);

pub(crate) struct Zookeeper {
    connections: Vec<Client>,
}

pub(crate) struct ZooKeeperHold {
    client: usize,
    path: String,
}

impl Peer for Zookeeper {
    type Held = ZooKeeperHold;

    async fn connect(setup: Setup<'_>) -> TaskResult<Self> {
        let connections = sessions(setup.at, CONNECTIONS.min(setup.clients), setup.ttl).await?;
        Ok(Self { connections })
    }

    async fn acquire(&self, client: usize, name: &str) -> TaskResult<ZooKeeperHold> {
        let folder = format!("/{name}");
        let prefix = LockPrefix::new_curator(&folder, "lock-").map_err(failed("ZooKeeper", "name a lock"))?;
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents);
        let options = options.map_err(failed("ZooKeeper", "name a lock"))?;
        let lock = self.connection(client).lock(prefix, b"", options).await;
        let lock = lock.map_err(failed("ZooKeeper", "acquire"))?;
        let path = lock.lock_path().to_owned();
        // Dropping the lock would delete its node without reporting the completion; `release` deletes it and
        // waits.
        std::mem::forget(lock);
        Ok(ZooKeeperHold { client, path })
    }

    async fn release(&self, held: ZooKeeperHold) -> TaskResult {
        self.connection(held.client).delete(&held.path, None).await.map_err(failed("ZooKeeper", "release"))
    }

    async fn close(self) -> TaskResult {
        // A session ends when its last handle is dropped.
        drop(self.connections);
        Ok(())
    }
}

impl Zookeeper {
    fn connection(&self, client: usize) -> &Client {
        &self.connections[client % self.connections.len()]
    }

    /// Opens `count` sessions, each with its own connection, kept alive by the crate.
    pub(crate) async fn keep_alive(
        at: &str,
        server: &ServerProcesses,
        count: usize,
        duration: Duration,
    ) -> TaskResult<f64> {
        let sessions = sessions(at, count, KEEPALIVE_TTL).await?;
        let cores = watch_cpu(server, duration).await?;
        drop(sessions);
        Ok(cores)
    }
}

async fn sessions(at: &str, count: usize, ttl: Duration) -> TaskResult<Vec<Client>> {
    many(count, |_| {
        let at = at.to_owned();
        async move {
            let session =
                Client::connector().with_session_timeout(ttl.min(SESSION_TIMEOUT_MAX)).connect(&at).await;
            session.map_err(failed("ZooKeeper", "connect"))
        }
    })
    .await
}
