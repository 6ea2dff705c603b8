//! The Rust library as a driver for `lockkeeper conformance`, by the protocol of docs/write-a-client.md.

use std::collections::BTreeMap;
use std::io::{BufRead, Write, stdin, stdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper::{AcquireError, BackendErrorKind, BootInstant, Guard, Lock, Locks, ReleaseError, Wait};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::conformance::protocol::{
    AcquireCommand, CommandError, DriverCommand, ErrorKind, Granted, Hello, LockMode, NumberedCommand,
    PROTOCOL, Was,
};

/// How long the end of the driver may take.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// The exit code of `die`.
const DIED: i32 = 9;

/// Runs the driver until its standard input ends.
///
/// # Errors
/// The runtime can't be created, or standard output is closed.
pub fn drive() -> Result {
    // One thread, so that `stall` blocks all of the program.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(RustDriver::default().run())
}

#[derive(Clone, Default)]
struct RustDriver(Arc<Mutex<DriverState>>);

#[derive(Default)]
struct DriverState {
    client: Option<(Locks, Duration)>,
    /// By the hold's name; `None` while it is acquired.
    holds: BTreeMap<String, Option<DriverHold>>,
    /// By the id of the acquire.
    acquiring: BTreeMap<u64, CancellationToken>,
}

struct DriverHold {
    guard: Guard,
    released: CancellationToken,
}

type CommandResult = std::result::Result<Value, CommandError>;

fn error<T>(kind: ErrorKind, text: impl ToString) -> std::result::Result<T, CommandError> {
    Err(CommandError { kind, text: text.to_string() })
}

fn refused<T>(text: impl ToString) -> std::result::Result<T, CommandError> {
    error(ErrorKind::Refused, text)
}

impl RustDriver {
    async fn run(self) -> Result {
        say(&serde_json::to_value(Hello {
            driver: "rust".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            schemes: ["lockkeeper", "redis"].map(str::to_owned).to_vec(),
            modes: vec![LockMode::Exclusive, LockMode::Shared, LockMode::Permit],
            features: ["all", "election", "subtree"].map(str::to_owned).to_vec(),
        })?);
        let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            stdin().lock().lines().map_while(std::io::Result::ok).try_for_each(|line| sender.send(line))
        });
        while let Some(line) = lines.recv().await {
            match NumberedCommand::parse(&line) {
                Ok(NumberedCommand { command: DriverCommand::Die {}, .. }) => std::process::exit(DIED),
                // Before anything else runs.
                Ok(NumberedCommand { id, command: DriverCommand::Check { hold } }) => {
                    answer(Some(id), self.check(&hold))
                }
                Ok(NumberedCommand { id, command: DriverCommand::Stall { ms } }) => {
                    std::thread::sleep(Duration::from_millis(ms));
                    answer(Some(id), Ok(json!({})));
                }
                Ok(NumberedCommand { id, command }) => {
                    let driver = self.clone();
                    tokio::spawn(async move { driver.execute(id, command).await });
                }
                Err((id, text)) => answer(id, refused(text)),
            }
        }
        // The end of the client is no loss.
        self.state().holds.values().flatten().for_each(|held| held.released.cancel());
        let client = self.state().client.take();
        if let Some((locks, _)) = client {
            // What is left ends with its ttl.
            let _ = locks.shutdown(SHUTDOWN_MAX).await;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn execute(self, id: u64, command: DriverCommand) {
        let ended = match command {
            DriverCommand::Connect { url, ttl_ms, label } => self.connect(&url, ttl_ms, label).await,
            DriverCommand::Acquire(AcquireCommand { ref hold, .. }) => {
                let lock = self.lock(&command);
                return self.hold(id, hold.clone(), lock, async |lock| lock.acquire().await).await;
            }
            DriverCommand::Lead(ref lead) => {
                let election = self.lock(&command);
                let name = lead.election.clone();
                let locks = self.state().client.clone();
                let campaign = async move |lock: Lock| {
                    let Some((locks, _)) = locks else { return Err(AcquireError::ShuttingDown) };
                    locks.election(name).with(|_| lock).campaign("").await
                };
                return self.hold(id, lead.hold.clone(), election, campaign).await;
            }
            DriverCommand::Cancel { acquire } => {
                if let Some(cancel) = self.state().acquiring.get(&acquire) {
                    cancel.cancel();
                }
                Ok(json!({}))
            }
            DriverCommand::Release { hold } => self.release(&hold).await,
            DriverCommand::Check { .. } | DriverCommand::Stall { .. } | DriverCommand::Die {} => return,
        };
        answer(Some(id), ended);
    }

    async fn connect(&self, url: &str, ttl_ms: u64, label: Option<String>) -> CommandResult {
        if self.state().client.is_some() {
            return refused("the driver is connected already");
        }
        if !(1_000..=3_600_000).contains(&ttl_ms) {
            return refused(format!("the ttl is {ttl_ms} ms; 1,000 to 3,600,000 are allowed"));
        }
        let connected = Locks::connect_as(url, label.as_deref().unwrap_or("rust driver")).await;
        let locks = connected.or_else(refused)?;
        self.state().client = Some((locks, Duration::from_millis(ttl_ms)));
        Ok(json!({}))
    }

    /// The lock of an `acquire` or a `lead`.
    fn lock(&self, command: &DriverCommand) -> std::result::Result<Lock, CommandError> {
        let Some((locks, ttl)) = self.state().client.clone() else {
            return refused("the driver is not connected");
        };
        let (lock, wait_ms) = match command {
            DriverCommand::Lead(lead) => (locks.mutex(&lead.election), lead.wait_ms),
            DriverCommand::Acquire(acquire) => (kind(&locks, acquire)?, acquire.wait_ms),
            _ => return refused("the command acquires nothing"),
        };
        let wait = match wait_ms {
            None => Wait::Forever,
            Some(0) => Wait::No,
            Some(ms) => Wait::For(Duration::from_millis(ms)),
        };
        Ok(lock.ttl(ttl).wait(wait))
    }

    /// Acquires, answers, and reports the loss.
    async fn hold(
        &self,
        id: u64,
        hold: String,
        lock: std::result::Result<Lock, CommandError>,
        acquire: impl AsyncFnOnce(Lock) -> std::result::Result<Guard, AcquireError>,
    ) {
        let lock = match lock {
            Ok(_) if self.state().holds.contains_key(&hold) => refused(format!("`{hold}` is in use")),
            lock => lock,
        };
        let lock = match lock {
            Ok(lock) => lock,
            Err(why) => return answer(Some(id), Err(why)),
        };
        let cancelled = CancellationToken::new();
        self.state().holds.insert(hold.clone(), None);
        self.state().acquiring.insert(id, cancelled.clone());
        // The future is dropped in order to abandon the acquire.
        let acquired = tokio::select! {
            acquired = acquire(lock) => acquired.map_err(failure),
            () = cancelled.cancelled() => error(ErrorKind::Cancelled, "the acquire was abandoned"),
        };
        self.state().acquiring.remove(&id);
        let guard = match acquired {
            Ok(guard) => guard,
            Err(why) => {
                self.state().holds.remove(&hold);
                return answer(Some(id), Err(why));
            }
        };
        let (lost, released) = (guard.lost(), CancellationToken::new());
        let granted = Granted {
            token: guard.token_hint().map(lockkeeper::Token::get),
            valid_ms: guard.valid_until().map_or(Some(0), valid_ms),
        };
        self.state().holds.insert(hold.clone(), Some(DriverHold { guard, released: released.clone() }));
        answer(Some(id), Ok(json!(granted)));
        tokio::select! {
            biased;
            () = released.cancelled() => {}
            () = lost.cancelled() => say(&json!({ "event": "lost", "hold": hold })),
        }
    }

    fn check(&self, hold: &str) -> CommandResult {
        match self.state().holds.get(hold) {
            Some(Some(held)) => match held.guard.valid_until() {
                Ok(until) => Ok(json!({ "valid_ms": valid_ms(until) })),
                Err(lost) => error(ErrorKind::Lost, lost),
            },
            _ => refused(format!("there is no hold `{hold}`")),
        }
    }

    async fn release(&self, hold: &str) -> CommandResult {
        let held = {
            let mut state = self.state();
            match state.holds.remove(hold) {
                Some(Some(held)) => held,
                // It is still being acquired.
                Some(None) => {
                    state.holds.insert(hold.to_owned(), None);
                    return refused(format!("`{hold}` is not held yet"));
                }
                // Or it was released: the type of `Guard::release` excludes a second one.
                None => return refused(format!("there is no hold `{hold}`")),
            }
        };
        held.released.cancel();
        match held.guard.release().await {
            Ok(()) => Ok(json!({ "was": Was::Held })),
            Err(ReleaseError::AlreadyLost(_)) => Ok(json!({ "was": Was::Lost })),
            Err(other) => error(ErrorKind::Unreachable, other),
        }
    }
}

fn kind(locks: &Locks, acquire: &AcquireCommand) -> std::result::Result<Lock, CommandError> {
    let AcquireCommand { lock, also, mode, permits, subtree, .. } = acquire;
    let lock = match (mode, permits) {
        (LockMode::Exclusive, None) => locks.all(std::iter::once(lock).chain(also)),
        _ if !also.is_empty() => return refused("only exclusive locks are acquired several at once"),
        (LockMode::Shared, None) => locks.rw(lock).read(),
        (LockMode::Permit, Some(permits)) => locks.semaphore(lock, *permits),
        (LockMode::Permit, None) => locks.semaphore_in_force(lock),
        (_, Some(_)) => return refused("`permits` is for the mode permit"),
    };
    Ok(if *subtree { lock.subtree() } else { lock })
}

fn valid_ms(until: Option<BootInstant>) -> Option<u64> {
    let left = until? - BootInstant::now();
    Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}

fn failure(failed: AcquireError) -> CommandError {
    let kind = match &failed {
        AcquireError::Busy(_) => ErrorKind::Busy,
        AcquireError::TimedOut { .. } => ErrorKind::TimedOut,
        AcquireError::Unreachable { .. } | AcquireError::Ambiguous { .. } => ErrorKind::Unreachable,
        AcquireError::Backend(error) if error.kind == BackendErrorKind::Unreachable => ErrorKind::Unreachable,
        AcquireError::ShuttingDown => ErrorKind::Lost,
        _ => ErrorKind::Refused,
    };
    CommandError { kind, text: failed.to_string() }
}

fn answer(id: Option<u64>, answer: CommandResult) {
    say(&match answer {
        Ok(ok) => json!({ "id": id, "ok": ok }),
        Err(error) => json!({ "id": id, "error": error }),
    });
}

/// Writes a line. A driver whose harness is gone ends.
fn say(line: &Value) {
    let mut out = stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}
