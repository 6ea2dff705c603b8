//! `mysql:` with `lock=row`, and over the table of `ShedLock`, on a real server, through a proxy for each
//! client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, LimitReached, Operator, Refused, Unreachable};
use lockkeeper::Locks;
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, MariaDb, ServiceRefusal};

/// The table that `ShedLock`'s documentation has for MySQL.
pub(crate) const SHEDLOCK: &str = "CREATE TABLE IF NOT EXISTS shedlock (name VARCHAR(64) NOT NULL, \
     lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), \
     locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

struct Rows {
    server: MariaDb,
    faults: Faults,
    /// In the address.
    layout: &'static str,
}

impl Rows {
    fn new() -> Self {
        Self { server: MariaDb::start(), faults: Faults::default(), layout: "" }
    }

    fn shedlock() -> Self {
        let rows = Self { layout: "&layout=shedlock", ..Self::new() };
        rows.server.sql(SHEDLOCK);
        rows
    }

    /// The changes that are refused: a trigger is run for rows only.
    fn refusing(&self) -> &'static [(&'static str, &'static str)] {
        match self.layout {
            "" => &[
                ("lockkeeper_lease", "UPDATE"),
                ("lockkeeper_waiter", "INSERT"),
                ("lockkeeper_waiter", "UPDATE"),
            ],
            _ => &[("shedlock", "INSERT"), ("shedlock", "UPDATE")],
        }
    }
}

impl Subject for Rows {
    fn scheme(&self) -> &'static str {
        "mysql"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    fn shows_waiters(&self) -> bool {
        self.layout.is_empty()
    }

    async fn client(&self, label: &str) -> Locks {
        self.client_through(&[label]).await
    }

    async fn client_through(&self, labels: &[&str]) -> Locks {
        let server = SocketAddr::from(([127, 0, 0, 1], self.server.port()));
        let proxies: Vec<_> =
            labels.iter().map(|label| self.faults.proxy(label, server).to_string()).collect();
        let url = format!("{}?lock=row&connections=2{}", MariaDb::url_at(&proxies.join(",")), self.layout);
        Locks::connect_as(&url, labels[0]).await.unwrap()
    }

    async fn operator(&self) -> Locks {
        Locks::connect_as(&format!("{}?lock=row{}", self.server.url(), self.layout), "operator")
            .await
            .unwrap()
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        &[
            (Unreachable, ServiceRefusal { code: "1213", text: "Deadlock found when trying to get lock" }),
            (Unreachable, ServiceRefusal { code: "1205", text: "Lock wait timeout exceeded" }),
            (Unreachable, ServiceRefusal { code: "1047", text: "WSREP has not yet prepared node" }),
            (Unreachable, ServiceRefusal { code: "1290", text: "is running with the --read-only option" }),
            (Unreachable, ServiceRefusal { code: "1969", text: "max_statement_time exceeded" }),
            (LimitReached, ServiceRefusal { code: "1041", text: "Out of memory" }),
            (Operator, ServiceRefusal { code: "1021", text: "Disk full" }),
            (Operator, ServiceRefusal { code: "1114", text: "The table is full" }),
            (Denied, ServiceRefusal { code: "1142", text: "UPDATE command denied" }),
            (Refused, ServiceRefusal { code: "1406", text: "Data too long for column" }),
        ]
    }

    /// By the server itself: triggers raise the error. A table without transactions counts.
    fn refuse(&self, ServiceRefusal { code, text }: ServiceRefusal) {
        self.server.sql("CREATE TABLE IF NOT EXISTS refusals (n INT) ENGINE = MyISAM; DELETE FROM refusals");
        for (number, (table, event)) in self.refusing().iter().enumerate() {
            self.server.sql(&format!(
                "DELIMITER //\nCREATE TRIGGER refuse_{number} BEFORE {event} ON {table} FOR EACH ROW BEGIN \
                 INSERT INTO refusals VALUES (1); \
                 SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{text}'; END//"
            ));
        }
    }

    fn stop_refusing(&self) {
        for number in 0..self.refusing().len() {
            self.server.sql(&format!("DROP TRIGGER refuse_{number}"));
        }
    }

    fn refused(&self) -> usize {
        self.server.sql("SELECT COUNT(*) FROM refusals").parse().unwrap_or(0)
    }

    fn hold_back(&self, name: &str) -> bool {
        self.faults.hold_back(name, 1);
        true
    }

    fn stall(&self, duration: Duration) -> bool {
        self.server.stop();
        std::thread::sleep(duration);
        self.server.cont();
        true
    }

    async fn restart(&self) {
        self.server.kill();
        self.server.start_again();
    }

    async fn wipe(&self) {
        self.server.wipe();
        if !self.layout.is_empty() {
            self.server.sql(SHEDLOCK);
        }
    }
}

lockkeeper_contract::contract! {
    mysql_row => Rows::new(), page "../../../docs/backends/mysql-row.md" column 1, faults [Fault::IdleCut, Fault::RefusedUntilLost, Fault::Swallowed, Fault::SwallowedInUse];
    mysql_shedlock => Rows::shedlock(), faults [Fault::IdleCut, Fault::RefusedUntilLost];
}
