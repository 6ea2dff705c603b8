//! Stalls of the service (P9), and of a holder (P5, P3).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::{BootInstant, Fenced, LockName, Locks, LossCause};
use lockkeeper_fence::{FileError, FileFence, Refused, Section};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinSet;

use crate::faults::server::{LONG, PATIENCE, Server, answer, within};

const SECOND: Duration = Duration::from_secs(1);
/// The ttl of sessions whose lease deadline must pass at the client during the stall. Long enough that it
/// does not pass before or after the stall on a busy machine or disk.
const SHORT: Duration = Duration::from_secs(4);
const LESS_SHORT: Duration = Duration::from_secs(5);
/// The duration of the stall: longer than `SHORT` and `LESS_SHORT`.
const STALL: Duration = Duration::from_secs(7);
/// Environment variable with the service's URL. If it is set, this test binary was started as a child process
/// and is a holder. `HOLDER_FILE` then has the path of the fenced file.
const HOLDER: &str = "LK_FAULTS_HOLDER";
const HOLDER_FILE: &str = "LK_FAULTS_HOLDER_FILE";

/// The ids of all live sessions.
pub(crate) async fn sessions(locks: &Locks<Fenced>) -> Vec<u64> {
    answer("the service answers", async || locks.sessions().await.ok()).await.iter().map(|it| it.id).collect()
}

/// The holder, and the waiters in their order.
pub(crate) async fn queue(locks: &Locks<Fenced>, name: &str) -> (Option<String>, Vec<String>) {
    let name: LockName = name.parse().unwrap();
    let info = answer("the service answers", async || locks.inspect(&name).await.ok()).await;
    let holder = info.holds.first().map(|holder| holder.label.clone());
    (holder, info.waiters.iter().map(|waiter| waiter.label.clone()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_stopped_longer_than_every_ttl_expires_no_session() {
    let server = Server::started("");
    let watcher = server.client("watcher").await;
    let holder = server.client("holder").await;
    let short = holder.mutex("short").ttl(SHORT).acquire().await.unwrap();
    let other = holder.mutex("other").ttl(LESS_SHORT).acquire().await.unwrap();
    let long = holder.mutex("long").ttl(LONG).acquire().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut order = Vec::new();
    for (name, label) in [("short", "first"), ("short", "second"), ("long", "third")] {
        let client = server.client(label).await;
        order.push(label.to_owned());
        let tell = tell.clone();
        tokio::spawn(async move {
            let granted = client.mutex(name).ttl(SHORT).acquire().await;
            // The client is sent, too: dropping it here would end its session.
            tell.send((label, client, granted)).map_err(|_| "the test is over")
        });
        answer("it is in the queue", async || {
            queue(&watcher, name).await.1.contains(&label.to_owned()).then_some(())
        })
        .await;
    }
    let before = sessions(&watcher).await;
    assert_eq!(before.len(), 6, "three of the holder, three of waiters");

    let stopped = Instant::now();
    server.signal(Signal::SIGSTOP);
    // The deadlines pass on the client's side although the service is stalled (P5).
    for guard in [&short, &other] {
        within("the loss is told", guard.lost().cancelled()).await;
        assert_eq!(guard.loss(), Some(LossCause::Expired));
    }
    // Waits for the rest of the stall.
    tokio::time::sleep_until((stopped + STALL).into()).await;
    let early = told.try_recv().map(|(who, _, granted)| (who, granted.map(|it| it.token())));
    assert!(early.is_err(), "nobody answers, nobody is granted anything: {early:?}");
    server.signal(Signal::SIGCONT);

    // The service answers again: the client releases the hold that it has lost, so the lock passes to the
    // waiters in their order.
    let mut last = short.token();
    let mut clients = Vec::new();
    for label in ["first", "second"] {
        let (who, client, granted) = within("the queue goes on", told.recv()).await.unwrap();
        let granted = granted.unwrap();
        assert_eq!(who, label);
        assert!(granted.token() > last);
        last = granted.token();
        within("it is given back", granted.release()).await.unwrap();
        clients.push(client);
    }
    assert_eq!(queue(&watcher, "long").await, (Some("holder".into()), vec!["third".into()]));
    within("the hold is confirmed", long.verify()).await.unwrap();
    assert_eq!(short.loss(), Some(LossCause::Expired), "a loss is for good");
    assert_eq!(sessions(&watcher).await, before, "the same sessions, none ended, none opened anew");
    // The same `Locks` value still works, with the same sessions.
    for (name, ttl) in [("short/new", SHORT), ("other", LESS_SHORT)] {
        let again = holder.mutex(name).ttl(ttl);
        let again = within("a new acquire works", again.acquire()).await.unwrap();
        within("it is given back", again.release()).await.unwrap();
    }
    assert_eq!(sessions(&watcher).await, before);
    within("the hold is given back", long.release()).await.unwrap();
    let (who, _client, granted) = within("the last waiter has its turn", told.recv()).await.unwrap();
    assert!(who == "third" && granted.is_ok());
}

/// Each client has a connection of its own, and its keep-alives wait in that connection's buffer during the
/// stall. Expiries must not be decided before all of them are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_service_expires_none_of_a_thousand_clients() {
    const CLIENTS: usize = 1000;
    // The thousand clients run on one thread. On two cores, all of them have reconnected within this time.
    const TTL: Duration = Duration::from_secs(15);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let server = Server::started("");
    let holder = server.client("holder").await;
    let _held = holder.mutex("crowded").ttl(LONG).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for number in 0..CLIENTS {
        let client = server.client(&format!("client {number}")).await;
        waiting.spawn(async move { client.mutex("crowded").ttl(TTL).acquire().await.map(drop) });
    }
    answer("all are in the queue", async || {
        (holder.inspect("crowded").await.ok()?.waiter_count == CLIENTS).then_some(())
    })
    .await;
    let before = sessions(&holder).await;
    assert_eq!(before.len(), CLIENTS + 1);
    server.signal(Signal::SIGSTOP);
    tokio::time::sleep(TTL + 2 * SECOND).await;
    server.signal(Signal::SIGCONT);
    assert_eq!(sessions(&holder).await, before, "nobody has expired when it answers again");
    // Whose keep-alives were not heard after the stall would expire in this time.
    tokio::time::sleep(TTL + SECOND).await;
    assert_eq!(sessions(&holder).await, before, "nor later");
    assert!(waiting.try_join_next().is_none(), "all still wait");
}

/// A process that holds a lock and writes through a fence. The test stops it and continues it by signals;
/// killed on drop.
struct Holder {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Holder {
    fn start(url: &str, file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::stalls::the_process_that_holds", "--nocapture"])
            .env(HOLDER, url)
            .env(HOLDER_FILE, file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits for the process's next message `<word number>`, and returns the number.
    fn says(&self, word: &str) -> u64 {
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it did not say {word:?}"));
            // The test harness may print on the same line before the message.
            if let Some((_, rest)) = line.split_once(&format!("<{word} ")) {
                return rest.trim_end_matches('>').parse().unwrap();
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str, number: u64) {
    let mut out = std::io::stdout();
    writeln!(out, "<{word} {number}>").and_then(|()| out.flush()).unwrap();
}

/// Not a test of its own: the body of the `Holder` process. Without the environment variables it returns at
/// once.
#[tokio::test]
async fn the_process_that_holds() {
    let (Ok(url), Some(file)) = (std::env::var(HOLDER), std::env::var_os(HOLDER_FILE)) else { return };
    let locks = Locks::connect_as(&url, "stopped").await.unwrap().fenced().unwrap();
    let fence = FileFence::new(PathBuf::from(file)).unwrap();
    let guard = locks.mutex("job").ttl(2 * SECOND).acquire().await.unwrap();
    let section = Section::exclusive(guard.token());
    fence.enter(section).unwrap();
    fence.write(section, b"of the first").unwrap();
    say("holds", guard.token().get());
    let mut valid_until = 0;
    while let Ok(Some(until)) = guard.valid_until() {
        valid_until = until.as_nanos();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    say("lost", valid_until);
    let refused = fence.write(section, b"of the first, late");
    say("refused", u64::from(matches!(refused, Err(FileError::Refused(Refused::Stale { .. })))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_holder_loses_its_hold_and_its_write_is_refused() {
    let server = Server::started("");
    stop_the_holder(&server.url(), &server.beside("resource")).await;
}

/// Stops a process that holds a lock and writes to the fenced resource `file`. Checks that it loses the hold
/// and that its late write is refused.
pub(crate) async fn stop_the_holder(url: &str, file: &Path) {
    let holder = Holder::start(url, file);
    let first = holder.says("holds");
    holder.signal(Signal::SIGSTOP);
    let locks = Locks::connect_as(url, "next").await.unwrap().fenced().unwrap();
    let next = within("the next one is granted", locks.mutex("job").ttl(LONG).acquire()).await.unwrap();
    let granted_at = BootInstant::now().as_nanos();
    assert!(next.token().get() > first);
    let fence = FileFence::new(file).unwrap();
    let section = Section::exclusive(next.token());
    fence.enter(section).unwrap();
    assert_eq!(fence.read().unwrap().as_deref(), Some(&b"of the first"[..]));

    // The stopped holder resumes between the other holder's read and write. A fence that checks writes only
    // would accept the stopped holder's write.
    holder.signal(Signal::SIGCONT);
    let (valid_until, refused) = (holder.says("lost"), holder.says("refused"));
    assert!(valid_until <= granted_at, "granted at {granted_at}, given up at {valid_until} (P5)");
    assert_eq!(refused, 1, "the stale write is refused");
    fence.write(section, b"of the second").unwrap();
    assert_eq!(fence.read().unwrap().as_deref(), Some(&b"of the second"[..]));
    within("it is given back", next.release()).await.unwrap();
}
