//! One worker: a process that acquires the lock, reads the ledger, appends a line and writes the ledger back,
//! in a loop.
//!
//! Follows the recommended use of the library: it checks its hold before it writes, and gives up if the hold
//! is lost. At each named point it reports the point to the conductor and waits for `go`, so that faults are
//! injected at exactly these points. Every step is written to the worker's journal before the worker
//! continues.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper::{Guard, Lock, Locks, Unfenced, Wait};
use lockkeeper_fence::Section;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::journal::{Journal, JournalStep, now};
use super::resource::{LedgerError, OpenLedger};
use crate::args::TokenUse;
use crate::exit::{Failure, INTERNAL, OK};
use crate::settings;

/// The pause after a failure of the lock service or the resource; limits the retry rate.
const BREATH: Duration = Duration::from_millis(50);
/// The time limit for closing the session; if it is not closed in time, it expires by itself.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// With a cached lock, a worker rests after so many sections: a lock that others want all the time is not
/// cached.
const SECTIONS_IN_ROW: u32 = 12;
const REST: Duration = Duration::from_millis(120);

/// The points at which a worker waits for the conductor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// Before the worker requests the lock.
    Idle,
    /// After the read, before the worker checks its hold.
    Read,
    /// After the check of the hold, before the write.
    Write,
    /// After the write, after giving up or after an error of the resource; before the release.
    Done,
}

impl Point {
    const ALL: [Self; 4] = [Self::Idle, Self::Read, Self::Write, Self::Done];

    /// The point's name, in messages to people and on the pipe.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Read => "after the read",
            Self::Write => "before the write",
            Self::Done => "after the write",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| point.name() == name)
    }
}

/// A worker's parameters, sent on its standard input as one line of JSON. Not passed as arguments, since an
/// address may contain a password.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    pub(super) locks: String,
    pub(super) resource: String,
    pub(super) fence: TokenUse,
    pub(super) ttl: Duration,
    /// Whether it uses a cached lock.
    pub(super) cached: bool,
    /// The lock's name.
    pub(super) name: String,
    pub(super) ledger: String,
    pub(super) journal: PathBuf,
    /// Unique among all workers of a run, including replacements.
    pub(super) serial: u32,
    /// The process id of the conductor; the worker ends with that process.
    pub(super) conductor: u32,
}

impl Orders {
    pub(super) fn to_line(&self) -> String {
        json!({
            "locks": self.locks, "resource": self.resource, "fence": self.fence.name(),
            "ttl_ms": self.ttl.as_millis() as u64, "cached": self.cached, "name": self.name, "ledger": self.ledger,
            "journal": self.journal.to_string_lossy(), "serial": self.serial, "conductor": self.conductor,
        })
        .to_string()
    }

    fn from_line(line: &str) -> Option<Self> {
        let orders: Value = serde_json::from_str(line).ok()?;
        let text = |field: &str| orders[field].as_str().map(str::to_owned);
        let number = |field: &str| u32::try_from(orders[field].as_u64()?).ok();
        let fence = text("fence")?;
        Some(Self {
            locks: text("locks")?,
            resource: text("resource")?,
            fence: [TokenUse::None, TokenUse::Write, TokenUse::Enter]
                .into_iter()
                .find(|way| way.name() == fence)?,
            ttl: Duration::from_millis(orders["ttl_ms"].as_u64()?),
            cached: orders["cached"].as_bool()?,
            name: text("name")?,
            ledger: text("ledger")?,
            journal: text("journal")?.into(),
            serial: number("serial")?,
            conductor: number("conductor")?,
        })
    }
}

/// The worker's main function. Its standard input and output are pipes to the conductor.
pub(super) async fn work() -> Result<u8, Failure> {
    let line = heard()?.unwrap_or_default();
    let orders = Orders::from_line(&line).ok_or_else(|| {
        Failure::new(INTERNAL, "a worker of torture was given no orders; it is started by `torture` itself")
    })?;
    let ended = match Worker::start(orders).await {
        Ok(worker) => worker.run().await,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = &ended {
        // Sent and not printed here: the conductor prints the failure.
        let _ = tell(&format!("failed {} {}", failure.code, failure.message.replace('\n', " ")));
    }
    Ok(ended.map_or_else(|failure| failure.code, |()| OK))
}

struct Worker {
    locks: Locks,
    lock: Lock<Unfenced>,
    resource: OpenLedger,
    fence: TokenUse,
    journal: Journal,
    serial: u32,
    updates: u32,
    /// After so many sections the worker rests.
    sections_in_row: u32,
    sections: u32,
}

/// Why a section was not completed.
enum Cut {
    /// The worker can't continue.
    Failed(Failure),
    /// The conductor closed the pipe.
    Over,
}

impl From<std::io::Error> for Cut {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Worker {
    async fn start(orders: Orders) -> Result<Self, Failure> {
        // The kernel kills this process when its parent ends, from this call on. If the parent has ended
        // before, the check below fails.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)?;
        if nix::unistd::getppid().as_raw() as u32 != orders.conductor {
            return Err(Failure::new(INTERNAL, "the conductor of this worker has ended"));
        }
        let locks = settings::connect(&orders.locks, &format!("torture worker {}", orders.serial)).await?;
        let lock = locks.mutex(&orders.name).ttl(orders.ttl).wait(Wait::Forever);
        let (lock, sections_in_row) =
            if orders.cached { (lock.cached(), SECTIONS_IN_ROW) } else { (lock, u32::MAX) };
        Ok(Self {
            sections_in_row,
            sections: 0,
            lock,
            locks,
            resource: OpenLedger::open(&orders.resource, &orders.ledger, orders.fence).await?,
            fence: orders.fence,
            journal: Journal::create(&orders.journal)?,
            serial: orders.serial,
            updates: 0,
        })
    }

    async fn run(mut self) -> Result<(), Failure> {
        loop {
            match self.section().await {
                Ok(()) => {}
                Err(Cut::Failed(failure)) => return Err(failure),
                Err(Cut::Over) => break,
            }
        }
        let _ = self.locks.shutdown(SHUTDOWN_LIMIT).await;
        Ok(())
    }

    async fn section(&mut self) -> Result<(), Cut> {
        self.sections += 1;
        if self.sections.is_multiple_of(self.sections_in_row) {
            tokio::time::sleep(REST).await;
        }
        reached(Point::Idle)?;
        self.journal.note(&JournalStep::Asked)?;
        let guard = match self.lock.acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                self.journal.note(&JournalStep::Trouble { why: crate::exit::chain(&error) })?;
                tokio::time::sleep(BREATH).await;
                return Ok(());
            }
        };
        self.journal.note(&JournalStep::Granted { token: guard.token_hint() })?;
        // Runs on another thread of the runtime: this thread blocks in `reached`, and could not record the
        // time of the loss.
        let lost_at = Arc::new(OnceLock::new());
        let (lost, stamp) = (guard.lost(), lost_at.clone());
        let watching = tokio::spawn(async move {
            lost.cancelled().await;
            let _ = stamp.set(now());
        });
        let held = self.held(&guard, &lost_at).await;
        watching.abort();
        match held? {
            Ok(()) => {}
            Err(LedgerError::Stale { offered, highest }) => {
                self.journal.note(&JournalStep::Stale { offered, highest })?
            }
            Err(LedgerError::Failed(why)) => {
                self.journal.note(&JournalStep::Trouble { why })?;
                tokio::time::sleep(BREATH).await;
            }
        }
        reached(Point::Done)?;
        self.journal.note(&JournalStep::Releasing)?;
        // An error of the release is ignored: if the hold was lost, the times in the journals show whether
        // sections overlapped.
        let _ = guard.release().await;
        Ok(())
    }

    /// The part of a section under the hold: enters if `--fence enter` is set, reads the ledger, checks the
    /// hold, and writes the ledger with one more update. `lost_at` is set when the library reports the loss
    /// of the hold.
    async fn held(
        &mut self,
        guard: &Guard<Unfenced>,
        lost_at: &OnceLock<u64>,
    ) -> Result<Result<(), LedgerError>, Cut> {
        let section = match (self.fence, guard.token_hint()) {
            (TokenUse::None, _) => None,
            (_, Some(token)) => Some(Section::exclusive(token)),
            // Unreachable: the conductor checks for tokens before it starts a worker.
            (_, None) => {
                return Ok(Err(LedgerError::Failed("a hold without a token can't be fenced".to_owned())));
            }
        };
        if let (TokenUse::Enter, Some(section)) = (self.fence, section) {
            if let Err(trouble) = self.resource.enter(section).await {
                return Ok(Err(trouble));
            }
            self.journal.note(&JournalStep::Entered)?;
        }
        let mut ledger = match self.resource.read().await {
            Ok(ledger) => ledger,
            Err(trouble) => return Ok(Err(trouble)),
        };
        self.journal.note(&JournalStep::Read)?;
        let deadline = guard.valid_until().ok().flatten().map(lockkeeper::BootInstant::as_nanos);
        reached(Point::Read)?;
        if guard.check(Duration::ZERO).is_err() {
            let told = lost_at.get().copied();
            let believed_until = [deadline, told].into_iter().flatten().min();
            self.journal.note(&JournalStep::GaveUp { believed_until })?;
            return Ok(Ok(()));
        }
        self.updates += 1;
        let update = format!("{}.{}", self.serial, self.updates);
        ledger.push_str(&update);
        ledger.push('\n');
        self.journal.note(&JournalStep::Writes { update: update.clone() })?;
        reached(Point::Write)?;
        let written = self.resource.write(section, &ledger).await;
        if written.is_ok() {
            self.journal.note(&JournalStep::Acknowledged { update })?;
        }
        Ok(written)
    }
}

/// Reports this worker's point, and waits for `go`.
fn reached(point: Point) -> Result<(), Cut> {
    tell(point.name())?;
    match heard()? {
        Some(_) => Ok(()),
        None => Err(Cut::Over),
    }
}

fn tell(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}

fn heard() -> std::io::Result<Option<String>> {
    let mut line = String::new();
    Ok((std::io::stdin().lock().read_line(&mut line)? > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_points_round_trip() {
        let orders = Orders {
            locks: "redis://u:p%20w@host/?fencing=counter".to_owned(),
            resource: "file:///tmp".to_owned(),
            fence: TokenUse::Write,
            ttl: Duration::from_millis(1500),
            cached: true,
            name: "a/b".to_owned(),
            ledger: "a-b".to_owned(),
            journal: "/tmp/a b".into(),
            serial: 7,
            conductor: 12,
        };
        let heard = Orders::from_line(&orders.to_line()).unwrap();
        assert_eq!(format!("{heard:?}"), format!("{orders:?}"));
        for point in Point::ALL {
            assert_eq!(Point::named(point.name()), Some(point));
        }
        assert_eq!(Point::named("nowhere"), None);
    }
}
