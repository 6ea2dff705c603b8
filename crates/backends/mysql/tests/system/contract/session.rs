//! `mysql:` with `lock=session`, on a real server, through a proxy for each client.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lockkeeper::{BreakOrder, LockName, Locks};
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, MariaDb};

/// The statement that makes the table of tokens.
pub(crate) use lockkeeper::backends::mysql::SESSION_SCHEMA_SQL;

struct Sessions {
    server: MariaDb,
    faults: Faults,
}

impl Sessions {
    fn new() -> Self {
        let server = MariaDb::start();
        server.sql(SESSION_SCHEMA_SQL);
        Self { server, faults: Faults::default() }
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    fn url(addresses: &str) -> String {
        format!("{}?lock=session&probe=500ms&timeout=2s", MariaDb::url_at(addresses))
    }
}

impl Subject for Sessions {
    fn scheme(&self) -> &'static str {
        "mysql-session"
    }

    async fn client(&self, label: &str) -> Locks {
        self.client_through(&[label]).await
    }

    async fn client_through(&self, labels: &[&str]) -> Locks {
        let proxies: Vec<_> =
            labels.iter().map(|label| self.faults.proxy(label, self.address()).to_string()).collect();
        Locks::connect_as(&Self::url(&proxies.join(",")), labels[0]).await.unwrap()
    }

    /// Without a proxy.
    async fn operator(&self) -> Locks {
        Locks::connect_as(&Self::url(&self.address().to_string()), "operator").await.unwrap()
    }

    /// By a break with `now`, which ends the connection that holds. The client's traffic is blocked before,
    /// so that no message of the server reaches it.
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
        self.server.sql(SESSION_SCHEMA_SQL);
    }
}

lockkeeper_contract::contract! {
    mysql_session => Sessions::new(), page "../../../docs/backends/mysql-session.md" column 1, faults [Fault::Swallowed];
}
