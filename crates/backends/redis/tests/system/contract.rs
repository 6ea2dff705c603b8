//! `redis:`, on a real server without data loss, through a proxy for each client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, Operator, Refused, Unreachable};
use lockkeeper::Locks;
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, Protocol, Redis, ServiceRefusal};

/// Errors that pass by themselves.
pub(crate) const REFUSALS: &[(BackendErrorKind, ServiceRefusal)] = &[
    (Unreachable, ServiceRefusal { code: "READONLY", text: "You cannot write against a read only replica." }),
    (Unreachable, ServiceRefusal { code: "NOREPLICAS", text: "Not enough good replicas to write." }),
    (Unreachable, ServiceRefusal { code: "CLUSTERDOWN", text: "The cluster is down" }),
    (
        Unreachable,
        ServiceRefusal { code: "TRYAGAIN", text: "Multiple keys request during rehashing of slot" },
    ),
    (Unreachable, ServiceRefusal { code: "LOADING", text: "Redis is loading the dataset in memory" }),
    (Unreachable, ServiceRefusal { code: "BUSY", text: "Redis is busy running a script." }),
    (
        Unreachable,
        ServiceRefusal {
            code: "MASTERDOWN",
            text: "Link with MASTER is down and replica-serve-stale-data is set to no.",
        },
    ),
    (Operator, ServiceRefusal { code: "OOM", text: "command not allowed when used memory > maxmemory." }),
    (Operator, ServiceRefusal { code: "MISCONF", text: "Redis is configured to save RDB snapshots" }),
    (Denied, ServiceRefusal { code: "NOPERM", text: "this user has no permissions" }),
    (Denied, ServiceRefusal { code: "NOAUTH", text: "Authentication required." }),
    (
        Refused,
        ServiceRefusal { code: "WRONGTYPE", text: "Operation against a key holding the wrong kind of value" },
    ),
];

struct Server {
    redis: Redis,
    faults: Faults,
    /// The query part of the URL.
    query: &'static str,
}

impl Server {
    fn new(query: &'static str) -> Self {
        let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
        Self { redis, faults: Faults::of(Protocol::Redis), query }
    }
}

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "redis"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    async fn client(&self, label: &str) -> Locks {
        let proxy = self.faults.proxy(label, SocketAddr::from(([127, 0, 0, 1], self.redis.port())));
        Locks::connect_as(&format!("redis://{proxy}{}", self.query), label).await.unwrap()
    }

    async fn operator(&self) -> Locks {
        Locks::connect_as(&format!("{}{}", self.redis.url(), self.query), "operator").await.unwrap()
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        REFUSALS
    }

    /// Keep-alives use another connection than acquires, so they are not held back.
    fn hold_back(&self, name: &str) -> bool {
        self.faults.hold_back(name, 1);
        true
    }

    fn stall(&self, duration: Duration) -> bool {
        self.redis.stop();
        std::thread::sleep(duration);
        self.redis.cont();
        true
    }

    async fn restart(&self) {
        self.redis.kill();
        self.redis.start_again();
    }

    async fn wipe(&self) {
        self.redis.wipe();
    }
}

lockkeeper_contract::contract! {
    redis => Server::new(""), page "../../../docs/backends/redis.md" column 1, faults [Fault::IdleCut, Fault::RefusedUntilLost];
    redis_with_a_counter => Server::new("?fencing=counter"), page "../../../docs/backends/redis.md" column 2;
}
