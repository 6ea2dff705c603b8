//! `postgres:` with `lock=row`, on a real server, through a proxy for each client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, LimitReached, Operator, Refused, Unreachable};
use lockkeeper::Locks;
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Faults, Postgres, ServiceRefusal};

struct Rows {
    server: Postgres,
    faults: Faults,
}

impl Rows {
    fn new() -> Self {
        let rows = Self { server: Postgres::start(), faults: Faults::default() };
        rows.init();
        rows
    }

    fn init(&self) {
        self.server.psql(&lockkeeper::backends::postgres::schema_sql(None));
    }
}

impl Subject for Rows {
    fn scheme(&self) -> &'static str {
        "postgres"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    async fn client(&self, label: &str) -> Locks {
        self.client_through(&[label]).await
    }

    async fn client_through(&self, labels: &[&str]) -> Locks {
        let server = SocketAddr::from(([127, 0, 0, 1], self.server.port()));
        let proxies: Vec<_> =
            labels.iter().map(|label| self.faults.proxy(label, server).to_string()).collect();
        let url = format!("postgres://postgres@{}/postgres?lock=row&connections=2", proxies.join(","));
        let locks = Locks::connect_as(&url, labels[0]).await.unwrap();
        // Waits for the client's checks of the server, so that faults injected later affect only calls.
        locks.findings().await.unwrap();
        locks
    }

    async fn operator(&self) -> Locks {
        Locks::connect_as(&format!("{}?lock=row", self.server.url()), "operator").await.unwrap()
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        &[
            (
                Unreachable,
                ServiceRefusal { code: "25006", text: "cannot execute UPDATE in a read-only transaction" },
            ),
            (
                Unreachable,
                ServiceRefusal { code: "40001", text: "could not serialize access due to concurrent update" },
            ),
            (Unreachable, ServiceRefusal { code: "40P01", text: "deadlock detected" }),
            (Unreachable, ServiceRefusal { code: "55P03", text: "could not obtain lock on row in relation" }),
            (
                Unreachable,
                ServiceRefusal { code: "57014", text: "canceling statement due to statement timeout" },
            ),
            (LimitReached, ServiceRefusal { code: "53200", text: "out of memory" }),
            (
                Operator,
                ServiceRefusal { code: "53100", text: "could not extend file: No space left on device" },
            ),
            (Operator, ServiceRefusal { code: "58030", text: "could not write to file: Input/output error" }),
            (Denied, ServiceRefusal { code: "42501", text: "permission denied for table row_lease" }),
            (Refused, ServiceRefusal { code: "22001", text: "value too long" }),
        ]
    }

    /// By the server itself: a trigger raises the error. A sequence counts, as it is not rolled back.
    fn refuse(&self, ServiceRefusal { code, text }: ServiceRefusal) {
        self.server.psql(&format!(
            "create sequence public.refusals; \
             create function public.refuse() returns trigger language plpgsql as $$ begin \
               perform nextval('public.refusals'); raise exception '{text}' using errcode = '{code}'; end $$; \
             create trigger refuse before insert or update or delete on lockkeeper.row_lease \
               for each statement execute function public.refuse()"
        ));
    }

    fn stop_refusing(&self) {
        self.server.psql("drop function public.refuse() cascade; drop sequence public.refusals");
    }

    fn refused(&self) -> usize {
        self.server.psql("select last_value from public.refusals where is_called").parse().unwrap_or(0)
    }

    /// The transaction that inserts the lock's row waits in its commit, as for a slow disk or a synchronous
    /// standby: the row's times are set, and no other transaction sees the row.
    fn hold_back(&self, name: &str) -> bool {
        self.server.psql(&format!(
            "create table gate (is_open boolean); insert into gate values (false); \
             create function wait_at_gate() returns trigger language plpgsql as $$ begin \
               while not (select is_open from gate) loop perform pg_sleep(0.005); end loop; return null; end $$; \
             create constraint trigger gate after insert on lockkeeper.row_lease deferrable initially deferred \
               for each row when (new.name = '{name}') execute function wait_at_gate()"
        ));
        true
    }

    fn is_held_back(&self) -> bool {
        self.server.psql("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") != "0"
    }

    fn let_go(&self) {
        self.server.psql("update gate set is_open = true");
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
        self.init();
    }
}

lockkeeper_contract::contract! {
    postgres_row => Rows::new(), page "../../../docs/backends/postgres-row.md" column 1, faults [Fault::IdleCut, Fault::RefusedUntilLost, Fault::Swallowed, Fault::SwallowedInUse];
}
