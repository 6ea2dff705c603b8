//! What the tasks of a worker do under locks, chosen by the seed.

use std::time::Duration;

use lockkeeper::{AcquireError, Capabilities, Guard, Lock, Locks, Token, Wait};
use lockkeeper_fence::Section;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::claims::Claims;
use super::gated::GatedService;
use super::ledger::Ledger;
use super::{Errors, weighted};
use crate::mutant::ChaosMutant;

const TTLS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// A kind of work.
#[derive(Clone, Copy)]
enum Work {
    /// An exclusive section without a resource.
    Short,
    /// An exclusive section at a ledger.
    Ledger,
    /// A cached lock, at a ledger now and then.
    Cached,
    /// Shared or exclusive, at a ledger; now and then an exclusive hold becomes a shared one.
    Shared,
    /// An exclusive section at a service behind the gate.
    Gated,
    /// A permit, at a ledger for each slot.
    Permit,
    /// A subtree, or a name in it.
    Subtree,
    /// Several names at once.
    Several,
    /// An acquire that does not wait.
    Try,
    /// An acquire that waits for a limited time.
    Limited,
    /// An acquire whose future is dropped.
    Cancelled,
    /// One name for all tasks of all workers.
    Crowd,
    /// An election.
    Election,
    /// A while as a member of a group that divides partitions.
    Partitions,
    /// `Lock::once` with a key that all workers share.
    Once,
    /// A hold that is free soon after its client has gone.
    Linger,
    /// A hold without renewal that its holder uses beyond its end. Its name has impatient waiters only.
    Overstay,
    /// Questions to the service.
    Ask,
}

/// Of 100.
const WEIGHTS: [(Work, u32); 18] = [
    (Work::Short, 32),
    (Work::Ledger, 10),
    (Work::Cached, 10),
    (Work::Shared, 8),
    (Work::Gated, 4),
    (Work::Permit, 6),
    (Work::Subtree, 4),
    (Work::Several, 4),
    (Work::Try, 4),
    (Work::Limited, 3),
    (Work::Cancelled, 2),
    (Work::Crowd, 3),
    (Work::Election, 2),
    (Work::Partitions, 1),
    (Work::Once, 1),
    (Work::Linger, 2),
    (Work::Overstay, 1),
    (Work::Ask, 3),
];

pub(crate) struct WorkerTask {
    locks: Locks,
    ledger: Ledger,
    gated: Option<GatedService>,
    claims: Option<Claims>,
    random: fastrand::Rng,
    errors: Errors,
    /// Kept, as their holds stay with the client.
    cached: Vec<Lock>,
    /// The last holds.
    known: Vec<(String, Token)>,
}

impl Work {
    fn is_possible(self, can: &Capabilities) -> bool {
        match self {
            Self::Cached => can.cached,
            Self::Shared => can.shared,
            Self::Permit => can.permits,
            Self::Subtree => can.subtree,
            Self::Several => can.multi,
            Self::Ask | Self::Partitions => can.inspect,
            Self::Overstay | Self::Linger => can.ttl,
            _ => true,
        }
    }
}

impl WorkerTask {
    pub(crate) fn new(
        locks: Locks,
        (ledger, gated, claims): (Ledger, Option<GatedService>, Option<Claims>),
        random: fastrand::Rng,
        errors: Errors,
    ) -> Self {
        let cached = (0..8).map(|name| locks.mutex(format!("cached/{name}")).ttl(TTLS[1]).cached());
        let cached = cached.collect();
        Self { locks, ledger, gated, claims, random, errors, cached, known: Vec::new() }
    }

    pub(crate) async fn work(mut self) {
        let can = self.locks.capabilities().clone();
        let possible: Vec<_> = WEIGHTS
            .into_iter()
            .filter(|(work, _)| work.is_possible(&can))
            .filter(|(work, _)| self.gated.is_some() || !matches!(work, Work::Gated))
            .collect();
        loop {
            let work = weighted(&mut self.random, &possible);
            if let Err(error) = self.once(work).await {
                if matches!(error, AcquireError::Busy(_) | AcquireError::TimedOut { .. }) {
                    continue;
                }
                self.errors.count(&error);
                // Without its service, a worker does not write its history full of errors.
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn name(&mut self, of: &str, count: u32) -> String {
        format!("{of}/{}", self.random.u32(0..count))
    }

    fn lock(&mut self, name: &str) -> Lock {
        let lock = self.locks.mutex(name);
        self.options(lock)
    }

    fn options(&mut self, lock: Lock) -> Lock {
        lock.ttl(TTLS[self.random.usize(0..TTLS.len())])
    }

    fn millis(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.random.u64(0..=most * 1000))
    }

    async fn once(&mut self, work: Work) -> Result<(), AcquireError> {
        match work {
            Work::Short => {
                let name = self.name("short", 256);
                let guard = self.lock(&name).acquire().await?;
                self.knows(&name, &guard);
                self.end(guard).await;
            }
            Work::Ledger => {
                let name = self.name("ledger", 12);
                let guard = self.lock(&name).acquire().await?;
                self.exclusive(&name, guard, 5).await;
            }
            Work::Cached => {
                let index = self.random.usize(0..self.cached.len());
                for _ in 0..self.random.u32(1..8) {
                    let guard = self.cached[index].acquire().await?;
                    if self.random.u32(0..4) == 0 {
                        self.exclusive(&format!("cached/{index}"), guard, 1).await;
                    } else {
                        self.end(guard).await;
                    }
                }
            }
            Work::Shared => self.shared().await?,
            Work::Gated => {
                let name = self.name("gated", 12);
                let guard = self.lock(&name).acquire().await?;
                self.knows(&name, &guard);
                // Long, where a stop of the worker must find it between its read and its write.
                let is_long = self.ledger.0.mutant == Some(ChaosMutant::TwoGates);
                let takes = self.millis(if is_long { 200 } else { 5 });
                if let (Some(gated), Some(token)) = (&self.gated, guard.token_hint()) {
                    gated.section(&name, token, takes).await;
                }
                self.end(guard).await;
            }
            Work::Permit => {
                let name = self.name("permits", 4);
                let lock = self.locks.semaphore(&name, 3);
                let guard = self.options(lock).acquire().await?;
                if let (Some(slot), Some(token)) = (guard.slot(), guard.token_hint())
                    && let Ok(section) = Section::permit(slot, token)
                {
                    let takes = self.millis(5);
                    self.ledger.section(&name, section, takes).await;
                }
                self.end(guard).await;
            }
            Work::Subtree => {
                let top = self.name("tree", 4);
                let guard = if self.random.u32(0..4) == 0 {
                    self.lock(&top).subtree().acquire().await?
                } else {
                    let below = self.name(&top, 4);
                    self.lock(&below).acquire().await?
                };
                sleep(self.millis(3)).await;
                self.end(guard).await;
            }
            Work::Several => {
                let names: Vec<_> = (0..self.random.u32(2..4)).map(|_| self.name("several", 8)).collect();
                let lock = self.locks.all(names);
                let guard = self.options(lock).acquire().await?;
                sleep(self.millis(3)).await;
                self.end(guard).await;
            }
            Work::Try => {
                let name = self.name("ledger", 12);
                if let Some(guard) = self.lock(&name).try_acquire().await? {
                    self.exclusive(&name, guard, 5).await;
                }
            }
            Work::Limited => {
                let of = if self.random.bool() { "ledger" } else { "overstay" };
                let (name, limit) = (self.name(of, 12), self.millis(50));
                let guard = self.lock(&name).wait(Wait::For(limit)).acquire().await?;
                self.exclusive(&name, guard, 5).await;
            }
            Work::Cancelled => {
                let (name, limit) = (self.name("ledger", 12), self.millis(20));
                let acquired = timeout(limit, self.lock(&name).acquire()).await;
                if let Ok(guard) = acquired {
                    self.exclusive(&name, guard?, 2).await;
                }
            }
            Work::Crowd => {
                let guard = self.lock("crowd").acquire().await?;
                self.end(guard).await;
            }
            Work::Election => {
                let (name, ttl) = (self.name("election", 2), TTLS[0]);
                let election = self.locks.election(&name).with(|lock| lock.ttl(ttl));
                let can = self.locks.capabilities().values;
                let guard = election.campaign(if can { &b"here"[..] } else { b"" }).await?;
                self.exclusive(&name, guard, 20).await;
            }
            Work::Partitions => self.partitions().await?,
            Work::Once => {
                let (name, takes) = (self.name("once", 2000), self.millis(3));
                let lock = self.lock(&name);
                self.ledger.once(&name, &lock, takes).await?;
            }
            Work::Linger => {
                let name = self.name("linger", 12);
                let guard = self.lock(&name).linger(TTLS[0] / 2).acquire().await?;
                self.exclusive(&name, guard, 5).await;
            }
            Work::Overstay => {
                let name = self.name("overstay", 12);
                let lock = self.locks.mutex(&name).ttl(TTLS[0]).no_renew();
                let asked = self.claims.as_ref().map(|claims| claims.clock.now());
                let guard = lock.wait(Wait::For(TTLS[0])).acquire().await?;
                let takes = TTLS[0] / 2 + self.millis(1500);
                let work = self.at_ledger(&name, &guard, takes);
                match (&self.claims, asked, guard.token_hint()) {
                    (Some(claims), Some(asked), Some(token)) => {
                        claims.during(&name, (&guard, token), asked, work).await;
                    }
                    _ => work.await,
                }
                self.end(guard).await;
            }
            Work::Ask => self.asks().await,
        }
        Ok(())
    }

    /// Owns what the group gives to it, and uses that until another member waits for it.
    async fn partitions(&mut self) -> Result<(), AcquireError> {
        const COUNT: u32 = 6;
        let name = self.name("partitions", 2);
        let partitions = self.locks.partitions(&name, COUNT).with(|lock| lock.ttl(TTLS[1]));
        let mut member = partitions.join().await?;
        let until = Instant::now() + self.millis(400);
        let mut sections = JoinSet::new();
        while let Ok(Ok(partition)) = timeout_at(until, member.next()).await {
            let (ledger, name) = (self.ledger.clone(), format!("{name}/{}", partition.index()));
            sections.spawn(async move {
                while let Some(token) = partition.token_hint().filter(|_| !partition.is_leaving()) {
                    ledger.section(&name, Section::exclusive(token), Duration::from_millis(20)).await;
                    if Instant::now() >= until {
                        break;
                    }
                }
            });
        }
        let _ = member.leave().await;
        sections.join_all().await;
        Ok(())
    }

    async fn shared(&mut self) -> Result<(), AcquireError> {
        let name = self.name("shared", 6);
        let lock = self.locks.rw(&name);
        if self.random.u32(0..3) > 0 {
            let guard = self.options(lock.read()).acquire().await?;
            if let Some(token) = guard.token_hint() {
                self.ledger.reads(&name, Section::shared(token)).await;
            }
            self.end(guard).await;
            return Ok(());
        }
        let guard = self.options(lock.write()).acquire().await?;
        let takes = self.millis(5);
        self.at_ledger(&name, &guard, takes).await;
        if self.random.u32(0..3) == 0 && self.locks.capabilities().downgrade {
            let _ = guard.downgrade().await;
            sleep(self.millis(3)).await;
        }
        self.end(guard).await;
        Ok(())
    }

    /// A section at the ledger of this lock.
    async fn exclusive(&mut self, name: &str, guard: Guard, most_millis: u64) {
        self.knows(name, &guard);
        let takes = self.millis(most_millis);
        self.at_ledger(name, &guard, takes).await;
        self.end(guard).await;
    }

    /// Without a token, nothing can be fenced.
    async fn at_ledger(&self, name: &str, guard: &Guard, takes: Duration) {
        if let Some(token) = guard.token_hint() {
            self.ledger.section(name, Section::exclusive(token), takes).await;
        }
    }

    fn knows(&mut self, name: &str, guard: &Guard) {
        const KNOWN: usize = 8;
        if self.known.len() == KNOWN {
            self.known.remove(0);
        }
        if let Some(token) = guard.token_hint() {
            self.known.push((name.to_owned(), token));
        }
    }

    /// Half of the holds are released, the others dropped.
    async fn end(&mut self, guard: Guard) {
        if self.random.bool() {
            let _ = guard.release().await;
        }
    }

    /// Asks about tokens and holders. The library writes questions and answers to the history.
    async fn asks(&mut self) {
        const LIMIT: Duration = Duration::from_secs(1);
        if let Some((name, token)) = self.random.choice(&self.known).cloned() {
            let _ = timeout(LIMIT, self.locks.check_token(&name, token)).await;
            let _ = timeout(LIMIT, self.locks.inspect(&name)).await;
        }
        let name = self.name("ledger", 12);
        let _ = timeout(LIMIT, self.locks.inspect(&name)).await;
    }
}
