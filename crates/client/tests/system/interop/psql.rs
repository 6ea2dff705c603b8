//! psql with `pg_advisory_lock` against `postgres://…?lock=session`, for each key rule that Lockkeeper
//! offers.
//!
//! There are no leases here: a session holds the lock, and a crash is the end of its connection.

use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::Locks;
use lockkeeper_rig::Postgres;

use crate::interop::peer::{Peer, Process};
use crate::interop::prove;
use crate::interop::scenarios::World;

/// Only bounds the duration of a failing test.
const WAITS_WITHIN: Duration = Duration::from_secs(30);
/// Not used: these locks have no ttl.
const TTL: Duration = Duration::ZERO;

/// A rule that maps lock names to advisory lock keys, with a name to try and the same rule in SQL.
struct Convention {
    /// The value of `?key=` that selects the rule.
    rule: &'static str,
    name: &'static str,
    /// The arguments of `pg_advisory_lock`, with `$` in place of the name as an SQL string literal.
    sql: &'static str,
}

/// The most common form in handwritten SQL.
const PLAIN: Convention = by("hashtextextended", "orders/42", "hashtextextended($, 0)");

const NAME: &str = "orders:42:checkout";
const SHA256: &str = "('x' || encode(substr(sha256(convert_to($, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint";
const OURS: &str = r"('x' || encode(substr(sha256('lockkeeper/1\000' || convert_to($, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint";

/// Keys that PostgreSQL's own functions cannot compute are given as numbers, each from the documentation or a
/// run of the library that defines the rule.
const CONVENTIONS: &[Convention] = &[
    PLAIN,
    by("hashtextextended", "o'brien/ä", "hashtextextended($, 0)"),
    by("hashtext", NAME, "hashtext($)"),
    by("lockkeeper", NAME, OURS),
    by("sha256be", NAME, SHA256),
    by("message-db", NAME, "left('x' || md5($), 17)::bit(64)::bigint"),
    by("tooz", NAME, "get_byte(decode(md5($), 'hex'), 0), get_byte(decode(md5($), 'hex'), 1)"),
    by("crc32", NAME, "763341982"),
    by("ruby", NAME, "763341982, 0"),
    by("ruby:-7", NAME, "763341982, -7"),
    // The example from the sqlx documentation.
    by("sqlx", "my first Postgres advisory lock!", "-5560419505042474287"),
    by("sqlx", NAME, "4162161070278803260"),
    // A short name is packed into a pair, a long one is hashed to a number.
    by("madelson", "job1", "(-3044693829279023105 >> 32)::int, (-3044693829279023105 << 32 >> 32)::int"),
    by("madelson", NAME, "-533755646865238680"),
    by("raw", "42", "$::bigint"),
    by("raw", "1,2", "split_part($, ',', 1)::int, split_part($, ',', 2)::int"),
    by("sqlx-migrations", "mydb", "293176876009260204"),
    by("rails-migrations", "mydb", "586353752304064290"),
    by("golang-migrate", "mydb", "3799279374"),
    by("golang-migrate", "public/schema_migrations/mydb", "2103762914"),
];

const fn by(rule: &'static str, name: &'static str, sql: &'static str) -> Convention {
    Convention { rule, name, sql }
}

impl Convention {
    /// The arguments of `pg_advisory_lock` for `name`.
    fn key(&self, name: &str) -> String {
        self.sql.replace('$', &format!("'{}'", name.replace('\'', "''")))
    }
}

/// A server, and a convention used by both sides.
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
        format!("{}?lock=session&key={}", self.postgres.url(), self.convention.rule)
    }

    fn peer(&self) -> Psql {
        Psql::start(&self.postgres, self.convention)
    }
}

/// A psql session, kept open by its stdin, and a second one that observes it.
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
            // An SQL error ends psql, and then the test fails.
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
        // Lockkeeper shows a foreign holder by its `application_name`, here `psql`, and its process id.
        Self::is(&mut self.session, &sql).then(|| format!("psql (process {} of the server)", self.pid))
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

mod by_session {
    use super::*;

    prove! {
        Server::start() =>
        two_peers_exclude_each_other,
        a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
        our_hold_excludes_peers_until_its_release,
        a_crashed_peers_lock_is_granted_to_us,
        our_crashed_holders_lock_is_granted_to_a_peer,
    }
}

/// Tries both directions for each rule. If the two sides computed different keys, they would not exclude each
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_rule_computes_the_same_key_as_its_library() {
    let mut server = Server::start();
    for convention in CONVENTIONS {
        let Convention { rule, name, .. } = *convention;
        server.convention = convention;
        let locks = Locks::connect(&server.url()).await.unwrap();
        let mut peer = server.peer();
        let guard = locks.mutex(name).acquire().await.unwrap();
        assert!(!peer.finds_free(name, TTL), "{rule}: they get {name} while we hold it");
        guard.release().await.unwrap();
        peer.takes(name, TTL);
        let ours = locks.mutex(name).try_acquire().await.unwrap();
        assert!(ours.is_none(), "{rule}: we get {name} while they hold it");
        assert!(peer.release(name));
    }
}

/// The error for an unknown rule lists all rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_rule_is_tested() {
    let server = Server::start();
    let url = format!("{}?lock=session&key=none", server.postgres.url());
    let error = Locks::connect(&url).await.map(drop).unwrap_err().to_string();
    let (_, list) =
        error.split_once("a rule for keys:").unwrap_or_else(|| panic!("no list of rules: {error}"));
    let rules: Vec<&str> = list.split('`').skip(1).step_by(2).filter(|rule| *rule != "ruby:PREFIX").collect();
    assert!(rules.contains(&"lockkeeper"), "{error}");
    for rule in rules {
        assert!(CONVENTIONS.iter().any(|convention| convention.rule == rule), "`{rule}` is not tried here");
    }
}
