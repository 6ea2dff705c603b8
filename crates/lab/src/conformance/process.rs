//! A driver's process: its commands, and faults of the process.

use std::cell::Cell;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde_json::Value;

use super::history::Wanted;
use super::hold::{Asked, GrantedHold, Want};
use super::log::{DueAnswer, DueAnswerKind, Log, RunRecord, ended, listen};
use super::protocol::{
    AcquireCommand, CommandError, DriverCommand, ErrorKind, Hello, LeadCommand, NumberedCommand,
};
use super::stage::POLL;
use super::{Outcome, ScenarioError, broken};

/// How long a driver may take to start.
const START_MAX: Duration = Duration::from_secs(60);

/// A driver that runs; killed when dropped, with all that it has started.
pub(super) struct DriverProcess {
    /// The driver's name, with the number of its process.
    pub(super) name: String,
    pub(super) hello: Hello,
    ttl: Cell<Duration>,
    child: Child,
    commands: Mutex<Option<ChildStdin>>,
    next_id: Cell<u64>,
    pub(super) log: Arc<Log>,
    pub(super) record: RunRecord,
}

impl DriverProcess {
    /// Starts a driver by a shell's command line, and waits for its first line.
    pub(super) async fn start(command: &str, number: usize, record: &RunRecord) -> Outcome<Self> {
        let mut child = Process::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Signals are meant for it and for what it starts; Ctrl-C is not.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                ScenarioError::Failed(format!("`sh -c {command:?}` can't be started: {error}"))
            })?;
        let (Some(commands), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ScenarioError::Failed("a driver was started without its pipes".to_owned()));
        };
        let log = Arc::<Log>::default();
        listen(says, log.clone(), record.clone());
        let mut driver = Self {
            name: command.to_owned(),
            hello: Hello {
                driver: String::new(),
                version: String::new(),
                protocol: 0,
                schemes: Vec::new(),
                modes: Vec::new(),
                features: Vec::new(),
            },
            ttl: Cell::default(),
            child,
            commands: Mutex::new(Some(commands)),
            next_id: Cell::new(1),
            log,
            record: record.clone(),
        };
        let hello = driver.log.until(START_MAX, |log| log.hello.take().or_else(|| ended(log))).await;
        // A driver that does not start says nothing about a promise.
        let failed = |why: String| Err(ScenarioError::Failed(format!("`{command}` {why}")));
        driver.hello = match hello {
            Some(Ok(hello)) => hello,
            Some(Err(why)) => return failed(format!("has no first line: {why}")),
            None => return failed(format!("has not written its first line within {START_MAX:?}")),
        };
        driver.name = format!("{} {number}", driver.hello.driver);
        Ok(driver)
    }

    /// Connects it. `Err` is its own answer.
    pub(super) async fn connect(&self, url: &str, ttl: Duration) -> Outcome<Result<(), CommandError>> {
        self.ttl.set(ttl);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let connect = DriverCommand::Connect { url: url.to_owned(), ttl_ms, label: Some(self.name.clone()) };
        Ok(self.call(connect).await?.map(drop))
    }

    /// Sends a command; returns its id.
    pub(super) fn send(&self, command: DriverCommand, kind: DueAnswerKind) -> Outcome<u64> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let line = NumberedCommand { id, command }.text();
        self.log.state().pending.insert(id, DueAnswer { sent: self.record.now(), kind });
        self.write(&line)?;
        Ok(id)
    }

    /// Writes a line, which need not be a command.
    pub(super) fn write(&self, line: &str) -> Outcome {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let written = commands.as_mut().map(|commands| writeln!(commands, "{line}"));
        match written {
            Some(Ok(())) => Ok(()),
            _ => broken(format!("{} has closed its standard input", self.name)),
        }
    }

    pub(super) async fn answer(&self, id: u64, to: &str) -> Outcome<Result<Value, CommandError>> {
        let answered = self
            .log
            .until(self.record.patience, |log| log.answers.remove(&id).map(Ok).or_else(|| ended(log)))
            .await;
        match answered {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(why)) => broken(format!("{} {why}, and `{to}` has no answer", self.name)),
            None => {
                broken(format!("{} has not answered `{to}` within {:?}", self.name, self.record.patience))
            }
        }
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn call(&self, command: DriverCommand) -> Outcome<Result<Value, CommandError>> {
        let to = serde_json::to_string(&command).unwrap_or_default();
        let id = self.send(command, DueAnswerKind::Other)?;
        self.answer(id, &to).await
    }

    /// Blocks the program; `None` if the language has no means for it.
    pub(super) async fn stall(&self, duration: Duration) -> Outcome<Option<()>> {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let id = self.send(DriverCommand::Stall { ms }, DueAnswerKind::Other)?;
        // Its patience begins afterwards.
        tokio::time::sleep(duration).await;
        match self.answer(id, "stall").await? {
            Ok(_) => Ok(Some(())),
            Err(error) if error.kind == ErrorKind::Refused => Ok(None),
            Err(error) => broken(format!("{} answers {error:?} to `stall`", self.name)),
        }
    }

    /// Waits until it has refused `count` lines that have no id.
    pub(super) async fn refusals(&self, count: usize) -> Outcome {
        match self.log.until(self.record.patience, |log| (log.refusals >= count).then_some(())).await {
            Some(()) => Ok(()),
            None => broken(format!("{} has not refused a line without an id", self.name)),
        }
    }

    /// Begins an acquire.
    pub(super) fn ask(self: &Rc<Self>, want: &Want) -> Outcome<Asked> {
        let hold = format!("h{}", self.next_id.get());
        let wanted = Wanted {
            driver: self.name.clone(),
            names: want.names.clone(),
            subtree: want.subtree,
            mode: want.mode,
            permits: want.permits,
            ttl: self.ttl.get(),
            promise: want.promise,
        };
        let mut names = want.names.iter().cloned();
        let lock = names.next().unwrap_or_default();
        let command = match want.is_election {
            true => {
                DriverCommand::Lead(LeadCommand { hold: hold.clone(), election: lock, wait_ms: want.wait_ms })
            }
            false => DriverCommand::Acquire(AcquireCommand {
                hold: hold.clone(),
                lock,
                also: names.collect(),
                mode: want.mode,
                permits: want.permits,
                subtree: want.subtree,
                wait_ms: want.wait_ms,
            }),
        };
        let text = serde_json::to_string(&command).unwrap_or_default();
        let id = self.send(command, DueAnswerKind::Acquire { hold: hold.clone(), wanted })?;
        Ok(Asked { driver: self.clone(), id, hold, text })
    }

    /// Acquires a lock, which must be granted.
    pub(super) async fn acquire(self: &Rc<Self>, want: &Want) -> Outcome<GrantedHold> {
        self.ask(want)?.granted().await
    }

    /// Acquires a free lock after the driver was cut off: its client may say several times that it is not
    /// connected yet.
    pub(super) async fn acquire_again(self: &Rc<Self>, want: &Want) -> Outcome<GrantedHold> {
        let deadline = Instant::now() + self.record.patience;
        loop {
            match self.ask(want)?.answer().await? {
                Ok(held) => return Ok(held),
                Err(error) if error.kind == ErrorKind::Unreachable && Instant::now() < deadline => {}
                Err(CommandError { kind, text }) => {
                    return broken(format!(
                        "{} answers {kind:?} ({text}) to an acquire of a free lock",
                        self.name
                    ));
                }
            }
        }
    }

    fn signal(&self, signal: Signal) -> Outcome {
        killpg(self.pid(), signal)
            .map_err(|error| ScenarioError::Failed(format!("{signal} to a driver: {error}")))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("the system's pids are i32"))
    }

    /// Stops it (SIGSTOP).
    pub(super) fn stop(&self) -> Outcome {
        self.signal(Signal::SIGSTOP)?;
        // WNOWAIT: a process that has ended is not reaped here.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid()), flags).map(drop).map_err(|error| ScenarioError::Failed(error.to_string()))
    }

    /// Continues it.
    pub(super) fn cont(&self) -> Outcome {
        self.signal(Signal::SIGCONT)
    }

    /// Kills it, with all that it has started.
    pub(super) fn kill(&self) -> Outcome {
        self.over();
        self.signal(Signal::SIGKILL)
    }

    /// Ends its input, and waits until it has ended, which must be with 0.
    pub(super) async fn end(&self) -> Outcome {
        self.over();
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).take();
        match self.ended().await? {
            WaitStatus::Exited(_, 0) => Ok(()),
            status => {
                broken(format!("{} ends with {status:?} at the end of its input, and not with 0", self.name))
            }
        }
    }

    /// Tells it to die, and waits until it has ended.
    pub(super) async fn die(&self) -> Outcome {
        self.over();
        self.send(DriverCommand::Die {}, DueAnswerKind::Other)?;
        self.ended().await.map(drop)
    }

    /// From now on its holds count as ended.
    fn over(&self) {
        let (now, log) = (self.record.now(), self.log.state());
        let mut history = self.record.history();
        log.grants.values().for_each(|&grant| history.released(grant, now));
    }

    async fn ended(&self) -> Outcome<WaitStatus> {
        let patience = self.record.patience;
        // WNOWAIT: it is reaped when it is dropped.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = async {
            // What it has written is heard first.
            self.log.until(patience, |log| log.has_ended.then_some(())).await;
            loop {
                match waitid(Id::Pid(self.pid()), flags) {
                    Ok(WaitStatus::StillAlive) => tokio::time::sleep(POLL).await,
                    ended => return ended.map_err(|error| ScenarioError::Failed(error.to_string())),
                }
            }
        };
        match tokio::time::timeout(patience, status).await {
            Ok(status) => status,
            Err(_) => broken(format!("{} has not ended within {patience:?}", self.name)),
        }
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}
