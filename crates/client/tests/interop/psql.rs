//! psql with `pg_advisory_lock` beside `postgres://…?lock=session`, for each way from a name to a key that ours offers.
//!
//! There are no leases here: a session holds, and a crash is the end of its connection.

use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Wait};
use lockkeeper_rig::Postgres;

use crate::peer::{Peer, Process};
use crate::prove;
use crate::scenarios::World;

/// Only there so that a failure ends.
const WAITS_WITHIN: Duration = Duration::from_secs(30);
/// Without meaning here.
const TTL: Duration = Duration::ZERO;

/// A convention, and how SQL has its key.
struct Convention {
    /// What `?key=` calls it.
    parameter: &'static str,
    name: &'static str,
    /// The arguments of `pg_advisory_lock`, with `$` for the name as an SQL text.
    sql: &'static str,
}

/// What people write by hand most of all.
const PLAIN: Convention =
    Convention { parameter: "hashtextextended", name: "orders/42", sql: "hashtextextended($, 0)" };

/// Keys that PostgreSQL's own functions can't make stand here as numbers, each from the documentation or a run of the
/// library that brought the convention.
const CONVENTIONS: &[Convention] = &[
    PLAIN,
    Convention { parameter: "hashtext", name: "orders:42:checkout", sql: "hashtext($)" },
    Convention {
        parameter: "sha256be",
        name: "orders:42:checkout",
        sql: "('x' || encode(substr(sha256(convert_to($, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint",
    },
    Convention {
        parameter: "tooz",
        name: "orders:42:checkout",
        sql: "get_byte(decode(md5($), 'hex'), 0), get_byte(decode(md5($), 'hex'), 1)",
    },
    Convention { parameter: "ruby", name: "orders:42:checkout", sql: "763341982, 0" },
    // The example of sqlx' own page.
    Convention { parameter: "sqlx", name: "my first Postgres advisory lock!", sql: "-5560419505042474287" },
    Convention { parameter: "sqlx", name: "orders:42:checkout", sql: "4162161070278803260" },
    // A short name is packed into the key, a long one is hashed.
    Convention { parameter: "madelson", name: "job1", sql: "-3044693829279023105" },
    Convention { parameter: "madelson", name: "orders:42:checkout", sql: "-533755646865238680" },
];

impl Convention {
    /// The arguments of `pg_advisory_lock` for `name`.
    fn key(&self, name: &str) -> String {
        self.sql.replace('$', &format!("'{}'", name.replace('\'', "''")))
    }
}

/// A server, and a convention that both sides follow.
struct Server {
    postgres: Postgres,
    convention: &'static Convention,
}

impl Server {
    fn start() -> Self {
        Self { postgres: Postgres::start(), convention: &PLAIN }
    }
}

impl World for Server {
    type Peer = Psql;

    fn url(&self) -> String {
        format!("{}?lock=session&key={}", self.postgres.url(), self.convention.parameter)
    }

    fn peer(&self) -> Psql {
        Psql::start(&self.postgres, self.convention)
    }
}

/// A session of psql that its stdin keeps open, and another one that looks on.
struct Psql {
    session: Process,
    pid: String,
    looker: Process,
    convention: &'static Convention,
}

impl Psql {
    fn start(postgres: &Postgres, convention: &'static Convention) -> Self {
        let psql = || {
            let mut psql = Command::new("psql");
            psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
            // An error ends it, and with it the test.
            psql.args(["--set=ON_ERROR_STOP=1", "--dbname", &postgres.url()]);
            Process::start(&mut psql, "postgresql-client")
        };
        let (mut session, looker) = (psql(), psql());
        let pid = session.ask("select pg_backend_pid();");
        Self { session, pid, looker, convention }
    }

    fn is(process: &mut Process, sql: &str) -> bool {
        let answer = process.ask(sql);
        assert!(answer == "t" || answer == "f", "`{sql}`: {answer}");
        answer == "t"
    }
}

impl Peer for Psql {
    fn try_acquire(&mut self, name: &str, _: Duration) -> Option<String> {
        let sql = format!("select pg_try_advisory_lock({});", self.convention.key(name));
        // Its application_name, unless one is set.
        Self::is(&mut self.session, &sql).then(|| "psql".to_owned())
    }

    fn starts_waiting(&mut self, name: &str, _: Duration) {
        let key = self.convention.key(name);
        self.session.tell(&format!("select pg_advisory_lock({key})::text || 'held';"));
        let waits = format!("select exists (select from pg_locks where not granted and pid = {});", self.pid);
        let deadline = Instant::now() + WAITS_WITHIN;
        while !Self::is(&mut self.looker, &waits) {
            assert!(Instant::now() < deadline, "psql does not wait for {name}");
        }
    }

    fn gets_it(&mut self) {
        assert_eq!(self.session.answer(), "held");
    }

    fn still_holds(&mut self, _: &str, _: Duration) -> bool {
        let sql = "select exists (select from pg_locks where locktype = 'advisory' and granted and pid = pg_backend_pid());";
        Self::is(&mut self.session, sql)
    }

    fn release(&mut self, name: &str) -> bool {
        let sql = format!("select pg_advisory_unlock({});", self.convention.key(name));
        Self::is(&mut self.session, &sql)
    }

    fn crash(mut self) {
        self.session.kill();
    }
}

prove! {
    Server::start() =>
    two_of_them_exclude_each_other,
    while_they_hold_we_are_told_who_and_get_it_after_their_release,
    while_we_hold_they_fail_and_get_it_after_our_release,
    when_they_crash_we_get_it,
    when_we_crash_they_get_it,
}

/// Both ways for each convention; a key that only one side makes would be free for the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_convention_makes_the_key_that_its_library_makes() {
    let mut server = Server::start();
    for convention in CONVENTIONS {
        let (parameter, name) = (convention.parameter, convention.name);
        server.convention = convention;
        let locks = Locks::connect(&server.url()).await.unwrap();
        let mut peer = server.peer();
        let guard = locks.mutex(name).wait(Wait::No).acquire().await.unwrap();
        assert!(!peer.finds_free(name, TTL), "{parameter}: they get {name} while we hold it");
        assert!(peer.finds_free("another", TTL) || !convention.sql.contains('$'), "{parameter}");
        guard.release().await.unwrap();
        peer.takes(name, TTL);
        let taken = locks.mutex(name).try_acquire().await.unwrap();
        assert!(taken.is_none(), "{parameter}: we get {name} while they hold it");
        assert!(peer.release(name));
    }
}
