//! `lockkeeper:`, a real process of the service, with a proxy before it for each client.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use lockkeeper::{BreakOrder, HolderState, Locks};
use lockkeeper_server::Options;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::proxy::Faults;
use crate::subject::{Subject, until};

/// Tells this test binary, started anew, to serve until it is killed: `directory listen`.
const SERVE: &str = "LOCKKEEPER_CONTRACT_SERVE";

pub(crate) struct Service {
    directory: TempDir,
    faults: Faults,
    server: Mutex<Server>,
    address: SocketAddr,
}

/// The process; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (server, address) = start(directory.path(), "127.0.0.1:0");
        Self { directory, faults: Faults::default(), server: Mutex::new(server), address }
    }

    fn kill(&self) {
        let mut server = self.server.lock().unwrap();
        server.0.kill().unwrap();
        server.0.wait().unwrap();
    }

    fn start_again(&self) {
        let (server, address) = start(self.directory.path(), &self.address.to_string());
        assert_eq!(address, self.address);
        *self.server.lock().unwrap() = server;
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.server.lock().unwrap().0.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
    }

    /// A client that no fault reaches.
    async fn operator(&self) -> Locks {
        Locks::connect_as(&format!("lockkeeper://{}", self.address), "operator").await.unwrap()
    }
}

/// Starts the service on a directory and waits until it serves.
fn start(directory: &Path, listen: &str) -> (Server, SocketAddr) {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "subjects::service::the_process_that_serves", "--nocapture"])
        .env(SERVE, format!("{} {listen}", directory.join("data").display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let server = Server(server);
    let address = lines
        .find_map(|line| line.split_once("serving at ").map(|(_, address)| address.parse().unwrap()))
        .expect("the service ended without serving");
    // It is a test binary, which says from time to time that it still runs, and ends if nobody listens.
    std::thread::spawn(move || lines.for_each(drop));
    (server, address)
}

impl Subject for Service {
    fn scheme(&self) -> &'static str {
        "lockkeeper"
    }

    async fn client(&self, label: &str) -> Locks {
        let proxy = self.faults.proxy(label, self.address);
        Locks::connect_as(&format!("lockkeeper://{proxy}"), label).await.unwrap()
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let ttl = Duration::from_secs(2);
        let client = self.client(&label).await;
        let lock = client.mutex(name).ttl(ttl).keep_closed(keep_closed).lock_delay(lock_delay);
        let held = lock.acquire().await.unwrap();
        self.faults.cut_off(&label);
        let (operator, name) = (self.operator().await, name.parse().unwrap());
        until("the session is over", async || {
            let info = operator.inspect(&name).await.unwrap();
            (!info.holders.iter().any(|holder| holder.state == HolderState::Held)).then_some(())
        })
        .await;
        drop(held);
    }

    /// The holder listens: a service that waited for its ttl would need minutes for the suite's rounds.
    async fn take_away(&self, _label: &str, name: &str) {
        let operator = self.operator().await;
        let name = name.parse().unwrap();
        let token = operator.inspect(&name).await.unwrap().holders[0].token.unwrap();
        let order =
            BreakOrder { name, token, reason: "taken away".into(), by: "the suite".into(), now: false };
        operator.break_hold(order).await.unwrap();
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    /// They are lost with their connection; what was lost is sent again on the next, so that no caller hears of it.
    fn lose_calls(&self, count: u32) -> bool {
        self.faults.lose_calls(count);
        false
    }

    fn stall(&self, duration: Duration) -> bool {
        self.signal(Signal::SIGSTOP);
        std::thread::sleep(duration);
        self.signal(Signal::SIGCONT);
        true
    }

    async fn restart(&self) {
        self.kill();
        self.start_again();
    }

    async fn wipe(&self) {
        self.kill();
        std::fs::remove_dir_all(self.directory.path().join("data")).unwrap();
        self.start_again();
    }
}

/// Not a question to the backend, but the service itself: without its order it only shows that it has none.
#[test]
fn the_process_that_serves() {
    let Ok(order) = std::env::var(SERVE) else { return };
    let (directory, listen) = order.split_once(' ').expect("an order");
    let options = Options { listen: listen.to_owned(), ..Options::new(directory) };
    let served = lockkeeper_server::run(options, |running| {
        let mut out = std::io::stdout();
        writeln!(out, "serving at {}", running.address()).and_then(|()| out.flush()).unwrap();
    });
    served.unwrap();
}
