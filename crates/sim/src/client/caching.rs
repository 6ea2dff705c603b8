//! Cached holds: the production cache decides, as in the library's session.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper::BootInstant;
use lockkeeper::simulation::{
    AfterSection, CachedSection as Cached, Event, Granted, Key, NotAcquired, RecallAnswer,
};
use lockkeeper_fence::Section;

use super::{Job, JobState, SimClient};
use crate::clock::MS;
use crate::core::Core;
use crate::mutants::MutantLocation;

/// A cached hold, from its grant until its release is sent.
pub(super) struct CachedHold {
    first: u64,
    /// The job whose section uses it.
    job: Option<Key>,
    /// The client was told of the recall.
    is_recalled: bool,
}

impl Job {
    /// The request of the job's hold. That of a cached hold may be another job's.
    pub(super) fn hold(&self) -> Key {
        self.cached.map_or(self.key, |section| section.key)
    }
}

impl SimClient {
    /// First tokens of the cached holds that no section uses.
    pub(crate) fn idle_holds(&self) -> impl Iterator<Item = u64> {
        let holds = self.sessions.iter().flat_map(|session| session.cached.values());
        holds.filter(|hold| hold.job.is_none() && !hold.is_recalled).map(|hold| hold.first)
    }

    /// The grant of a job that may cache its hold.
    pub(super) fn caches(
        &mut self,
        core: &mut Core,
        key: Key,
        grant: &Granted,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        let (Some(lock), Some(token)) = (job.lock.clone(), grant.token) else { return };
        let now = self.clock.instant(core.now);
        let cache_for = Duration::from_nanos(core.dice.within(10 * MS, 2 * core.scenario.ttl_max));
        let session = &mut self.sessions[job.session];
        let (section, too_many) = session.cache.granted(now, key, &lock, grant, cache_for, ());
        job.cached = section;
        if section.is_some() {
            let hold = CachedHold { first: token.get(), job: Some(key), is_recalled: false };
            session.cached.insert(key, hold);
        }
        if let Some(other) = too_many {
            session.cached.remove(&other);
            events.push_back((job.session, Event::Abandon { key: other }));
        }
    }

    /// A section begins with a cached hold, without the lock service.
    pub(super) fn begins_locally(&mut self, core: &mut Core, key: Key, section: Cached) {
        let Some(job) = self.jobs.get_mut(&key.0) else { return };
        core.oracle.seen.local += 1;
        let token = if core.is(MutantLocation::TokenReused) { section.first } else { section.token };
        let Some(hold) = self.sessions[job.session].cached.get_mut(&section.key) else {
            return core.broken("P1", &format!("{section:?} is of a hold that is over"));
        };
        let why = match hold.job.replace(key) {
            Some(other) => Some(("P1", format!("{other:?} is in a section with the hold"))),
            None if hold.is_recalled => Some(("P8", "the hold was recalled".to_owned())),
            None => None,
        };
        (job.state, job.token, job.cached) = (JobState::Held, Some(token.get()), Some(section));
        let name = core.dice.pick(&job.request.names).to_string();
        job.begins(name, Section::exclusive(token));
        let pause = core.dice.spread(MS, job.step_max);
        self.holding.insert(key.0);
        core.note(format_args!("client {} {key:?} begins {section:?} by itself", self.index));
        if let Some((promise, why)) = why {
            core.broken(promise, &format!("client {} {key:?} begins {section:?}: {why}", self.index));
        }
        core.oracle.section_begins(core.now, token.get());
        self.step_after(core, pause, key);
    }

    /// Ends the section of a job. Returns true if its hold stays cached: then the job is over.
    pub(super) fn keeps(&mut self, core: &mut Core, key: Key) -> bool {
        let Some(job) = self.jobs.get(&key.0) else { return false };
        let (Some(section), JobState::Held) = (job.cached, job.state) else { return false };
        let now = self.clock.instant(core.now);
        let session = &mut self.sessions[job.session];
        if session.cache.end(now, &section) == AfterSection::Release {
            session.cached.remove(&section.key);
            return false;
        }
        if let Some(hold) = session.cached.get_mut(&section.key) {
            hold.job = None;
        }
        self.over(core, key);
        // The cache has to be looked at when the hold is due.
        self.flush(core);
        true
    }

    /// The job that waits for the release of a request.
    pub(super) fn releasing(&self, request: Key) -> Key {
        let releases = |job: &&Job| job.state == JobState::Releasing && job.hold() == request;
        self.jobs.values().find(releases).map_or(request, |job| job.key)
    }

    pub(super) fn queued(&mut self, core: &mut Core, key: Key, events: &mut VecDeque<(usize, Event)>) {
        let Some(job) = self.jobs.get(&key.0) else { return };
        if let Some(lock) = &job.lock {
            self.sessions[job.session].cache.met_others(lock);
        }
        if !job.request.wait && core.is(MutantLocation::QueuedIsBusy) {
            events.push_back((job.session, Event::Abandon { key }));
            self.not_acquired(core, key, &NotAcquired::Busy(Default::default()));
        }
    }

    /// C5: an idle hold is released, one in use is settled.
    pub(super) fn recalled(
        &mut self,
        core: &mut Core,
        session: usize,
        key: Key,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        core.note(format_args!("client {} is told that {key:?} is recalled", self.index));
        let now = self.clock.instant(core.now);
        let it = &mut self.sessions[session];
        if let Some(hold) = it.cached.get_mut(&key) {
            hold.is_recalled = true;
        }
        if core.is(MutantLocation::RecallUnheard) {
            return;
        }
        let event = match it.cache.recalled(now, key) {
            RecallAnswer::Release => {
                it.cached.remove(&key);
                Event::Abandon { key }
            }
            RecallAnswer::Settle => Event::Settle { key },
        };
        events.push_back((session, event));
    }

    pub(super) fn lost(
        &mut self,
        core: &mut Core,
        session: usize,
        key: Key,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        let user = self.sessions[session].cached.get(&key).map_or(Some(key), |hold| hold.job);
        if let Some(job) = user.and_then(|user| self.jobs.get_mut(&user.0)) {
            job.is_lost = true;
        }
        let session_of = &mut self.sessions[session];
        if core.is(MutantLocation::CachedOutlivesSession) {
            return;
        }
        if session_of.cache.remove_key(key) {
            session_of.cached.remove(&key);
            events.push_back((session, Event::Abandon { key }));
        }
    }

    /// Releases the holds that were idle for too long (C8).
    pub(super) fn release_due(
        &mut self,
        core: &mut Core,
        now: BootInstant,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        for (number, session) in self.sessions.iter_mut().enumerate() {
            while let Some(key) = session.cache.due(now) {
                core.note(format_args!("client {} releases the idle {key:?}", self.index));
                session.cached.remove(&key);
                events.push_back((number, Event::Abandon { key }));
            }
        }
    }

    /// The cached holds that are known, to be released at the end of the process.
    pub(crate) fn all_idle(clients: &[Self]) -> BTreeSet<u64> {
        let alive = clients.iter().filter(|client| client.is_alive);
        alive.flat_map(Self::idle_holds).collect()
    }
}
