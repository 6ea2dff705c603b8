//! `redlock:`, on five real servers without data loss, through a proxy to each of them for each client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Operator, Unreachable};
use lockkeeper::Locks;
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, Protocol, Redis, ServiceRefusal};

/// Two of them may fail.
const SERVERS: usize = 5;
const MAJORITY: u32 = 3;

struct Servers {
    servers: Vec<Redis>,
    faults: Faults,
}

impl Servers {
    fn new() -> Self {
        let server = |_| Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
        Self { servers: (0..SERVERS).map(server).collect(), faults: Faults::of(Protocol::Redis) }
    }

    async fn connect(label: &str, hosts: impl Iterator<Item = SocketAddr>) -> Locks {
        let hosts: Vec<String> = hosts.map(|host| host.to_string()).collect();
        Locks::connect_as(&format!("redlock://{}", hosts.join(",")), label).await.unwrap()
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(|server| SocketAddr::from(([127, 0, 0, 1], server.port())))
    }
}

impl Subject for Servers {
    fn scheme(&self) -> &'static str {
        "redlock"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    async fn client(&self, label: &str) -> Locks {
        Self::connect(label, self.addresses().map(|server| self.faults.proxy(label, server))).await
    }

    /// The first label is that of the first server, the second one that of the others.
    async fn client_through(&self, labels: &[&str]) -> Locks {
        let label = |server: usize| labels[server.min(1)];
        let proxy = |(server, address)| self.faults.proxy(label(server), address);
        Self::connect("several", self.addresses().enumerate().map(proxy)).await
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        // Redis' own table is tested in its package. One that passes by itself, and one that needs an
        // operator.
        &[
            (Unreachable, ServiceRefusal { code: "LOADING", text: "Redis is loading the dataset in memory" }),
            (
                Operator,
                ServiceRefusal { code: "OOM", text: "command not allowed when used memory > maxmemory." },
            ),
        ]
    }

    async fn operator(&self) -> Locks {
        Self::connect("operator", self.addresses()).await
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    /// Faults of a minority have no effect, so a majority of the answers is lost.
    fn lose_answers(&self, count: u32) -> bool {
        self.faults.lose_answers(count * MAJORITY);
        true
    }

    fn lose_calls(&self, count: u32) -> bool {
        self.faults.lose_calls(count * MAJORITY);
        true
    }

    /// Holds back the attempt at every server. Keep-alives use other connections than acquires, so they are
    /// not held back.
    fn hold_back(&self, name: &str) -> bool {
        self.faults.hold_back(name, SERVERS);
        true
    }

    fn stall(&self, duration: Duration) -> bool {
        self.servers.iter().for_each(Redis::stop);
        std::thread::sleep(duration);
        self.servers.iter().for_each(Redis::cont);
        true
    }

    async fn restart(&self) {
        self.servers.iter().for_each(Redis::kill);
        self.servers.iter().for_each(Redis::start_again);
    }

    async fn wipe(&self) {
        self.servers.iter().for_each(Redis::wipe);
    }
}

lockkeeper_contract::contract! {
    redlock => Servers::new(), page "../../../docs/backends/redlock.md" column 1, faults [Fault::IdleCut, Fault::RefusedUntilLost, Fault::Swallowed];
}
