//! `zookeeper:`, on a real server, through a proxy for each client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, Operator, Unreachable};
use lockkeeper::Locks;
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, Protocol, ServiceRefusal, ZooKeeper};

struct Server {
    zookeeper: ZooKeeper,
    faults: Faults,
    /// The end of each URL.
    query: &'static str,
}

impl Server {
    fn new(query: &'static str) -> Self {
        Self { zookeeper: ZooKeeper::start(), faults: Faults::of(Protocol::ZooKeeper), query }
    }
}

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "zookeeper"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    async fn client(&self, label: &str) -> Locks {
        self.client_through(&[label]).await
    }

    async fn client_through(&self, labels: &[&str]) -> Locks {
        let server = SocketAddr::from(([127, 0, 0, 1], self.zookeeper.port()));
        let proxies: Vec<_> =
            labels.iter().map(|label| self.faults.proxy(label, server).to_string()).collect();
        let url = format!("zookeeper://{}{}", proxies.join(","), self.query);
        Locks::connect_as(&url, labels[0]).await.unwrap()
    }

    /// Throttled; a member that serves reads only; an operation that took too long.
    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        &[
            (Unreachable, ServiceRefusal { code: "-127", text: "throttled" }),
            (Unreachable, ServiceRefusal { code: "-119", text: "read only" }),
            (Unreachable, ServiceRefusal { code: "-7", text: "-7" }),
            (Denied, ServiceRefusal { code: "-102", text: "not authorized" }),
            (Operator, ServiceRefusal { code: "-125", text: "quota" }),
        ]
    }

    async fn operator(&self) -> Locks {
        Locks::connect_as(&format!("{}{}", self.zookeeper.url(), self.query), "operator").await.unwrap()
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn stall(&self, duration: Duration) -> bool {
        self.zookeeper.stop();
        std::thread::sleep(duration);
        self.zookeeper.cont();
        true
    }

    async fn restart(&self) {
        self.zookeeper.kill();
        self.zookeeper.start_again();
    }

    async fn wipe(&self) {
        self.zookeeper.wipe();
    }
}

lockkeeper_contract::contract! {
    // Pings keep a session alive, and are not refused.
    zookeeper => Server::new(""), page "../../../docs/backends/zookeeper.md" column 1, faults [Fault::IdleCut, Fault::Swallowed, Fault::SwallowedInUse];
    // The requests differ in the names of nodes only, so the faults are the same.
    zookeeper_beside_kazoo => Server::new("/locks?layout=plain&recipe=kazoo"), page "../../../docs/backends/zookeeper.md" column 2;
}
