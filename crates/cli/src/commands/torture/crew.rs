//! The worker processes: starts, stops, resumes, kills and replaces them, and receives their messages.
//!
//! Guarantees: in whichever way this program ends, all workers end with it; no other process is signalled;
//! every wait for a message of a worker has a time limit. The conductor decides which fault is injected into
//! which worker, and when.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::runtime::Handle;

use super::proxy::Proxy;
use super::worker::{Orders, Point};
use crate::exit::{Failure, INTERNAL};

/// How long workers may take to end after their pipes are closed.
const PARTING: Duration = Duration::from_secs(5);

/// Why the run stops early.
pub(super) enum Stop {
    /// A termination signal arrived.
    Interrupted,
    /// The run can't continue.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// An event from a worker or from the signal handler.
pub(super) enum CrewEvent {
    /// The worker with this serial number has reached a point, and waits there.
    At(u32, Point),
    /// A worker reported a failure, with its exit code and message, or sent an invalid line.
    Failed(u32, Failure),
    /// A worker has closed its standard output: its process has ended.
    Gone(u32),
    /// This program received a termination signal.
    Interrupted,
}

/// One worker.
struct CrewMember {
    child: Child,
    go: Option<ChildStdin>,
    proxy: Option<Proxy>,
}

impl Drop for CrewMember {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All workers, by serial number.
pub(super) struct Crew {
    orders: Orders,
    /// The hosts behind each worker's proxy if connections will be cut; else empty.
    hosts: Vec<(String, u16)>,
    directory: PathBuf,
    runtime: Handle,
    workers: BTreeMap<u32, CrewMember>,
    next: u32,
    tell: mpsc::Sender<CrewEvent>,
    told: mpsc::Receiver<CrewEvent>,
}

impl Crew {
    /// A crew without workers. `orders` are common to all workers; `start` sets the fields that differ.
    pub(super) fn new(
        orders: Orders,
        hosts: Vec<(String, u16)>,
        directory: PathBuf,
        runtime: Handle,
    ) -> Self {
        let (tell, told) = mpsc::channel();
        Self { orders, hosts, directory, runtime, workers: BTreeMap::new(), next: 0, tell, told }
    }

    /// A sender for events of this crew.
    pub(super) fn sender(&self) -> mpsc::Sender<CrewEvent> {
        self.tell.clone()
    }

    /// The journals of all workers ever started, by serial number.
    pub(super) fn journals(&self) -> impl Iterator<Item = (u32, PathBuf)> {
        (0..self.next).map(|serial| (serial, self.journal(serial)))
    }

    fn journal(&self, serial: u32) -> PathBuf {
        self.directory.join(format!("worker-{serial}.log"))
    }

    /// Starts one more worker.
    ///
    /// # Errors
    /// The OS refuses a process, a pipe or a port.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        let serial = self.next;
        let proxy = if self.hosts.is_empty() {
            None
        } else {
            Some(Proxy::start(&self.orders.locks, &self.hosts, &self.runtime)?)
        };
        let orders = Orders {
            locks: proxy.as_ref().map_or(&self.orders.locks, |proxy| &proxy.url).clone(),
            journal: self.journal(serial),
            serial,
            ..self.orders.clone()
        };
        let mut child = Command::new("/proc/self/exe")
            .args(["torture", "--worker"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A process group of its own keeps the worker out of the terminal's foreground group: Ctrl-C must
            // reach the conductor only.
            .process_group(0)
            .spawn()?;
        let (go, says) = (child.stdin.take(), child.stdout.take());
        let mut worker = CrewMember { child, go, proxy };
        let (Some(go), Some(says)) = (&mut worker.go, says) else {
            return Err(Failure::new(INTERNAL, "a worker was started without its pipes"));
        };
        go.write_all(format!("{}\n", orders.to_line()).as_bytes())?;
        let tell = self.tell.clone();
        std::thread::Builder::new().spawn(move || {
            // Sending fails only if the conductor has ended.
            for line in BufReader::new(says).lines().map_while(Result::ok) {
                let _ = tell.send(event(serial, &line));
            }
            let _ = tell.send(CrewEvent::Gone(serial));
        })?;
        self.workers.insert(serial, worker);
        self.next += 1;
        Ok(())
    }

    /// Waits for the next worker that is at a point; `None` if there is none before `until`.
    ///
    /// # Errors
    /// A worker failed, or a termination signal arrived.
    pub(super) fn next(&mut self, until: Instant) -> Result<Option<(u32, Point)>, Stop> {
        loop {
            let Ok(event) = self.told.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                return Ok(None);
            };
            match event {
                CrewEvent::Interrupted => return Err(Stop::Interrupted),
                // A message of a worker that was killed after it had sent the message: ignored.
                CrewEvent::At(serial, _) | CrewEvent::Gone(serial) | CrewEvent::Failed(serial, _)
                    if !self.workers.contains_key(&serial) => {}
                CrewEvent::At(serial, point) => return Ok(Some((serial, point))),
                CrewEvent::Failed(_, failure) => return Err(failure.into()),
                CrewEvent::Gone(serial) => {
                    let why = format!("worker {serial} ended by itself; its own message is above");
                    return Err(Failure::new(INTERNAL, why).into());
                }
            }
        }
    }

    /// Lets a worker continue from its point.
    ///
    /// # Errors
    /// The pipe can't be written.
    pub(super) fn go(&mut self, serial: u32) -> Result<(), Stop> {
        let go = self.workers.get_mut(&serial).and_then(|worker| worker.go.as_mut());
        match go.map(|go| go.write_all(b"go\n")) {
            None | Some(Ok(())) => Ok(()),
            // The worker has ended; an event reports its failure or its end.
            Some(Err(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Stops a worker's process (SIGSTOP) and waits until it is stopped.
    ///
    /// # Errors
    /// The OS refuses.
    pub(super) fn stop(&self, serial: u32) -> Result<(), Stop> {
        let Some(pid) = self.pid(serial) else { return Ok(()) };
        kill(pid, Signal::SIGSTOP).map_err(std::io::Error::from)?;
        // WNOWAIT: a process that has ended is not reaped here.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid), flags).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Continues a stopped process.
    ///
    /// # Errors
    /// The OS refuses.
    pub(super) fn resume(&self, serial: u32) -> Result<(), Stop> {
        let Some(pid) = self.pid(serial) else { return Ok(()) };
        Ok(kill(pid, Signal::SIGCONT).map_err(std::io::Error::from)?)
    }

    /// Kills a worker's process, and starts another in its place.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(super) fn kill(&mut self, serial: u32) -> Result<(), Stop> {
        self.workers.remove(&serial);
        Ok(self.start()?)
    }

    /// Closes a worker's connections to the lock service, and closes new ones at once, until
    /// [`heal`](Self::heal).
    pub(super) fn cut(&self, serial: u32) {
        if let Some(proxy) = self.workers.get(&serial).and_then(|worker| worker.proxy.as_ref()) {
            proxy.cut();
        }
    }

    /// Lets a worker open connections to the lock service again.
    pub(super) fn heal(&self, serial: u32) {
        if let Some(proxy) = self.workers.get(&serial).and_then(|worker| worker.proxy.as_ref()) {
            proxy.heal();
        }
    }

    /// The number of workers.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Ends all workers, which must be idle, by closing their pipes, and waits until they have closed their
    /// sessions and ended. A worker that has not ended after `PARTING`, or at a termination signal, is killed
    /// by [`dismiss`](Self::dismiss) or by the crew's drop.
    pub(super) fn part(&mut self) {
        for worker in self.workers.values_mut() {
            worker.go = None;
        }
        let until = Instant::now() + PARTING;
        let mut left = self.workers.len();
        while left > 0 {
            match self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(CrewEvent::Gone(_)) => left -= 1,
                Ok(CrewEvent::Interrupted) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Kills all workers at once.
    pub(super) fn dismiss(&mut self) {
        self.workers.clear();
    }

    fn pid(&self, serial: u32) -> Option<Pid> {
        self.workers.get(&serial).and_then(|worker| i32::try_from(worker.child.id()).ok()).map(Pid::from_raw)
    }
}

fn event(serial: u32, line: &str) -> CrewEvent {
    if let Some(point) = Point::named(line) {
        return CrewEvent::At(serial, point);
    }
    let mut words = line.splitn(3, ' ');
    let failure = match (words.next(), words.next().and_then(|code| code.parse().ok()), words.next()) {
        (Some("failed"), Some(code), Some(why)) => Failure::new(code, format!("worker {serial}: {why}")),
        _ => Failure::new(INTERNAL, format!("worker {serial} said what no worker says: {line}")),
    };
    CrewEvent::Failed(serial, failure)
}
