//! `memcached:` passes the contract suite, on a real server.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_contract::{Faults, Subject};
use lockkeeper_rig::Memcached;

const TTL: Duration = Duration::from_secs(2);

struct Server {
    memcached: Memcached,
    faults: Faults,
}

impl Server {
    fn new() -> Self {
        Self { memcached: Memcached::start(), faults: Faults::default() }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.memcached.port()))
    }
}

async fn connect(address: SocketAddr, label: &str) -> Locks {
    let url = format!("memcached://{address}").parse().unwrap();
    Locks::over((lockkeeper_example_backend::INFO.connect)(&url).await.unwrap(), label)
}

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "memcached"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(TTL)
    }

    fn shows_waiters(&self) -> bool {
        false
    }

    async fn client(&self, label: &str) -> Locks {
        connect(self.faults.proxy(label, self.address()), label).await
    }

    async fn operator(&self) -> Locks {
        connect(self.address(), "operator").await
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn stall(&self, duration: Duration) -> bool {
        self.memcached.stop();
        std::thread::sleep(duration);
        self.memcached.cont();
        true
    }

    async fn restart(&self) {
        self.memcached.kill();
        self.memcached.start_again();
    }

    async fn wipe(&self) {
        self.restart().await;
    }
}

lockkeeper_contract::contract! {
    memcached => Server::new();
}
