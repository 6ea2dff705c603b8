//! Servers that fail to start, and the servers of a test that is killed: this program runs itself as such a
//! test.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::panic::{UnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::thread;

use lockkeeper_rig::{PgBouncer, Postgres, Redis};

use crate::{listens, lives, until};

/// Starts a server, which must panic, and returns the text of the panic.
fn panics<T>(start: impl FnOnce() -> T + UnwindSafe) -> String {
    let Err(panic) = catch_unwind(start) else { panic!("it has started") };
    *panic.downcast::<String>().unwrap()
}

#[test]
fn a_server_that_does_not_start_is_a_panic_with_the_end_of_its_log() {
    let redis = panics(|| Redis::with(&["--no-such-setting", "1"]));
    assert!(redis.contains("redis-server ended before it was ready"), "{redis}");
    assert!(redis.contains("no-such-setting"), "{redis}");
    let postgres = panics(|| Postgres::with(&["-c", "max_connections=lots"]));
    assert!(postgres.contains("postgres ended before it was ready"), "{postgres}");
    assert!(postgres.contains("max_connections") && postgres.contains("lots"), "{postgres}");
}

const VICTIM: &str = "LOCKKEEPER_RIG_VICTIM";

#[test]
fn the_servers_of_a_killed_test_end_with_it() {
    if env::var_os(VICTIM).is_some() {
        return be_killed();
    }
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", "end::the_servers_of_a_killed_test_end_with_it", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.find(|line| line.starts_with("servers ")).expect("it has started its servers");
    let numbers: Vec<u32> = told.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
    let (pids, ports) = numbers.split_at(2);
    let ports: Vec<u16> = ports.iter().map(|port| u16::try_from(*port).unwrap()).collect();
    assert!(pids.iter().all(|pid| lives(*pid)) && ports.iter().all(|port| listens(*port)));
    let victims = format!("-{}-", victim.id());
    let left = || {
        let names = std::fs::read_dir(env::temp_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().contains(&victims)).count()
    };
    assert_eq!(left(), 3);
    victim.kill().unwrap();
    victim.wait().unwrap();
    until("its servers are gone", || {
        !pids.iter().any(|pid| lives(*pid)) && !ports.iter().any(|port| listens(*port))
    });
    drop(Redis::start());
    assert_eq!(left(), 0, "the next server removes what it finds");
}

/// Starts servers and prints their pids and ports; then waits to be killed. One server is started on a thread
/// that ends at once, which must not end the server.
fn be_killed() {
    let redis = thread::spawn(Redis::start).join().unwrap();
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres);
    assert_eq!(redis.cli(&["PING"]), "PONG");
    let (redis_pid, postgres_pid) = (redis.pid().unwrap(), postgres.pid().unwrap());
    let ports = format!("{} {} {}", redis.port(), postgres.port(), bouncer.port());
    let mut out = std::io::stdout();
    // The test runner has printed the beginning of a line already.
    writeln!(out, "\nservers {redis_pid} {postgres_pid} {ports}").unwrap();
    loop {
        thread::park();
    }
}
