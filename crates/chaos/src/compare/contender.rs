//! A contender: a process that takes the lock again and again, by our library or by the client of another
//! project, until its standard input says `end`, or ends.
//!
//! Two files beside its history, by which faults hit at the chosen moment: `NAME.section` exists while it is
//! in its section; the number in `NAME.slow` is the duration of its next section in milliseconds.

use std::fs;
use std::path::Path;
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::{Guard, Locks, Token};
use lockkeeper_history::{HistoryWriter, host_clock};
use tokio::runtime::Runtime;

use super::foreign::ForeignLock;
use super::rows::{ComparedRow, LockClient, TTL_MS, rows};
use super::section::{LOCK, Sections, now};
use crate::Result;
use crate::options::ContendOptions;

/// After an error.
const RETRY: Duration = Duration::from_millis(50);

/// The client in use.
enum UsedClient {
    Ours { runtime: Runtime, locks: Locks, guard: Option<Guard> },
    Foreign(ForeignLock),
}

/// Works until the end of standard input.
pub(crate) fn run(options: ContendOptions) -> Result {
    // Locked during each section, so that the process ends between two sections.
    let turn = Arc::new(Mutex::new(()));
    let held = Arc::clone(&turn);
    thread::spawn(move || {
        if let Err(error) = work(&options, &held) {
            eprintln!("{error}");
            exit(1);
        }
    });
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let _last_section = turn.lock();
    exit(0);
}

fn work(options: &ContendOptions, turn: &Mutex<()>) -> Result {
    let row = rows(std::slice::from_ref(&options.row))?[0];
    let now = now();
    let by = format!("{}-{now}", options.name);
    let path = options.folder.join(format!("{}.history", options.name));
    let history = HistoryWriter::append(&path, by.clone(), host_clock()?, options.name.clone(), now)?;
    let mut sections = Sections::new(history.clone(), &options.folder, by);
    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut client: Option<UsedClient> = None;
    loop {
        let used = match &mut client {
            Some(used) => used,
            // A client that has failed is started again, as its program would be.
            None => match UsedClient::start(row, options, &history) {
                Ok(used) => client.insert(used),
                Err(error) => {
                    eprintln!("{error}");
                    thread::sleep(RETRY);
                    continue;
                }
            },
        };
        let held = used.acquire().and_then(|token| {
            let _turn = turn.lock();
            let marked = options.folder.join(format!("{}.section", options.name));
            fs::write(&marked, "")?;
            let slow = options.folder.join(format!("{}.slow", options.name));
            let takes = wanted(&slow).unwrap_or_else(|| random.u64(5..=30));
            let done = sections.run(token, Duration::from_millis(takes));
            fs::remove_file(&marked)?;
            done.and(used.release())
        });
        if let Err(error) = held {
            eprintln!("{error}");
            if let Some(UsedClient::Foreign(_)) = client {
                client = None;
            }
            thread::sleep(RETRY);
        }
    }
}

/// The duration of the next section, if a fault wants one.
fn wanted(slow: &Path) -> Option<u64> {
    let text = fs::read_to_string(slow).ok()?;
    fs::remove_file(slow).ok()?;
    text.parse().ok()
}

impl UsedClient {
    fn start(row: &'static ComparedRow, options: &ContendOptions, history: &HistoryWriter) -> Result<Self> {
        if row.client != LockClient::Ours {
            let command = row.client.command(&options.addresses, &options.url)?;
            return Ok(Self::Foreign(ForeignLock::start(row, command, history.clone())?));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let locks = runtime.block_on(Locks::connect_as(&options.url, &options.name))?;
        Ok(Self::Ours { runtime, locks, guard: None })
    }

    fn acquire(&mut self) -> Result<Option<Token>> {
        match self {
            Self::Foreign(lock) => lock.acquire(),
            Self::Ours { runtime, locks, guard } => {
                // After a failure, the last hold may still be there.
                *guard = None;
                let lock = locks.mutex(LOCK).ttl(Duration::from_millis(TTL_MS));
                let held = guard.insert(runtime.block_on(lock.acquire())?);
                Ok(held.token_hint())
            }
        }
    }

    fn release(&mut self) -> Result {
        match self {
            Self::Foreign(lock) => lock.release(),
            Self::Ours { runtime, guard, .. } => match guard.take() {
                Some(guard) => Ok(runtime.block_on(guard.release())?),
                None => Ok(()),
            },
        }
    }
}
