//! `etcd:`, on a real server, through a proxy for each client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::{HolderState, Locks};
use lockkeeper_rig::Etcd;

use crate::proxy::Faults;
use crate::subject::{Subject, until};

pub(crate) struct Server {
    etcd: Etcd,
    faults: Faults,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self { etcd: Etcd::start(), faults: Faults::default() }
    }

    /// Waits until the hold of a cut-off client has expired.
    async fn until_expired(&self, name: &str) {
        // A client without a proxy.
        let operator = Locks::connect_as(&self.etcd.url(), "operator").await.unwrap();
        until("the hold has expired", async || {
            let holders = operator.inspect(name).await.unwrap().holders;
            let is_closed = |state: &HolderState| matches!(state, HolderState::Closed { .. });
            holders.iter().all(|holder| is_closed(&holder.state)).then_some(())
        })
        .await;
    }
}

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    async fn client(&self, label: &str) -> Locks {
        let proxy = self.faults.proxy(label, SocketAddr::from(([127, 0, 0, 1], self.etcd.port())));
        Locks::connect_as(&format!("etcd://{proxy}"), label).await.unwrap()
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let client = self.client(&label).await;
        let lock = client.mutex(name).ttl(Duration::from_secs(2));
        let held = lock.keep_closed(keep_closed).lock_delay(lock_delay).acquire().await.unwrap();
        self.faults.cut_off(&label);
        self.until_expired(name).await;
        drop(held);
    }

    /// The hold of a client that does not respond ends only with its ttl.
    async fn take_away(&self, label: &str, name: &str) {
        self.faults.cut_off(label);
        self.until_expired(name).await;
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn stall(&self, duration: Duration) -> bool {
        self.etcd.stop();
        std::thread::sleep(duration);
        self.etcd.cont();
        true
    }

    async fn restart(&self) {
        self.etcd.kill();
        self.etcd.start_again();
    }

    async fn wipe(&self) {
        self.etcd.wipe();
    }
}
