//! A driver's process: its commands, its answers and its events, each recorded with its time.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::sync::Notify;

use super::history::{History, Moment, Wanted};
use super::protocol::{
    AcquireCommand, Command, CommandError, ErrorKind, Granted, Hello, LeadCommand, Line, LockMode, Said, Was,
};
use super::{Outcome, Problem, Promise, broken};

/// How long a driver may take to start.
const START_MAX: Duration = Duration::from_secs(60);

/// The clock and the history of a run.
#[derive(Clone)]
pub(super) struct Record {
    began: Instant,
    /// How long a driver may take to answer, and the lock service to come to a state.
    pub(super) patience: Duration,
    history: Arc<Mutex<History>>,
}

impl Record {
    pub(super) fn new(patience: Duration) -> Self {
        Self { began: Instant::now(), patience, history: Arc::default() }
    }

    pub(super) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    fn wrong(&self, text: String) {
        self.history().violation(Promise::Protocol, text);
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A driver that runs; killed when dropped, with all that it has started.
pub(super) struct Driver {
    /// The driver's name, with the number of its process.
    pub(super) name: String,
    pub(super) hello: Hello,
    ttl: Cell<Duration>,
    child: Child,
    commands: Mutex<Option<ChildStdin>>,
    next_id: Cell<u64>,
    log: Arc<Log>,
    record: Record,
}

/// What a driver has said so far.
struct Log {
    state: Mutex<LogState>,
    changed: Notify,
}

#[derive(Default)]
struct LogState {
    /// The first line, until it is taken.
    hello: Option<Result<Hello, String>>,
    has_begun: bool,
    pending: BTreeMap<u64, Pending>,
    answers: BTreeMap<u64, Result<Value, CommandError>>,
    /// Refused lines without an id.
    refusals: usize,
    /// The grants of holds, as indices of the history.
    grants: BTreeMap<String, usize>,
    lost: BTreeMap<String, Moment>,
    released: BTreeSet<String>,
    has_ended: bool,
}

/// A command without an answer.
struct Pending {
    sent: Moment,
    kind: PendingKind,
}

enum PendingKind {
    Acquire { hold: String, wanted: Wanted },
    Check { hold: String },
    Release { hold: String },
    Other,
}

impl Log {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `read` returns a value; `None` after `limit`.
    async fn until<T>(&self, limit: Duration, mut read: impl FnMut(&mut LogState) -> Option<T>) -> Option<T> {
        let wait = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if let Some(value) = read(&mut self.state()) {
                    return value;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, wait).await.ok()
    }
}

impl LogState {
    /// Records a line of the driver.
    fn hear(&mut self, text: &str, record: &Record) {
        let now = record.now();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.hello = Some(serde_json::from_str(text).map_err(|error| format!("{error} in {text:?}")));
            return;
        }
        match Said::parse(text) {
            Err(why) => record.wrong(format!("{why}: {text:?}")),
            Ok(Said::Lost { hold }) => {
                if self.released.contains(&hold) {
                    record.wrong(format!("it says that `{hold}` was lost, which it had released"));
                } else if self.lost.insert(hold.clone(), now).is_some() {
                    record.wrong(format!("it says twice that `{hold}` was lost"));
                }
                if let Some(&grant) = self.grants.get(&hold) {
                    record.history().lost(grant, now);
                }
            }
            Ok(Said::Answer { id: None, answer: Err(_) }) => self.refusals += 1,
            Ok(Said::Answer { id, answer }) => {
                let pending = id.and_then(|id| Some((id, self.pending.remove(&id)?)));
                let Some((id, pending)) = pending else {
                    return record.wrong(format!("an answer that is not due: {text:?}"));
                };
                let answered = self.answered(pending, &answer, now, &mut record.history());
                if let Err(why) = answered {
                    record.wrong(format!("{why}: {text:?}"));
                }
                self.answers.insert(id, answer);
            }
        }
    }

    fn answered(
        &mut self,
        pending: Pending,
        answer: &Result<Value, CommandError>,
        now: Moment,
        history: &mut History,
    ) -> Result<(), String> {
        let Pending { sent, kind } = pending;
        match (kind, answer) {
            (PendingKind::Acquire { hold, wanted }, Ok(ok)) => {
                let granted: Granted = parsed(ok)?;
                let grant = history.granted(wanted, sent, now, granted);
                if self.lost.contains_key(&hold) {
                    history.lost(grant, now);
                }
                self.grants.insert(hold, grant);
            }
            (PendingKind::Check { hold }, Ok(ok)) => {
                let granted: Granted = parsed(ok)?;
                if let Some(&grant) = self.grants.get(&hold) {
                    history.confirmed(grant, sent, granted.valid_ms);
                }
            }
            (PendingKind::Check { hold }, Err(error)) if error.kind == ErrorKind::Lost => {
                if let Some(&grant) = self.grants.get(&hold) {
                    history.lost(grant, now);
                }
            }
            (PendingKind::Release { hold }, Ok(ok)) => {
                let Released { was } = parsed(ok)?;
                if let Some(&grant) = self.grants.get(&hold)
                    && was == Was::Held
                {
                    history.was_held(grant, sent);
                    self.released.insert(hold);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Released {
    was: Was,
}

fn parsed<T: serde::de::DeserializeOwned>(ok: &Value) -> Result<T, String> {
    serde_json::from_value(ok.clone()).map_err(|error| error.to_string())
}

impl Driver {
    /// Starts a driver by a shell's command line, and waits for its first line.
    pub(super) async fn start(command: &str, number: usize, record: &Record) -> Outcome<Self> {
        let mut child = Process::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Signals are meant for it and for what it starts; Ctrl-C is not.
            .process_group(0)
            .spawn()
            .map_err(|error| Problem::Failed(format!("`sh -c {command:?}` can't be started: {error}")))?;
        let (Some(commands), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Problem::Failed("a driver was started without its pipes".to_owned()));
        };
        let log = Arc::new(Log { state: Mutex::default(), changed: Notify::new() });
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
        let failed = |why: String| Err(Problem::Failed(format!("`{command}` {why}")));
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
        let connect = Command::Connect { url: url.to_owned(), ttl_ms, label: Some(self.name.clone()) };
        Ok(self.call(connect).await?.map(drop))
    }

    /// Sends a command; returns its id.
    fn send(&self, command: Command, kind: PendingKind) -> Outcome<u64> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let line = Line { id, command }.text();
        self.log.state().pending.insert(id, Pending { sent: self.record.now(), kind });
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

    async fn answer(&self, id: u64, to: &str) -> Outcome<Result<Value, CommandError>> {
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
    pub(super) async fn call(&self, command: Command) -> Outcome<Result<Value, CommandError>> {
        let to = serde_json::to_string(&command).unwrap_or_default();
        let id = self.send(command, PendingKind::Other)?;
        self.answer(id, &to).await
    }

    /// Blocks the program; `None` if the language has no means for it.
    pub(super) async fn stall(&self, duration: Duration) -> Outcome<Option<()>> {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let id = self.send(Command::Stall { ms }, PendingKind::Other)?;
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
            true => Command::Lead(LeadCommand { hold: hold.clone(), election: lock, wait_ms: want.wait_ms }),
            false => Command::Acquire(AcquireCommand {
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
        let id = self.send(command, PendingKind::Acquire { hold: hold.clone(), wanted })?;
        Ok(Asked { driver: self.clone(), id, hold, text })
    }

    /// Acquires a lock, which must be granted.
    pub(super) async fn acquire(self: &Rc<Self>, want: &Want) -> Outcome<Held> {
        self.ask(want)?.granted().await
    }

    fn signal(&self, signal: Signal) -> Outcome {
        killpg(self.pid(), signal).map_err(|error| Problem::Failed(format!("{signal} to a driver: {error}")))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("the system's pids are i32"))
    }

    /// Stops it (SIGSTOP).
    pub(super) fn stop(&self) -> Outcome {
        self.signal(Signal::SIGSTOP)?;
        // WNOWAIT: a process that has ended is not reaped here.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid()), flags).map(drop).map_err(|error| Problem::Failed(error.to_string()))
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

    /// Ends its input, and waits until it has ended.
    pub(super) async fn end(&self) -> Outcome {
        self.over();
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.ended().await
    }

    /// Tells it to die, and waits until it has ended.
    pub(super) async fn die(&self) -> Outcome {
        self.over();
        self.send(Command::Die {}, PendingKind::Other)?;
        self.ended().await
    }

    /// From now on its holds count as ended.
    fn over(&self) {
        let (now, log) = (self.record.now(), self.log.state());
        let mut history = self.record.history();
        log.grants.values().for_each(|&grant| history.released(grant, now));
    }

    async fn ended(&self) -> Outcome {
        match self.log.until(self.record.patience, |log| log.has_ended.then_some(())).await {
            Some(()) => Ok(()),
            None => broken(format!("{} has not ended within {:?}", self.name, self.record.patience)),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn ended<T>(log: &mut LogState) -> Option<Result<T, String>> {
    log.has_ended.then(|| Err("it has ended".to_owned()))
}

/// Records what a driver says, with its time, until it closes its standard output.
fn listen(says: ChildStdout, log: Arc<Log>, record: Record) {
    std::thread::spawn(move || {
        for line in BufReader::new(says).lines().map_while(std::io::Result::ok) {
            log.state().hear(&line, &record);
            log.changed.notify_waiters();
        }
        log.state().has_ended = true;
        log.changed.notify_waiters();
    });
}

/// What to acquire.
#[derive(Clone)]
pub(super) struct Want {
    names: Vec<String>,
    mode: LockMode,
    permits: Option<u32>,
    subtree: bool,
    wait_ms: Option<u64>,
    is_election: bool,
    /// What an overlap with a later hold breaks.
    promise: Promise,
}

impl Want {
    /// A lock alone, without end of waiting.
    pub(super) fn lock(name: String, promise: Promise) -> Self {
        Self {
            names: vec![name],
            mode: LockMode::Exclusive,
            permits: None,
            subtree: false,
            wait_ms: None,
            is_election: false,
            promise,
        }
    }

    /// Its first name.
    pub(super) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// The same of another lock.
    pub(super) fn named(self, name: String) -> Self {
        Self { names: vec![name], ..self }
    }

    pub(super) fn shared(self) -> Self {
        Self { mode: LockMode::Shared, ..self }
    }

    pub(super) fn permits(self, permits: u32) -> Self {
        Self { mode: LockMode::Permit, permits: Some(permits), ..self }
    }

    pub(super) fn also(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    pub(super) fn subtree(self) -> Self {
        Self { subtree: true, ..self }
    }

    pub(super) fn election(self) -> Self {
        Self { is_election: true, ..self }
    }

    pub(super) fn wait(self, wait_ms: u64) -> Self {
        Self { wait_ms: Some(wait_ms), ..self }
    }
}

/// An acquire that was sent.
pub(super) struct Asked {
    driver: Rc<Driver>,
    id: u64,
    hold: String,
    text: String,
}

impl Asked {
    /// Its answer.
    pub(super) async fn answer(self) -> Outcome<Result<Held, CommandError>> {
        let Self { driver, id, hold, text } = self;
        Ok(match driver.answer(id, &text).await? {
            Ok(granted) => {
                let granted: Granted = parsed(&granted).map_err(Problem::Broken)?;
                Ok(Held { driver, hold, token: granted.token, valid_ms: granted.valid_ms })
            }
            Err(error) => Err(error),
        })
    }

    /// The hold; any error is a violation.
    pub(super) async fn granted(self) -> Outcome<Held> {
        let (name, text) = (self.driver.name.clone(), self.text.clone());
        match self.answer().await? {
            Ok(held) => Ok(held),
            Err(CommandError { kind, text: why }) => {
                broken(format!("{name} answers {kind:?} ({why}) to {text}, which is to be granted"))
            }
        }
    }

    /// The error, which must be one of `kinds`.
    pub(super) async fn refused(self, kinds: &[ErrorKind]) -> Outcome<ErrorKind> {
        let (name, text) = (self.driver.name.clone(), self.text.clone());
        match self.answer().await? {
            Err(error) if kinds.contains(&error.kind) => Ok(error.kind),
            Err(CommandError { kind, text: why }) => {
                broken(format!("{name} answers {kind:?} ({why}) to {text}, and not one of {kinds:?}"))
            }
            Ok(_) => broken(format!("{name} answers that it holds to {text}, and not one of {kinds:?}")),
        }
    }

    /// Whether it has no answer yet.
    pub(super) fn waits(&self) -> bool {
        self.driver.log.state().pending.contains_key(&self.id)
    }

    /// Abandons it.
    pub(super) async fn cancel(&self) -> Outcome {
        let answer = self.driver.call(Command::Cancel { acquire: self.id }).await?;
        answer.map(drop).or_else(|error| broken(format!("a cancel is refused: {error:?}")))
    }
}

/// A hold that was granted.
pub(super) struct Held {
    pub(super) driver: Rc<Driver>,
    hold: String,
    pub(super) token: Option<u64>,
    pub(super) valid_ms: Option<u64>,
}

impl Held {
    /// Sends a `check`, and does not wait for its answer.
    pub(super) fn begin_check(&self) -> Outcome<u64> {
        let kind = PendingKind::Check { hold: self.hold.clone() };
        self.driver.send(Command::Check { hold: self.hold.clone() }, kind)
    }

    /// Whether the client says that it may be used.
    pub(super) async fn end_check(&self, id: u64) -> Outcome<bool> {
        match self.driver.answer(id, "check").await? {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::Lost => Ok(false),
            Err(error) => broken(format!("{} answers {error:?} to `check`", self.driver.name)),
        }
    }

    /// As [`Self::end_check`], for a check that is sent now.
    pub(super) async fn check(&self) -> Outcome<bool> {
        let id = self.begin_check()?;
        self.end_check(id).await
    }

    /// It must be held.
    pub(super) async fn is_held(&self, when: &str) -> Outcome {
        match self.check().await? {
            true => Ok(()),
            false => broken(format!("{} has lost its hold: {when}", self.driver.name)),
        }
    }

    /// It must be lost, and its loss must be reported.
    pub(super) async fn is_lost(&self, when: &str) -> Outcome {
        let told =
            self.driver.log.until(self.driver.record.patience, |log| log.lost.get(&self.hold).copied()).await;
        if told.is_none() {
            return broken(format!("{} has not reported its loss: {when}", self.driver.name));
        }
        match self.check().await? {
            false => Ok(()),
            true => broken(format!("{} says `lost`, then that it holds: {when}", self.driver.name)),
        }
    }

    /// Sends its release; [`Self::end_release`] waits for the answer.
    pub(super) fn begin_release(&self) -> Outcome<u64> {
        let grant = self.driver.log.state().grants.get(&self.hold).copied();
        if let Some(grant) = grant {
            self.driver.record.history().released(grant, self.driver.record.now());
        }
        let kind = PendingKind::Release { hold: self.hold.clone() };
        self.driver.send(Command::Release { hold: self.hold.clone() }, kind)
    }

    /// The answer to the release, or its error.
    pub(super) async fn end_release(&self, id: u64) -> Outcome<Result<Was, ErrorKind>> {
        match self.driver.answer(id, "release").await? {
            Ok(ok) => Ok(Ok(parsed::<Released>(&ok).map_err(Problem::Broken)?.was)),
            Err(error) => Ok(Err(error.kind)),
        }
    }

    /// Releases it; it must have been held.
    pub(super) async fn release(self) -> Outcome {
        let id = self.begin_release()?;
        match self.end_release(id).await? {
            Ok(Was::Held) => Ok(()),
            other => broken(format!("{} answers {other:?} to the release of a hold", self.driver.name)),
        }
    }

    /// Releases it; its loss must be answered.
    pub(super) async fn release_lost(self) -> Outcome {
        let id = self.begin_release()?;
        match self.end_release(id).await? {
            Ok(Was::Lost) => Ok(()),
            other => broken(format!("{} answers {other:?} to the release of a lost hold", self.driver.name)),
        }
    }

    /// Another release of it, which must be refused.
    pub(super) async fn release_twice(self) -> Outcome {
        let (driver, hold) = (self.driver.clone(), self.hold.clone());
        self.release().await?;
        let command = Command::Release { hold };
        match driver.call(command).await? {
            Err(error) if error.kind == ErrorKind::Refused => Ok(()),
            other => broken(format!("{} answers {other:?} to a second release", driver.name)),
        }
    }
}
