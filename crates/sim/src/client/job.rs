//! The callers. Each acquires a lock, works while it holds the lock, and releases or drops its guard. When
//! the hold is lost, a careful caller stops its work, and a careless one continues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::simulation::{
    AcquireLimits, AcquireRequest, CachedLock, CachedSection as Cached, Event, Granted, Key, NotAcquired,
    Releasing,
};
use lockkeeper_core::{LockName, Mode};
use lockkeeper_fence::Section;

use super::{SimClient, label};
use crate::clock::{MS, Nanos};
use crate::core::{Core, Happening};
use crate::mutants::MutantLocation;
use crate::oracle::OpenTry;
use crate::resource::{Resources, SectionRead};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobState {
    Waiting,
    Held,
    Releasing,
    Over,
}

/// One attempt of a caller to acquire a lock and work.
pub(crate) struct Job {
    pub(crate) session: usize,
    pub(crate) key: Key,
    pub(crate) state: JobState,
    pub(crate) is_lost: bool,
    pub(crate) token: Option<u64>,
    pub(super) request: Arc<AcquireRequest>,
    /// The content of the lock, if its hold may be cached.
    pub(super) lock: Option<Arc<CachedLock>>,
    /// The section of a cached hold. Another job may have acquired that.
    pub(super) cached: Option<Cached>,
    section: Option<(String, Section)>,
    seen: Option<SectionRead>,
    stage: JobStage,
    /// Whether the job checks its guard before each step. A careless job depends on the fence.
    is_careful: bool,
    /// Whether the job's future was dropped: then no result may be delivered any more.
    is_dropped: bool,
    pub(super) step_max: Nanos,
}

impl Job {
    /// The job's section at a resource.
    pub(super) fn begins(&mut self, name: String, section: Section) {
        self.section = Some((name, section));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobStage {
    Enter,
    Write,
    End,
}

impl SimClient {
    /// Starts a job with a random request.
    pub(crate) fn begin_job(&mut self, core: &mut Core) {
        let scenario = core.scenario.clone();
        let dice = &mut core.dice;
        let caches = scenario.caches > 0 && dice.chance(scenario.caches);
        let is_cached = |job: &Job| job.lock.is_some() && job.state != JobState::Over;
        let share = if caches && self.jobs.values().any(is_cached) { 10 } else { 80 };
        if caches && dice.chance(share) {
            // A lock of its own, which others want now and then.
            let name = scenario.names[self.index % scenario.names.len()].clone();
            let request = AcquireRequest {
                subtree: scenario.subtree > 0 && self.index.is_multiple_of(2),
                wait: dice.chance(85),
                ..AcquireRequest::exclusive(vec![name])
            };
            return self.acquire(core, request, true);
        }
        let mode = match dice.below(100) {
            roll if roll < scenario.shared => Mode::Shared,
            roll if roll < scenario.shared + scenario.permits => {
                let of = dice.chance(90).then_some(scenario.permit_limit);
                Mode::Permit { of }
            }
            _ => Mode::Exclusive,
        };
        let several = dice.chance(20);
        let mut names = vec![dice.pick(&scenario.names)];
        if several {
            names.push(dice.pick(&scenario.names));
        }
        let subtree = !matches!(mode, Mode::Permit { .. }) && dice.chance(scenario.subtree);
        let ttl = scenario.ttl_max;
        let keep_closed = if dice.chance(10) { dice.spread(MS, ttl) } else { 0 };
        let caches = caches && mode == Mode::Exclusive && keep_closed == 0;
        let request = AcquireRequest {
            mode,
            subtree,
            wait: dice.chance(85),
            keep_closed: Duration::from_millis(keep_closed / MS),
            ..AcquireRequest::exclusive(names)
        };
        self.acquire(core, request, caches);
    }

    /// Starts a job that acquires one name with its subtree exclusively, and waits without limit. At the end
    /// of a run, a new client does this for every name, which shows that all locks are free.
    pub(crate) fn begin_probe(&mut self, core: &mut Core, name: LockName) {
        let request = AcquireRequest { subtree: true, ..AcquireRequest::exclusive(vec![name]) };
        self.acquire(core, request, false);
    }

    fn acquire(&mut self, core: &mut Core, mut request: AcquireRequest, caches: bool) {
        let ttl = core.scenario.ttl_max;
        let now = self.clock.instant(core.now);
        let (stormy, work) = (core.is_stormy, core.scenario.work);
        let dice = &mut core.dice;
        let session = if caches || dice.chance(75) { 0 } else { self.sessions.len() - 1 };
        let nanos = Duration::from_nanos;
        let wait_until = (stormy && dice.chance(50)).then(|| now + nanos(dice.spread(MS, 4 * ttl)));
        let limits = AcquireLimits {
            wait_until: wait_until.filter(|_| request.wait),
            patience: (!request.wait).then(|| nanos(ttl / 3)),
            min_validity: nanos(if stormy && dice.chance(20) { dice.within(0, ttl / 4) } else { 0 }),
            max_hold: (stormy && !caches && dice.chance(20)).then(|| nanos(dice.spread(10 * MS, 2 * ttl))),
            grace: nanos(dice.within(0, ttl / 4)),
        };
        let key = Key(self.next_key);
        self.next_key += 1;
        let lock = caches.then(|| {
            let (names, subtree) = (request.names.clone(), request.subtree);
            Arc::new(CachedLock::new(names, subtree, request.value.clone(), request.meta.clone()))
        });
        let mut cached = None;
        if let Some(lock) = &lock {
            let cache = &mut self.sessions[session].cache;
            cached = cache.begin(now, lock, limits.min_validity).map(|(section, ())| section);
            // Small blocks, and also for locks that the cache would not cache yet: most jobs meet others.
            let most = dice.within(1, 6) as u32;
            request.spare_tokens = cache.spare_tokens(now, lock).clamp(u32::from(dice.chance(70)), most);
        }
        let request = Arc::new(request);
        let job = Job {
            session,
            key,
            state: JobState::Waiting,
            is_lost: false,
            token: None,
            request: request.clone(),
            lock,
            cached: None,
            section: None,
            seen: None,
            stage: JobStage::Enter,
            is_careful: dice.chance(50),
            is_dropped: false,
            step_max: if stormy { dice.spread(work.0, work.1) } else { 10 * MS },
        };
        let is_dropped = cached.is_none() && stormy && dice.chance(core.scenario.drops);
        core.note(format_args!("client {} wants {key:?} {request:?}", self.index));
        self.jobs.insert(key.0, job);
        if let Some(section) = cached {
            return self.begins_locally(core, key, section);
        }
        if !request.wait {
            let it = OpenTry {
                names: request.names.clone(),
                subtree: request.subtree,
                kind: request.mode.kind(),
                label: label(self.index, session),
                seq: None,
                asked: core.now,
                saw_use: false,
            };
            core.oracle.history.tries.begin((self.index, self.life, key.0), it);
        }
        self.sessions[session].requests.insert(key, request);
        if is_dropped {
            // A later step drops the future, if the request still waits then, whether it was sent or not.
            let pause = core.dice.spread(MS, 2 * ttl);
            self.step_after(core, pause, key);
        }
        self.feed(core, session, Event::Acquire { key, limits });
    }

    pub(super) fn step_after(&self, core: &mut Core, pause: Nanos, key: Key) {
        core.after(pause, Happening::JobStep { client: self.index, life: self.life, key: key.0 });
    }

    pub(super) fn granted(
        &mut self,
        core: &mut Core,
        key: Key,
        grant: Granted,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        let id = (self.index, self.life, key.0);
        core.oracle.try_ends(core.now, id, false);
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        let Some(token) = grant.token else { return core.broken("P2", "a grant without a token") };
        if job.state != JobState::Waiting {
            if !(job.is_dropped && core.is(MutantLocation::DropForgotten)) {
                let what = format!("client {} {key:?} is granted while {:?}", self.index, job.state);
                core.broken("P7", &what);
            }
            return;
        }
        job.state = JobState::Held;
        self.holding.insert(key.0);
        job.token = Some(token.get());
        core.oracle.section_begins(core.now, token.get());
        self.caches(core, key, &grant, events);
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        if core.is(MutantLocation::GrantRenews) {
            let (session, now) = (&mut self.sessions[job.session], self.clock.instant(core.now));
            session.lease_deadline = session.spec.ttl.map(|ttl| now + ttl * 99 / 100);
        }
        let name = core.dice.pick(&job.request.names).to_string();
        let section = match (job.request.mode, grant.permits.first()) {
            (Mode::Shared, _) => Ok(Section::shared(token)),
            (Mode::Exclusive, _) => Ok(Section::exclusive(token)),
            (Mode::Permit { .. }, Some(permit)) => {
                // Slots are per name, and the first permit of a grant belongs to the first name in byte
                // order. So the section uses that name's resource.
                let first = job.request.names.iter().min().map(ToString::to_string).unwrap_or_default();
                job.section = Section::permit(permit.slot, token).ok().map(|section| (first, section));
                let pause = core.dice.spread(MS, job.step_max);
                return self.step_after(core, pause, key);
            }
            (Mode::Permit { .. }, None) => return core.broken("P8", "a permit without a slot"),
        };
        let section: Result<Section, ()> = section;
        job.section = section.ok().map(|section| (name, section));
        let pause = core.dice.spread(MS, job.step_max);
        self.step_after(core, pause, key);
    }

    pub(super) fn not_acquired(&mut self, core: &mut Core, key: Key, why: &NotAcquired) {
        let id = (self.index, self.life, key.0);
        // A try has no limit of its own: the service's, for one that is put off, means busy (C6).
        core.oracle.try_ends(core.now, id, matches!(why, NotAcquired::Busy(_) | NotAcquired::TimedOut));
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        if let NotAcquired::Ambiguous = why {
            core.oracle.seen.ambiguous += 1;
        }
        if job.state != JobState::Waiting {
            let what = format!("client {} {key:?} is told {why:?} while {:?}", self.index, job.state);
            return core.broken("P7", &what);
        }
        self.over(core, key);
    }

    pub(super) fn released(&mut self, core: &mut Core, key: Key, how: Releasing) {
        let key = self.releasing(key);
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        if job.state != JobState::Releasing {
            let what = format!("client {} {key:?} is told {how:?} while {:?}", self.index, job.state);
            return core.broken("P7", &what);
        }
        self.over(core, key);
    }

    pub(super) fn over(&mut self, core: &mut Core, key: Key) {
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        job.state = JobState::Over;
        self.holding.remove(&key.0);
        self.sessions[job.session].requests.remove(&key);
        if core.is_stormy {
            // A job that has cached its hold is followed by another soon.
            let most = if job.cached.is_some() { 50 * MS } else { core.scenario.idle_max };
            let pause = core.dice.spread(MS, most.max(2 * MS));
            core.after(pause, Happening::NextJob { client: self.index, life: self.life });
        }
    }

    /// Runs the next step of a job.
    pub(crate) fn step(&mut self, core: &mut Core, resources: &mut Resources, key: u64) {
        let Some(job) = self.jobs.get(&key) else { return };
        let key = job.key;
        match job.state {
            JobState::Over => {}
            // The only step of a waiting job is to drop its future.
            JobState::Waiting => self.drop_job(core, key),
            JobState::Releasing => {
                if core.is_stormy && core.dice.chance(20) {
                    self.drop_job(core, key);
                }
            }
            JobState::Held => self.work(core, resources, key),
        }
    }

    fn drop_job(&mut self, core: &mut Core, key: Key) {
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        job.is_dropped = true;
        let session = job.session;
        let forgets = core.is(MutantLocation::DropForgotten) && job.state == JobState::Waiting;
        let hold = job.hold();
        core.note(format_args!("client {} drops {key:?}", self.index));
        core.oracle.try_ends(core.now, (self.index, self.life, key.0), false);
        if self.keeps(core, key) {
            return;
        }
        self.over(core, key);
        if !forgets {
            self.feed(core, session, Event::Abandon { key: hold });
        }
    }

    fn work(&mut self, core: &mut Core, resources: &mut Resources, key: Key) {
        let Some(job) = self.jobs.get(&key.0) else { return };
        let stops = job.is_careful && !self.says_held(core, job);
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        let Some((name, section)) = job.section.clone() else { return };
        let writes = section.mode() != lockkeeper_fence::ModeKind::Shared;
        let stage = if stops { JobStage::End } else { job.stage };
        match stage {
            JobStage::Enter => {
                job.seen = Some(resources.enter(&name, section));
                job.stage = if writes { JobStage::Write } else { JobStage::End };
            }
            JobStage::Write => {
                job.stage = JobStage::End;
                if let Some(seen) = &job.seen {
                    match resources.write(&name, section, seen) {
                        Ok(written) => {
                            core.note(format_args!("client {} {key:?} wrote {name}: {written}", self.index))
                        }
                        Err(what) => core.broken("P3", &format!("client {} {key:?}: {what}", self.index)),
                    }
                }
            }
            JobStage::End => return self.end_job(core, key),
        }
        let pause = core.dice.spread(MS, job.step_max);
        self.step_after(core, pause, key);
    }

    fn end_job(&mut self, core: &mut Core, key: Key) {
        if core.dice.chance(30) {
            return self.drop_job(core, key);
        }
        if self.keeps(core, key) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        job.state = JobState::Releasing;
        self.holding.remove(&key.0);
        let (session, hold) = (job.session, job.hold());
        let pause = core.dice.spread(MS, 100 * MS);
        self.step_after(core, pause, key);
        self.feed(core, session, Event::Release { key: hold });
    }
}
