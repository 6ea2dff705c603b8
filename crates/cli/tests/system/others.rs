//! The commands with other lock services: Redis, Redlock, PostgreSQL; each test starts its own servers.

use lockkeeper_cli::exit;
use lockkeeper_rig::{Postgres, Redis};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::once::once;
use crate::support::{CommandExt, TestDir, wait_until};

/// A Redis whose settings permit fencing.
fn fencing_redis() -> (Redis, TestDir) {
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let test = TestDir::new().over(&format!("{}?fencing=counter", redis.url()));
    (redis, test)
}

/// A database prepared by `postgres init`.
fn prepared_postgres(kind: &str) -> (Postgres, TestDir) {
    let server = Postgres::start();
    let test = TestDir::new().over(&format!("{}?lock={kind}", server.url()));
    let made = test.bare(["postgres", "init", &server.url()]).ended();
    assert_eq!((made.code, made.out.as_str()), (0, ""), "{made:?}");
    (server, test)
}

/// Checks the behaviour that every lock service with fencing must have.
fn runs_and_excludes(test: &TestDir) {
    let ran = test.lockkeeper(["run", "jobs/1", "--", "sh", "-c", "echo $LOCKKEEPER_NAME"]).ended();
    assert_eq!((ran.code, ran.out.as_str()), (0, "jobs/1\n"), "{ran:?}");
    let holder = test.holder("jobs/1", &[]);
    let busy = test.ran("run --try jobs/1 -- true");
    assert_eq!(busy.code, i32::from(exit::BUSY), "{busy:?}");
    let shown = test.shown("jobs/1");
    assert_eq!(shown["holds"][0]["token"], holder.token);
    let waiter = test.lockkeeper(["run", "jobs/1", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]).started();
    test.wait_for_waiters("jobs/1", 1);
    assert!(test.ran("ls").out.contains("jobs/1"));
    assert_eq!(test.ran(&format!("check-token jobs/1 {}", holder.token)).code, 0);
    // The holder's wrapper ends its job and releases the lock.
    let broken = test.ran(&format!("break jobs/1 --token {} --reason test", holder.token));
    assert_eq!(broken.code, 0, "{broken:?}");
    assert_eq!(holder.ended().code, i32::from(exit::LOST));
    let next = waiter.ended();
    assert_eq!(next.code, 0, "{next:?}");
    assert_ne!(next.out.trim(), "");
}

#[test]
fn run_works_with_redis() {
    let (_redis, test) = fencing_redis();
    runs_and_excludes(&test);
}

#[test]
fn run_works_with_postgres_row_locks() {
    let (_server, test) = prepared_postgres("row");
    runs_and_excludes(&test);
}

#[test]
fn run_works_with_postgres_session_locks() {
    let (_server, test) = prepared_postgres("session");
    runs_and_excludes(&test);
}

#[test]
fn without_fencing_the_job_gets_no_token() {
    let nodes = [Redis::start(), Redis::start(), Redis::start()];
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    for url in [nodes[0].url(), format!("redlock://{}", hosts.join(","))] {
        let test = TestDir::new().over(&url);
        let script = r#"echo "token:${LOCKKEEPER_TOKEN-none}""#;
        let ran = test.lockkeeper(["run", "a", "--", "sh", "-c", script]).ended();
        assert_eq!((ran.code, ran.out.as_str()), (0, "token:none\n"), "{url}: {ran:?}");
        let said: Value = serde_json::from_str(&test.ran("doctor --json").out).unwrap();
        assert_eq!((&said["abilities"]["fencing"], &said["token"]), (&false.into(), &Value::Null), "{said}");
        let (has_queue, latest) = (url.starts_with("redis"), test.ran("run --latest a -- true"));
        if has_queue {
            assert_eq!(latest.code, 0, "{latest:?}");
        } else {
            latest.is_one_line(exit::USAGE, &["`--latest` needs a lock service with a queue"]);
        }
    }
}

#[test]
fn lock_lost_by_its_server_ends_the_job() {
    let (redis, test) = fencing_redis();
    let holder = test.holder("a", &["--ttl", "3s", "--status-file", "status.json"]);
    redis.cli(&["FLUSHALL"]);
    let ended = holder.ended();
    assert_eq!(ended.code, i32::from(exit::LOST), "{ended:?}");
    assert!(ended.err.contains("does not know it any more"), "{ended:?}");
    assert_eq!(crate::support::json_file(&test.path("status.json"))["lost"], "forgotten");
}

#[test]
fn job_ends_before_its_lease_if_the_server_is_stopped() {
    let (redis, test) = fencing_redis();
    let holder = test.holder("a", &["--ttl", "2s"]);
    redis.stop();
    let ended = holder.ended();
    assert_eq!(ended.code, i32::from(exit::LOST), "{ended:?}");
    redis.cont();
    wait_until("the next one may run", || test.ran("run --try a -- true").code == 0);
}

#[test]
fn death_of_the_server_ends_the_job_of_a_session_lock() {
    let (server, test) = prepared_postgres("session");
    let holder = test.holder("a", &[]);
    server.kill();
    let ended = holder.ended();
    assert_eq!(ended.code, i32::from(exit::LOST), "{ended:?}");
    assert!(ended.err.contains("connection"), "{ended:?}");
}

#[test]
fn doctor_warns_about_unsafe_server_settings() {
    let lax =
        Redis::with(&["--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let test = TestDir::new().over(&lax.url());
    let ended = test.ran("doctor");
    for words in ["warning", "allkeys-lru", "append"] {
        assert!(ended.out.contains(words), "no {words:?} in {ended:?}");
    }
    assert_eq!(ended.code, i32::from(exit::UNHEALTHY), "{ended:?}");
    let (server, test) = prepared_postgres("row");
    server.psql("ALTER SYSTEM SET synchronous_commit = off");
    server.psql("SELECT pg_reload_conf()");
    wait_until("the setting is read", || server.psql("SHOW synchronous_commit").contains("off"));
    let told = test.ran("doctor").out;
    assert!(told.contains("warning") && told.contains("synchronous_commit"), "{told}");
}

#[test]
fn passwords_are_not_printed() {
    let redis = Redis::with(&["--requirepass", "s3cret"]);
    let test = TestDir::new().over(&redis.url_as("", "s3cret"));
    let told = test.ran("doctor");
    assert!(told.err.is_empty(), "{told:?}");
    let wrong = TestDir::new().over(&redis.url_as("", "wr0ng")).ran("run a -- true");
    assert_eq!(wrong.code, i32::from(exit::PERMISSION), "{wrong:?}");
    assert!(wrong.err.contains("password"), "{wrong:?}");
    for text in [told.out, told.err, wrong.out, wrong.err, test.ran("run --help").out] {
        assert!(!text.contains("s3cret") && !text.contains("wr0ng"), "{text}");
    }
}

#[test]
fn unsupported_operations_are_refused_on_one_line() {
    let (_redis, test) = fencing_redis();
    for line in ["sessions", "set-limit a 3"] {
        test.ran(line).is_one_line(exit::USAGE, &["only our own service", "lockkeeper://"]);
    }
    test.ran("run --shared a -- true").is_one_line(exit::USAGE, &["redis", "share"]);
}

#[test]
fn postgres_init_prints_its_sql_and_is_idempotent() {
    let (server, test) = prepared_postgres("row");
    let printed = test.bare(["postgres", "init", "--print", "--role", "app"]).ended();
    assert_eq!(printed.code, 0, "{printed:?}");
    assert!(printed.out.contains("CREATE SCHEMA") && printed.out.contains("\"app\""), "{}", printed.out);
    server.psql("CREATE ROLE app LOGIN");
    let again = test.bare(["postgres", "init", &server.url(), "--role", "app"]).ended();
    assert_eq!(again.code, 0, "{again:?}");
    let least = TestDir::new().over(&format!("{}?lock=row", server.url_as("app")));
    assert_eq!(least.ran("run a -- true").code, 0);
    let missing = Postgres::start();
    let without = TestDir::new().over(&format!("{}?lock=row", missing.url())).ran("run a -- true");
    assert!(without.code >= 64 && without.err.contains("lockkeeper postgres init"), "{without:?}");
}

#[test]
fn stopped_wrapper_loses_a_lease_but_keeps_a_session_lock() {
    let (_redis, test) = fencing_redis();
    let stopped = test.holder("a", &["--ttl", "2s"]);
    stopped.signal(Signal::SIGSTOP);
    wait_until("the lease is over", || test.ran("run --try a -- true").code == 0);
    stopped.signal(Signal::SIGCONT);
    assert_eq!(stopped.ended().code, i32::from(exit::LOST));

    let (_server, test) = prepared_postgres("session");
    let stopped = test.holder("a", &[]);
    stopped.signal(Signal::SIGSTOP);
    assert_eq!(test.ran("run --wait 3s a -- true").code, i32::from(exit::BUSY));
    stopped.signal(Signal::SIGCONT);
    stopped.signal(Signal::SIGTERM);
    wait_until("it is given back", || test.ran("run --try a -- true").code == 0);
}

#[test]
fn marks_in_redis_are_shown_and_reset_by_resource() {
    let redis = Redis::start();
    let test = TestDir::new();
    let url = redis.url();
    assert_eq!(test.ran(&format!("fence show {url} orders/42")).out, "any none, writer none\n");
    redis.cli(&["HSET", "{orders/42}:lockkeeper:fence", "any", "900", "writer", "900", "any:3", "901"]);
    let shown = test.ran(&format!("fence show {url} orders/42")).out;
    assert_eq!(shown, "any 900, writer 900\nslot 3: any 901, writer none\n");
    test.ran(&format!("fence show {url}")).is_one_line(exit::USAGE, &[&url, "resource's name"]);
    let unsure = test.ran(&format!("fence reset {url} orders/42 --to 17"));
    unsure.is_one_line(exit::USAGE, &["orders/42", "to 17", "any 900", "--yes"]);
    let done = test.ran(&format!("fence reset {url} orders/42 --to 17 --yes"));
    assert!(done.out.ends_with("after:  any 17, writer 17\n"), "{done:?}");
    // While the marks are damaged, the fence refuses everything; a reset replaces them.
    redis.cli(&["HSET", "{orders/42}:lockkeeper:fence", "any", "x"]);
    test.ran(&format!("fence show {url} orders/42")).is_one_line(exit::IO, &["orders/42"]);
    let mended = test.ran(&format!("fence reset {url} orders/42 --to 18 --yes --json"));
    let json: Value = serde_json::from_str(&mended.out).unwrap();
    assert_eq!((&json["before"], &json["after"]["any"]), (&Value::Null, &18.into()), "{mended:?}");
    test.ran("fence show redis://127.0.0.1:1 x").is_one_line(exit::UNAVAILABLE, &["127.0.0.1:1"]);
    test.ran("fence show etcd://host x").is_one_line(exit::USAGE, &["etcd://host", "a file's path"]);
}

#[test]
fn marks_in_postgres_are_shown_and_reset_by_resource() {
    let server = Postgres::start();
    let test = TestDir::new();
    let url = server.url();
    let show = format!("fence show {url} stock");
    test.ran(&show).is_one_line(exit::USAGE, &["lockkeeper_fence", "SCHEMA_SQL"]);
    server.psql(lockkeeper_fence::postgres::SCHEMA_SQL);
    assert_eq!(test.ran(&show).out, "any none, writer none\n");
    server.psql("SELECT lockkeeper_fence.enter('stock', 'exclusive', NULL, 900)");
    assert_eq!(test.ran(&show).out, "any 900, writer 900\n");
    let unsure = test.ran(&format!("fence reset {url} stock --to 17"));
    unsure.is_one_line(exit::USAGE, &["stock", "to 17", "any 900", "--yes"]);
    let done = test.ran(&format!("fence reset {url} stock --to 17 --yes"));
    assert_eq!(done.out, "before: any 900, writer 900\nafter:  any 17, writer 17\n", "{done:?}");
}

#[test]
fn records_of_once_may_be_in_a_database() {
    let (server, redis) = (Postgres::start(), Redis::start());
    for records in [server.url(), redis.url()] {
        let (test, _node) = TestDir::new().served();
        once(&test, &["--records", &records]);
    }
}
