//! `postgres:` with advisory locks, on a real server, through a proxy for each client.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, LimitReached, Unreachable};
use lockkeeper::backends::postgres::schema_sql;
use lockkeeper::{BreakOrder, LockName, Locks};
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, Postgres, Protocol, ServiceRefusal};

/// Errors for new connections that pass by themselves.
pub(crate) const LOGIN_REFUSALS: &[(BackendErrorKind, ServiceRefusal)] = &[
    (LimitReached, ServiceRefusal { code: "53300", text: "sorry, too many clients already" }),
    (Unreachable, ServiceRefusal { code: "57P03", text: "the database system is starting up" }),
];

struct Advisory {
    server: Postgres,
    faults: Faults,
}

impl Advisory {
    fn session() -> Self {
        let server = Postgres::start();
        server.psql(&schema_sql(None));
        Self { server, faults: Faults::of(Protocol::Postgres) }
    }

    fn url(&self, addresses: &str) -> String {
        format!("postgres://postgres@{addresses}/postgres?lock=session&probe=500ms&timeout=2s")
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    /// A client without a proxy.
    async fn operator(&self) -> Locks {
        Locks::connect_as(&self.url(&self.address().to_string()), "operator").await.unwrap()
    }
}

impl Subject for Advisory {
    fn scheme(&self) -> &'static str {
        "postgres-session"
    }

    async fn client(&self, label: &str) -> Locks {
        self.client_through(&[label]).await
    }

    async fn client_through(&self, labels: &[&str]) -> Locks {
        let proxies: Vec<_> =
            labels.iter().map(|label| self.faults.proxy(label, self.address()).to_string()).collect();
        Locks::connect_as(&self.url(&proxies.join(",")), labels[0]).await.unwrap()
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        LOGIN_REFUSALS
    }

    /// The connection of a hold stays.
    fn refuse(&self, refusal: ServiceRefusal) {
        self.faults.refuse(refusal);
        self.faults.close_connections("late");
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let client = self.client(&label).await;
        let lock = client.mutex(name).keep_closed(keep_closed).lock_delay(lock_delay);
        let held = lock.acquire().await.unwrap();
        self.faults.cut_off(&label);
        drop(held);
    }

    /// By a break with `now`, which terminates the server process that holds the lock. The client's traffic
    /// is blocked before, so that no message of the server reaches it.
    async fn take_away(&self, label: &str, name: &str) {
        self.faults.silence(label);
        let operator = self.operator().await;
        let name: LockName = name.parse().unwrap();
        let token = operator.inspect(&name).await.unwrap().holds[0].token.unwrap();
        let order =
            BreakOrder { name, token, reason: "taken away".into(), by: "the suite".into(), now: true };
        operator.break_hold(order).await.unwrap();
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn stall(&self, duration: Duration) -> bool {
        self.server.stop();
        std::thread::sleep(duration);
        self.server.cont();
        true
    }

    async fn restart(&self) {
        self.server.restart();
    }

    async fn wipe(&self) {
        self.server.wipe();
        self.server.psql(&schema_sql(None));
    }
}

lockkeeper_contract::contract! {
    // A hold is a connection, which sends signs of life.
    postgres_session => Advisory::session(), page "../../../docs/backends/postgres-session.md" column 1, faults [Fault::Swallowed];
}
