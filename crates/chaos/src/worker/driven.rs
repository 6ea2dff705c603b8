//! What a worker does through a driver: tasks with a client in another language.
//!
//! A driver says when it was granted a lock, and on each question whether it still holds it. Its history has
//! of each hold only what is certain for that: from a question that was answered with yes, to the sending of
//! the last such question. So a slow pipe hides a violation, and makes none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper::Token;
use lockkeeper_fence::Section;
use lockkeeper_history::{
    DeniedEvent, EndedEvent, GrantedEvent, HistoryEvent, HistoryWriter, HoldEnd, HoldMode, host_clock,
};
use lockkeeper_lab::conformance::protocol::{
    AcquireCommand, DriverCommand, ErrorKind, Granted, Hello, LeadCommand, LockMode, Was,
};
use serde_json::{Value, from_value};
use tokio::time::sleep;

use super::claims::WorkerClock;
use super::driver::{Driver, DriverAnswer};
use super::ledger::Ledger;
use super::{Errors, weighted};
use crate::Result;
use crate::options::WorkerOptions;

const TTL_MILLIS: u64 = 2000;
/// How often a task asks whether a long hold is still held.
const ASKS: Duration = Duration::from_millis(50);
/// A worker begins in the middle of a fault, or its client gives up while a service is away.
const PAUSE: Duration = Duration::from_millis(100);
/// Of each semaphore, as in the workers on the Rust library.
const PERMITS: u32 = 3;

/// A kind of work. The names of locks are those of the workers on the Rust library.
#[derive(Clone, Copy)]
enum DrivenWork {
    /// An exclusive section without a resource.
    Short,
    /// An exclusive section at a ledger.
    Ledger,
    /// Shared or exclusive, at a ledger.
    Shared,
    /// A permit.
    Permit,
    /// A subtree, or a name in it.
    Subtree,
    /// Several names at once.
    Several,
    /// An acquire that does not wait.
    Try,
    /// An acquire that waits for a limited time.
    Limited,
    /// An acquire that is abandoned.
    Cancelled,
    /// One name for all tasks of all workers.
    Crowd,
    /// An election.
    Election,
    /// A hold for longer than its ttl.
    Long,
}

/// Of 100.
const WEIGHTS: [(DrivenWork, u32); 12] = [
    (DrivenWork::Short, 30),
    (DrivenWork::Ledger, 15),
    (DrivenWork::Shared, 10),
    (DrivenWork::Permit, 10),
    (DrivenWork::Subtree, 6),
    (DrivenWork::Several, 6),
    (DrivenWork::Try, 6),
    (DrivenWork::Limited, 4),
    (DrivenWork::Cancelled, 4),
    (DrivenWork::Crowd, 5),
    (DrivenWork::Election, 3),
    (DrivenWork::Long, 1),
];

/// A task's place in its worker.
#[derive(Clone)]
pub(crate) struct DrivenPlace {
    pub(crate) driver: Arc<Driver>,
    pub(crate) history: HistoryWriter,
    pub(crate) clock: WorkerClock,
    pub(crate) ledger: Ledger,
    pub(crate) service: String,
    pub(crate) errors: Errors,
}

pub(crate) struct DrivenTask {
    place: DrivenPlace,
    random: fastrand::Rng,
    /// The names of holds begin with it.
    number: usize,
    count: u64,
}

/// A hold that has been granted.
struct DrivenHold {
    name: String,
    /// In the history.
    number: u64,
    token: Option<Token>,
    /// It was certainly held then.
    until: u64,
}

/// Works through a driver until `end`.
///
/// # Errors
/// The driver ends before, or breaks its protocol.
pub(crate) async fn work(command: &str, options: &WorkerOptions, end: impl Future) -> Result {
    let (driver, hello, mut output) = Driver::start(command).await?;
    let clock = WorkerClock::new(None);
    let now = clock.now();
    let by = format!("{}-{now}", options.name);
    let label = format!("{} {}", options.name, hello.driver);
    let history = HistoryWriter::append(&options.history, by.clone(), host_clock()?, label, now)?;
    let service = options.service.clone();
    let ledger = Ledger::new((history.clone(), clock), service.clone(), &options.ledgers, by, None);
    let errors = Errors::default();
    let place =
        DrivenPlace { driver: driver.clone(), history, clock, ledger, service, errors: errors.clone() };
    let tasks = async {
        connect(&driver, &hello, &options.url, &options.name).await?;
        let task = |number: usize| {
            let random = fastrand::Rng::with_seed(options.seed << 16 | number as u64);
            DrivenTask::new(place.clone(), random, number).work()
        };
        try_join_all((0..options.tasks).map(task)).await.map(drop)
    };
    tokio::select! {
        failed = tasks => failed?,
        ended = output.listen(&driver) => return ended.and(Err("the driver has ended by itself".into())),
        _ = end => {}
    }
    driver.end().await;
    output.listen(&driver).await?;
    errors.show();
    Ok(())
}

/// Connects the driver; again if the service can't be reached.
///
/// # Errors
/// The driver has ended, or takes no URL of our service.
pub(crate) async fn connect(driver: &Driver, hello: &Hello, url: &str, label: &str) -> Result {
    let takes = |scheme: &str| hello.schemes.iter().any(|it| it == scheme);
    let url = match (takes("lockkeeper"), takes("http")) {
        (true, _) => url.to_owned(),
        (false, true) => crate::cluster::http_url(url),
        _ => return Err(format!("the driver takes neither lockkeeper nor http: {:?}", hello.schemes).into()),
    };
    loop {
        let (url, label) = (url.clone(), Some(label.to_owned()));
        match driver.call(DriverCommand::Connect { url, ttl_ms: TTL_MILLIS, label }).await? {
            Ok(_) => return Ok(()),
            Err(error) if error.kind == ErrorKind::Refused => return Err(error.text.into()),
            Err(error) => eprintln!("{error:?}"),
        }
        sleep(PAUSE).await;
    }
}

impl DrivenTask {
    pub(crate) fn new(place: DrivenPlace, random: fastrand::Rng, number: usize) -> Self {
        Self { place, random, number, count: 0 }
    }

    /// Works until the driver ends.
    pub(crate) async fn work(mut self) -> Result {
        loop {
            let work = weighted(&mut self.random, &WEIGHTS);
            self.once(work).await?;
        }
    }

    fn name(&mut self, of: &str, count: u32) -> String {
        format!("{of}/{}", self.random.u32(0..count))
    }

    fn millis(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.random.u64(0..=most * 1000))
    }

    fn now(&self) -> u64 {
        self.place.clock.now()
    }

    fn acquire(&mut self, lock: String, mode: LockMode) -> AcquireCommand {
        self.count += 1;
        let hold = format!("{}-{}", self.number, self.count);
        AcquireCommand { hold, lock, also: Vec::new(), mode, permits: None, subtree: false, wait_ms: None }
    }

    fn exclusive(&mut self, of: &str, count: u32) -> AcquireCommand {
        let lock = self.name(of, count);
        self.acquire(lock, LockMode::Exclusive)
    }

    async fn once(&mut self, work: DrivenWork) -> Result {
        match work {
            DrivenWork::Short => {
                let wanted = self.exclusive("short", 256);
                self.holds(wanted, Duration::ZERO).await
            }
            DrivenWork::Ledger => {
                let wanted = self.exclusive("ledger", 12);
                self.section(wanted, 5).await
            }
            DrivenWork::Shared if self.random.u32(0..3) > 0 => {
                let lock = self.name("shared", 6);
                let wanted = self.acquire(lock.clone(), LockMode::Shared);
                let Some(hold) = self.granted(wanted).await? else { return Ok(()) };
                if let Some(token) = hold.token {
                    self.place.ledger.reads(&lock, Section::shared(token)).await;
                }
                self.end(hold).await
            }
            DrivenWork::Shared => {
                let wanted = self.exclusive("shared", 6);
                self.section(wanted, 5).await
            }
            DrivenWork::Permit => {
                let lock = self.name("permits", 4);
                let mut wanted = self.acquire(lock, LockMode::Permit);
                wanted.permits = Some(PERMITS);
                let takes = self.millis(5);
                self.holds(wanted, takes).await
            }
            DrivenWork::Subtree => {
                let mut wanted = self.exclusive("tree", 4);
                wanted.subtree = self.random.u32(0..4) == 0;
                if !wanted.subtree {
                    wanted.lock = self.name(&wanted.lock, 4);
                }
                let takes = self.millis(3);
                self.holds(wanted, takes).await
            }
            DrivenWork::Several => {
                let mut wanted = self.exclusive("several", 8);
                let other = self.name("several", 8);
                wanted.also.extend((other != wanted.lock).then_some(other));
                let takes = self.millis(3);
                self.holds(wanted, takes).await
            }
            DrivenWork::Try => {
                let mut wanted = self.exclusive("ledger", 12);
                wanted.wait_ms = Some(0);
                self.section(wanted, 5).await
            }
            DrivenWork::Limited => {
                let mut wanted = self.exclusive("ledger", 12);
                wanted.wait_ms = Some(self.random.u64(1..50));
                self.section(wanted, 5).await
            }
            DrivenWork::Cancelled => self.cancelled().await,
            DrivenWork::Crowd => {
                let wanted = self.acquire("crowd".to_owned(), LockMode::Exclusive);
                self.holds(wanted, Duration::ZERO).await
            }
            DrivenWork::Election => {
                let wanted = self.exclusive("election", 2);
                let (hold, election) = (wanted.hold.clone(), wanted.lock.clone());
                let lead = DriverCommand::Lead(LeadCommand { hold, election, wait_ms: None });
                let asked = self.now();
                let answer = self.place.driver.call(lead).await?;
                let Some(hold) = self.taken(&wanted, asked, answer).await? else { return Ok(()) };
                let takes = self.millis(20);
                self.at_ledger(&wanted.lock, hold, takes).await
            }
            DrivenWork::Long => {
                let wanted = self.exclusive("long", 32);
                let takes = self.millis(2 * TTL_MILLIS);
                self.holds(wanted, takes).await
            }
        }
    }

    /// A hold for so long, and questions whether it is still held.
    async fn holds(&mut self, wanted: AcquireCommand, takes: Duration) -> Result {
        let Some(mut hold) = self.granted(wanted).await? else { return Ok(()) };
        let mut left = takes;
        while !left.is_zero() {
            let step = left.min(ASKS);
            sleep(step).await;
            left -= step;
            if !self.is_held(&mut hold).await? {
                break;
            }
        }
        self.end(hold).await
    }

    /// A hold with a section at the ledger of its lock.
    async fn section(&mut self, wanted: AcquireCommand, most_millis: u64) -> Result {
        let lock = wanted.lock.clone();
        let Some(hold) = self.granted(wanted).await? else { return Ok(()) };
        let takes = self.millis(most_millis);
        self.at_ledger(&lock, hold, takes).await
    }

    async fn at_ledger(&mut self, lock: &str, hold: DrivenHold, takes: Duration) -> Result {
        if let Some(token) = hold.token {
            self.place.ledger.section(lock, Section::exclusive(token), takes).await;
        }
        self.end(hold).await
    }

    async fn cancelled(&mut self) -> Result {
        let wanted = self.exclusive("ledger", 12);
        let asked = self.now();
        let (acquire, answer) = self.place.driver.send(DriverCommand::Acquire(wanted.clone())).await?;
        sleep(self.millis(20)).await;
        let _ = self.place.driver.call(DriverCommand::Cancel { acquire }).await?;
        let answer = answer.await.map_err(|_| "the driver has ended")?;
        match self.taken(&wanted, asked, answer).await? {
            Some(hold) => self.end(hold).await,
            None => Ok(()),
        }
    }

    async fn granted(&mut self, wanted: AcquireCommand) -> Result<Option<DrivenHold>> {
        let asked = self.now();
        let answer = self.place.driver.call(DriverCommand::Acquire(wanted.clone())).await?;
        self.taken(&wanted, asked, answer).await
    }

    /// Takes the answer to an acquire.
    async fn taken(
        &mut self,
        wanted: &AcquireCommand,
        asked: u64,
        answer: DriverAnswer,
    ) -> Result<Option<DrivenHold>> {
        let (service, locks) = (self.place.service.clone(), self.locks(wanted));
        let granted: Granted = match answer {
            Ok(granted) => from_value(granted)?,
            Err(error) => {
                if !matches!(error.kind, ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::Cancelled) {
                    self.place.errors.count(&error);
                    sleep(PAUSE).await;
                    return Ok(None);
                }
                let why = serde_json::to_value(error.kind)?.as_str().unwrap_or_default().to_owned();
                let denied = DeniedEvent { service, locks, asked, why };
                self.place.history.write(self.now(), HistoryEvent::Denied(denied));
                return Ok(None);
            }
        };
        let token = granted.token.and_then(Token::new);
        let number = self.place.history.next_hold();
        let mut hold = DrivenHold { name: wanted.hold.clone(), number, token, until: 0 };
        if !self.is_held(&mut hold).await? {
            return Ok(None);
        }
        let granted = GrantedEvent {
            hold: number,
            service,
            locks,
            subtree: wanted.subtree,
            mode: match wanted.mode {
                LockMode::Exclusive => HoldMode::Exclusive,
                LockMode::Shared => HoldMode::Shared,
                LockMode::Permit => HoldMode::Permit,
            },
            slots: Vec::new(),
            token: granted.token,
            cached: false,
            asked,
            queued: None,
        };
        self.place.history.write(hold.until, HistoryEvent::Granted(granted));
        Ok(Some(hold))
    }

    fn locks(&self, wanted: &AcquireCommand) -> Vec<String> {
        std::iter::once(&wanted.lock).chain(&wanted.also).cloned().collect()
    }

    /// Asks whether it is held.
    async fn is_held(&self, hold: &mut DrivenHold) -> Result<bool> {
        let asked = self.now();
        let check = DriverCommand::Check { hold: hold.name.clone() };
        let is_held = self.place.driver.call(check).await?.is_ok();
        if is_held {
            hold.until = asked;
        }
        Ok(is_held)
    }

    /// Releases it, if it is still held.
    async fn end(&self, mut hold: DrivenHold) -> Result {
        let asked = self.now();
        let release = DriverCommand::Release { hold: hold.name };
        let how = match self.place.driver.call(release).await? {
            Ok(mut answer) => match from_value(answer.get_mut("was").map(Value::take).unwrap_or_default())? {
                Was::Held => {
                    hold.until = asked;
                    HoldEnd::Released
                }
                Was::Lost => HoldEnd::Lost,
                Was::Released => return Err(format!("a first release of {} is none", hold.number).into()),
            },
            // Unknown.
            Err(_) => HoldEnd::Lost,
        };
        let ended = EndedEvent { hold: hold.number, until: hold.until, how };
        self.place.history.write(self.now(), HistoryEvent::Ended(ended));
        Ok(())
    }
}
