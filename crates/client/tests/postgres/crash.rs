//! Processes that are killed or stopped at any moment, for real.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockkeeper::Locks;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::world::{KINDS, World, until_waiting};

/// Tells this test binary, started anew, what to do until it is killed: `url task`.
const ORDER: &str = "LOCKKEEPER_POSTGRES_ORDER";

struct Victim {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Victim {
    fn start(url: &str, task: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::the_process_that_is_killed", "--nocapture"])
            .env(ORDER, format!("{url} {task}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Until it says this.
    fn until(&mut self, word: &str) {
        let said = self.lines.by_ref().map_while(Result::ok).any(|line| line.ends_with(word));
        assert!(said, "it ended without saying `{word}`");
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
    for kind in KINDS {
        let world = World::start();
        let locks = world.client(kind, "survivor").await;
        for moment in 0..5 {
            let mut victim = Victim::start(&world.url(kind), "loop");
            victim.until("begun");
            tokio::time::sleep(Duration::from_millis(3 * moment)).await;
            drop(victim);
            world.until_nothing_is_left().await;
            locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_process_killed_while_it_waits_holds_up_nobody() {
    for kind in KINDS {
        let world = World::start();
        let (holds, next) = (world.client(kind, "holds").await, world.client(kind, "next").await);
        let held = holds.mutex("a").acquire().await.unwrap();
        let victim = Victim::start(&world.url(kind), "hold");
        until_waiting(&holds, "a", 1).await;
        let waiting = tokio::spawn(async move { next.mutex("a").acquire().await });
        until_waiting(&holds, "a", 2).await;
        drop(victim);
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        world.until_nothing_is_left().await;
    }
}

/// Nothing expires: that is what the page says, and what a fence is for.
#[tokio::test]
async fn a_stopped_process_keeps_its_lock() {
    for kind in KINDS {
        let world = World::start();
        let locks = world.client(kind, "other").await;
        let mut victim = Victim::start(&world.url(kind), "hold");
        victim.until("holding");
        victim.signal(Signal::SIGSTOP);
        // Longer than a probe and its answer may take.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "{kind}");
        victim.signal(Signal::SIGCONT);
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "{kind}");
        drop(victim);
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
}

/// Not a question to the backend, but its victim: without its order it only shows that it has none.
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
