//! Real processes, killed or stopped at any moment.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockkeeper::backends::postgres::tokio_postgres::{self, NoTls};
use lockkeeper::backends::postgres::{PgKey, lock_in_transaction};
use lockkeeper::{Locks, Token};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::session::world::{World, until_waiting};

/// Environment variable that makes a copy of this test binary run a task until it is killed: `url task`.
const ORDER: &str = "LOCKKEEPER_POSTGRES_ORDER";

struct Victim {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Victim {
    fn start(url: &str, task: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "session::crash::the_process_that_is_killed", "--nocapture"])
            .env(ORDER, format!("{url} {task}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Waits for a line that ends with `word`.
    fn until(&mut self, word: &str) {
        let found = self.lines.by_ref().map_while(Result::ok).any(|line| line.ends_with(word));
        assert!(found, "it ended without saying `{word}`");
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_process_killed_while_it_acquires_holds_or_releases_leaves_nothing() {
    let world = World::start();
    let locks = world.client("survivor").await;
    for moment in 0..5 {
        let mut victim = Victim::start(&world.url(), "loop");
        victim.until("begun");
        tokio::time::sleep(Duration::from_millis(3 * moment)).await;
        drop(victim);
        world.until_nothing_is_left().await;
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn killed_waiter_does_not_block_the_queue() {
    let world = World::start();
    let (holds, next) = (world.client("holds").await, world.client("next").await);
    let held = holds.mutex("a").acquire().await.unwrap();
    let victim = Victim::start(&world.url(), "hold");
    until_waiting(&holds, "a", 1).await;
    let waiting = tokio::spawn(async move { next.mutex("a").acquire().await });
    until_waiting(&holds, "a", 2).await;
    drop(victim);
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    world.until_nothing_is_left().await;
}

/// An advisory lock does not expire while its connection is open. This is documented, and a reason for
/// fencing.
#[tokio::test]
async fn a_stopped_process_keeps_its_lock() {
    let world = World::start();
    let locks = world.client("other").await;
    let mut victim = Victim::start(&world.url(), "hold");
    victim.until("holding");
    victim.signal(Signal::SIGSTOP);
    // Longer than the interval of probes and the time limit of their answers (1.2 s together).
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    victim.signal(Signal::SIGCONT);
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    drop(victim);
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

/// A server that flushes its WAL only for commits that wait for the flush: the background writer of the WAL
/// pauses for 10 s, and autovacuum is off. All earlier WAL is flushed.
fn forgetful(more: &[&str]) -> World {
    let world = World::with(&[&["-c", "wal_writer_delay=10s", "-c", "autovacuum=off"], more].concat());
    world.server.psql("checkpoint");
    world
}

fn crash(world: &World) {
    world.server.kill();
    world.server.start_again();
}

async fn connection(world: &World) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&world.server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The token of a lock in a committed transaction without other statements.
async fn token_of_transaction(world: &World) -> Option<Token> {
    let mut client = connection(world).await;
    let transaction = client.transaction().await.unwrap();
    let locked = lock_in_transaction(&transaction, "a", PgKey::default(), false).await.unwrap();
    transaction.commit().await.unwrap();
    locked.token
}

#[tokio::test]
async fn tokens_rise_over_a_crash_with_asynchronous_commit() {
    let world = forgetful(&["-c", "synchronous_commit=off"]);
    let token = async |label| {
        let held = world.client(label).await.mutex("a").acquire().await.unwrap();
        let token = held.token_hint();
        held.release().await.unwrap();
        token
    };
    let before = token("before").await;
    crash(&world);
    let after = token("after").await;
    assert!(before < after, "{before:?}, and {after:?} after the crash");
}

#[tokio::test]
async fn tokens_of_committed_transactions_rise_over_a_crash_with_asynchronous_commit() {
    let world = forgetful(&["-c", "synchronous_commit=off"]);
    let before = token_of_transaction(&world).await;
    crash(&world);
    let after = token_of_transaction(&world).await;
    assert!(before < after, "{before:?}, and {after:?} after the crash");
}

/// A sequence writes WAL only for every 32nd value. So the WAL record that covers a token may belong to
/// another transaction, which has not committed and so has not flushed the record.
#[tokio::test]
async fn tokens_of_committed_transactions_rise_if_an_unfinished_one_logged_them() {
    let world = forgetful(&[]);
    let mut other = connection(&world).await;
    let unfinished = other.transaction().await.unwrap();
    unfinished.batch_execute("select nextval('lockkeeper.token')").await.unwrap();
    let before = token_of_transaction(&world).await;
    crash(&world);
    let after = token_of_transaction(&world).await;
    assert!(before < after, "{before:?}, and {after:?} after the crash");
}

/// Main function of the process that is killed; does nothing unless `ORDER` is set.
#[test]
fn the_process_that_is_killed() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let (url, task) = order.split_once(' ').expect("an order");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let say = |word: &str| {
        let mut out = std::io::stdout();
        writeln!(out, "{word}").and_then(|()| out.flush()).unwrap();
    };
    runtime.block_on(async {
        let locks = Locks::connect_as(url, "victim").await.unwrap();
        if task == "hold" {
            let _held = locks.mutex("a").acquire().await.unwrap();
            say("holding");
            std::future::pending().await
        }
        say("begun");
        loop {
            locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        }
    })
}
