//! A small `lockkeeper run`: takes a flock, runs a command under the guardian, and writes a report of the
//! events.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_cli::guardian::{Guarded, GuardianEvent, Left, Signal, Signals, SpawnError, Spec, boot_now};
use nix::fcntl::{Flock, FlockArg};

/// The wrapper's parameters for a test, passed as arguments.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) lock: OsString,
    pub(crate) report: OsString,
    /// The value of an environment variable by which the command's descendants are found.
    pub(crate) family: OsString,
    pub(crate) grace_ms: u64,
    /// The ttl; 0 if the lock has no deadline.
    pub(crate) ttl_ms: u64,
    /// Whether the lease is renewed, four times per ttl.
    pub(crate) renews: bool,
    /// Whether SIGUSR2 stands for the loss of the lock, and is not relayed.
    pub(crate) usr2_is_loss: bool,
}

impl Options {
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        vec![
            self.lock.clone(),
            self.report.clone(),
            self.family.clone(),
            self.grace_ms.to_string().into(),
            self.ttl_ms.to_string().into(),
            self.renews.to_string().into(),
            self.usr2_is_loss.to_string().into(),
        ]
    }

    fn from_arguments(words: &[OsString]) -> Self {
        fn parsed<T: std::str::FromStr>(word: &OsString) -> T {
            word.to_str().and_then(|word| word.parse().ok()).expect("a test wrote this argument")
        }
        Self {
            lock: words[0].clone(),
            report: words[1].clone(),
            family: words[2].clone(),
            grace_ms: parsed(&words[3]),
            ttl_ms: parsed(&words[4]),
            renews: parsed(&words[5]),
            usr2_is_loss: parsed(&words[6]),
        }
    }
}

pub(crate) const FAMILY: &str = "GUARDIAN_TEST_FAMILY";
pub(crate) const NOT_FOUND: u8 = 127;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const TOO_LATE: u8 = 125;
pub(crate) const GUARDIAN_DIED: u8 = 124;

const OPTIONS: usize = 7;

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let options = Options::from_arguments(&words[..OPTIONS]);
    let file = File::options().create(true).truncate(false).write(true).open(&options.lock).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let code = runtime.block_on(guarded_run(&options, words[OPTIONS..].to_vec(), &lock));
    drop(lock);
    ExitCode::from(code)
}

async fn guarded_run(options: &Options, argv: Vec<OsString>, lock: &Flock<File>) -> u8 {
    let mut report = OpenOptions::new().create(true).append(true).open(&options.report).unwrap();
    let mut say = move |line: String| report.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut signals = Signals::install().unwrap();
    let ttl = options.ttl_ms * 1_000_000;
    let first_deadline = (ttl > 0).then(|| boot_now() + ttl);
    let grace = Duration::from_millis(options.grace_ms);
    let spec = Spec {
        argv,
        env: vec![(FAMILY.into(), Some(options.family.clone())), ("REMOVED".into(), None)],
        lock_fds: vec![lock.as_raw_fd()],
        valid_until: first_deadline,
        grace,
        left: Left::Wait,
        epilogue: None,
    };
    let mut guarded = match Guarded::spawn(spec).await {
        Ok(guarded) => guarded,
        Err(error) => {
            say(format!("error {error}"));
            return match error {
                SpawnError::NotFound { .. } => NOT_FOUND,
                SpawnError::NotExecutable { .. } => NOT_EXECUTABLE,
                SpawnError::TooLate { .. } => TOO_LATE,
                _ => GUARDIAN_DIED,
            };
        }
    };
    if let Some(at) = first_deadline {
        say(format!("until {at}"));
    }
    say(format!("started {}", guarded.pid()));
    let mut code = 0;
    let mut renewal = tokio::time::interval(Duration::from_millis((options.ttl_ms / 4).max(1)));
    loop {
        tokio::select! {
            event = guarded.next() => match event {
                GuardianEvent::Stopped => {
                    say("stopped".into());
                    guarded.stop_too();
                }
                GuardianEvent::Exited(outcome) => {
                    say(format!("exited {outcome:?}"));
                    code = outcome.exit_code();
                }
                GuardianEvent::LeftBehind { total, pids } => say(format!("left-behind {total} {pids:?}")),
                GuardianEvent::Terminating(reason) => say(format!("terminating {reason:?}")),
                GuardianEvent::Gone { at } => {
                    say(format!("gone {at}"));
                    return code;
                }
                GuardianEvent::GuardianDied => {
                    say("guardian-died".into());
                    return GUARDIAN_DIED;
                }
            },
            received = signals.next() => match received {
                Signal::SIGUSR2 if options.usr2_is_loss => guarded.end(boot_now() + options.grace_ms * 1_000_000),
                signal => guarded.relay(signal),
            },
            _ = renewal.tick(), if options.renews => {
                let at = boot_now() + ttl;
                // Written before the order is sent, so that the report contains every deadline that the
                // guardian may have received.
                say(format!("until {at}"));
                guarded.set_valid_until(at);
            }
        }
    }
}
