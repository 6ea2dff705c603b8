//! Several servers, and queries of their contents.

use std::time::Duration;

use lockkeeper::{AcquireError, Guard, Locks, Unfenced, Wait};
pub(crate) use lockkeeper_contract::until;
use lockkeeper_rig::Redis;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAME: &str = "orders/42";

/// Independent servers.
pub(crate) struct Servers(pub(crate) Vec<Redis>);

impl Servers {
    pub(crate) fn start(count: usize) -> Self {
        Self::of((0..count).map(|_| Redis::start()))
    }

    pub(crate) fn of(servers: impl IntoIterator<Item = Redis>) -> Self {
        Self(servers.into_iter().collect())
    }

    pub(crate) fn hosts(&self) -> String {
        let hosts: Vec<String> = self.0.iter().map(address).collect();
        hosts.join(",")
    }

    pub(crate) fn url(&self) -> String {
        format!("redlock://{}", self.hosts())
    }

    pub(crate) async fn client(&self, label: &str) -> Locks {
        Locks::connect_as(&self.url(), label).await.unwrap()
    }

    /// The number of live servers that have the lock's key.
    pub(crate) fn keys(&self, name: &str) -> usize {
        let has = |server: &&Redis| server.try_cli(&["EXISTS", name]).is_ok_and(|answer| answer == "1");
        self.0.iter().filter(|server| server.pid().is_some()).filter(has).count()
    }

    /// A hold that every server has. A majority is enough for a hold, so on a busy machine one server's
    /// attempt may be dropped: then the hold is released and acquired again.
    pub(crate) async fn held_by_all(&self, locks: &Locks, ttl: Duration) -> Guard<Unfenced> {
        until("all servers have it", async || {
            let held = hold(locks, ttl).await.unwrap();
            let patience = std::time::Instant::now() + ttl / 3;
            while std::time::Instant::now() < patience {
                if self.keys(NAME) == self.0.len() {
                    return Some(held);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            held.release().await.unwrap();
            None
        })
        .await
    }

    /// Waits until no live server has the lock's key or its queue; records of ends may be left.
    pub(crate) async fn until_nothing_is_left(&self, name: &str) {
        until(&format!("nothing is left of {name}"), async || {
            let left = self.0.iter().filter(|server| server.pid().is_some()).any(|server| {
                let queue = format!("{{{name}}}:lockkeeper:queue");
                server.cli(&["EXISTS", name, &queue]) != "0"
            });
            (!left).then_some(())
        })
        .await;
    }
}

pub(crate) fn address(server: &Redis) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// Attempts to hold without waiting.
pub(crate) async fn try_to_hold(locks: &Locks) -> Option<Guard<Unfenced>> {
    locks.mutex(NAME).ttl(3 * SECOND).try_acquire().await.unwrap()
}

pub(crate) async fn hold(locks: &Locks, ttl: Duration) -> Result<Guard<Unfenced>, AcquireError> {
    locks.mutex(NAME).ttl(ttl).wait(Wait::For(20 * SECOND)).acquire().await
}
