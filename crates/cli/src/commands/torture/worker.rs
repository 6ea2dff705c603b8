//! One worker: a process that takes the lock, reads the ledger, adds a line and writes it back, for ever.
//!
//! Responsible for doing this as a careful user of the library does: it looks at its hold before it writes, and stops
//! if that is lost. At each named point it tells the conductor where it is and waits for `go`, so that what happens to
//! it happens there for certain. Whatever it does is in its journal first.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper::{Guard, Lock, Locks, Unfenced, Wait};
use lockkeeper_fence::Section;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::journal::{Journal, Step, now};
use super::resource::{Resource, Trouble};
use crate::args::Fenced;
use crate::exit::{Failure, INTERNAL, OK};
use crate::settings;

/// After a failure of the lock service or the resource, so that a worker does not ask a thousand times a second.
const BREATH: Duration = Duration::from_millis(50);
/// Closing the session is a courtesy: it ends by itself.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Where a worker can be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// Before it asks for the lock.
    Idle,
    /// It has read, and has not looked whether it still holds.
    Read,
    /// It has seen that it holds, and is about to write.
    Write,
    /// It has written or given up, and is about to release.
    Done,
}

impl Point {
    const ALL: [Self; 4] = [Self::Idle, Self::Read, Self::Write, Self::Done];

    /// As it is said to people and on the pipe.
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

/// What a worker is told first, as one line of JSON. Not by its arguments: an address may have a password in it.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    pub(super) locks: String,
    pub(super) resource: String,
    pub(super) fence: Fenced,
    pub(super) ttl: Duration,
    /// Of the lock.
    pub(super) name: String,
    pub(super) ledger: String,
    pub(super) journal: PathBuf,
    /// No other worker has it, also not one that took the place of this one.
    pub(super) serial: u32,
    /// Who started it: without that process it ends.
    pub(super) conductor: u32,
}

impl Orders {
    pub(super) fn to_line(&self) -> String {
        json!({
            "locks": self.locks, "resource": self.resource, "fence": self.fence.name(),
            "ttl_ms": self.ttl.as_millis() as u64, "name": self.name, "ledger": self.ledger,
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
            fence: [Fenced::None, Fenced::Write, Fenced::Enter]
                .into_iter()
                .find(|way| way.name() == fence)?,
            ttl: Duration::from_millis(orders["ttl_ms"].as_u64()?),
            name: text("name")?,
            ledger: text("ledger")?,
            journal: text("journal")?.into(),
            serial: number("serial")?,
            conductor: number("conductor")?,
        })
    }
}

/// The life of a worker. Standard input and output are the conductor's.
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
        // The conductor says it, once.
        let _ = tell(&format!("failed {} {}", failure.code, failure.message.replace('\n', " ")));
    }
    Ok(ended.map_or_else(|failure| failure.code, |()| OK))
}

struct Worker {
    locks: Locks,
    lock: Lock<Unfenced>,
    resource: Resource,
    fence: Fenced,
    journal: Journal,
    serial: u32,
    updates: u32,
}

/// Why a section did not come to its end.
enum Cut {
    /// Nothing can be done any more.
    Failed(Failure),
    /// The conductor has closed the pipe.
    Over,
}

impl From<std::io::Error> for Cut {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Worker {
    async fn start(orders: Orders) -> Result<Self, Failure> {
        // Before the look at the parent, so that one that ends in between is seen by either.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)?;
        if nix::unistd::getppid().as_raw() as u32 != orders.conductor {
            return Err(Failure::new(INTERNAL, "the conductor of this worker has ended"));
        }
        let locks = settings::connect(&orders.locks, &format!("torture worker {}", orders.serial)).await?;
        let lock = locks.mutex(&orders.name).ttl(orders.ttl).wait(Wait::Forever);
        Ok(Self {
            lock,
            locks,
            resource: Resource::open(&orders.resource, &orders.ledger, orders.fence).await?,
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
        reached(Point::Idle)?;
        self.journal.note(&Step::Asked)?;
        let guard = match self.lock.acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                self.journal.note(&Step::Trouble { why: crate::exit::chain(&error) })?;
                tokio::time::sleep(BREATH).await;
                return Ok(());
            }
        };
        self.journal.note(&Step::Granted { token: guard.token_hint() })?;
        // On the runtime's other thread: this one stands still at the points.
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
            Err(Trouble::Stale { offered, highest }) => {
                self.journal.note(&Step::Stale { offered, highest })?
            }
            Err(Trouble::Failed(why)) => {
                self.journal.note(&Step::Trouble { why })?;
                tokio::time::sleep(BREATH).await;
            }
        }
        reached(Point::Done)?;
        self.journal.note(&Step::Releasing)?;
        // A hold that was lost is known to be: by the journal, from the times of all.
        let _ = guard.release().await;
        Ok(())
    }

    /// Reads, computes, writes. `lost_at` is set when the library says that the hold is lost.
    async fn held(
        &mut self,
        guard: &Guard<Unfenced>,
        lost_at: &OnceLock<u64>,
    ) -> Result<Result<(), Trouble>, Cut> {
        let section = match (self.fence, guard.token_hint()) {
            (Fenced::None, _) => None,
            (_, Some(token)) => Some(Section::exclusive(token)),
            // The conductor asks for tokens before it starts anyone.
            (_, None) => {
                return Ok(Err(Trouble::Failed("a hold without a token can't be fenced".to_owned())));
            }
        };
        if let (Fenced::Enter, Some(section)) = (self.fence, section) {
            if let Err(trouble) = self.resource.enter(section).await {
                return Ok(Err(trouble));
            }
            self.journal.note(&Step::Entered)?;
        }
        let mut ledger = match self.resource.read().await {
            Ok(ledger) => ledger,
            Err(trouble) => return Ok(Err(trouble)),
        };
        self.journal.note(&Step::Read)?;
        let deadline = guard.valid_until().ok().flatten().map(lockkeeper::BootInstant::as_nanos);
        reached(Point::Read)?;
        if guard.check(Duration::ZERO).is_err() {
            let told = lost_at.get().copied();
            let believed_until = [deadline, told].into_iter().flatten().min();
            self.journal.note(&Step::GaveUp { believed_until })?;
            return Ok(Ok(()));
        }
        self.updates += 1;
        let update = format!("{}.{}", self.serial, self.updates);
        ledger.push_str(&update);
        ledger.push('\n');
        self.journal.note(&Step::Writes { update: update.clone() })?;
        reached(Point::Write)?;
        let written = self.resource.write(section, &ledger).await;
        if written.is_ok() {
            self.journal.note(&Step::Acknowledged { update })?;
        }
        Ok(written)
    }
}

/// Says where this worker is, and waits until it may go on.
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
    fn orders_and_points_arrive_as_they_were_given() {
        let orders = Orders {
            locks: "redis://u:p%20w@host/?fencing=counter".to_owned(),
            resource: "file:///tmp".to_owned(),
            fence: Fenced::Write,
            ttl: Duration::from_millis(1500),
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
