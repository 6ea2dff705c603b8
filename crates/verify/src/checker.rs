//! One line after the other: places its times on one clock, and passes it to the lock or resource that it is
//! about.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lockkeeper_history::{
    EndedEvent, EnteredEvent, FenceVerdict, GrantedEvent, HistoryEvent, HistoryLine, HoldMode, WriteOutcome,
    WroteEvent,
};

use crate::clock::{Ahead, Clocks, Time};
use crate::holds::{CheckedHold, LockState};
use crate::report::{Counts, Violation};
use crate::resource::ResourceState;

/// How many violations are kept until they are taken; further ones are only counted.
const FOUND: usize = 10_000;

/// A history that is being checked.
#[derive(Default)]
pub struct Checker {
    clocks: Clocks,
    /// The numbers of the writers.
    writers: HashMap<String, u32>,
    services: HashMap<String, ServiceState>,
    resources: HashMap<String, ResourceState>,
    /// The open holds: the lines of their grants.
    open: HashMap<(u32, u64), Arc<HistoryLine>>,
    counts: Counts,
    found: Vec<Violation>,
}

#[derive(Default)]
struct ServiceState {
    locks: BTreeMap<String, LockState>,
    /// Whether a hold has ever covered the names below its own.
    has_subtrees: bool,
}

impl Checker {
    /// Checks the next line. Lines may be out of order: what is late is compared with what is still
    /// remembered.
    pub fn push(&mut self, line: HistoryLine) {
        self.counts.lines += 1;
        let line = Arc::new(line);
        let writer = self.writer(&line.by);
        let ahead = self.clocks.ahead_of_writer(&line.by);
        let moment = Moments { ahead, at: Ahead::latest(ahead, line.at) };
        let mut found = Vec::new();
        match &line.event {
            HistoryEvent::Writer(_) | HistoryEvent::Clock(_) => self.clocks.hear(&line),
            HistoryEvent::Granted(event) => self.granted(writer, event, moment, &line, &mut found),
            HistoryEvent::Ended(event) => self.ended((writer, event.hold), event, moment, &line, &mut found),
            HistoryEvent::Downgraded(event) => {
                let id = (writer, event.hold);
                let times = (Ahead::earliest(ahead, event.asked), moment.at);
                if let Some(hold) = self.open.get(&id).and_then(|granted| grant_of(granted))
                    && let Some(service) = self.services.get_mut(&hold.service)
                {
                    for name in &hold.locks {
                        if let Some(lock) = service.locks.get_mut(name) {
                            lock.downgraded(id, times, &line, name, &mut found);
                        }
                    }
                }
            }
            HistoryEvent::Denied(_) => self.counts.denials += 1,
            HistoryEvent::Status(event) => {
                self.counts.questions += 1;
                let times = moment.call(event.asked);
                let lock = self.lock(&event.service, &event.lock);
                lock.asked_about(&event.lock, (event.token, event.answer), times, &line, &mut found);
            }
            HistoryEvent::Listed(event) => {
                self.counts.questions += 1;
                let times = moment.call(event.asked);
                let lock = self.lock(&event.service, &event.lock);
                lock.listed(&event.lock, &event.tokens, times, &line, &mut found);
            }
            HistoryEvent::Entered(event) => self.entered(event, moment, &line, &mut found),
            HistoryEvent::Marked(event) => {
                self.counts.fenced += 1;
                let resource = entry(&mut self.resources, &event.resource);
                let times = moment.call(event.asked);
                resource.marked(&event.resource, event.token, times, &line, &mut found);
            }
            HistoryEvent::Read(event) => {
                self.counts.fenced += 1;
                let asked = moment.call(event.asked).0;
                let resource = self.resources.entry(event.resource.clone()).or_default();
                resource.seen(&event.resource, event.version.clone(), asked, &line, &mut found);
            }
            HistoryEvent::Wrote(event) => self.wrote(event, moment, &line, &mut found),
            HistoryEvent::Fault(event) => self.counts.faults += u64::from(event.begins),
        }
        self.counts.violations += found.len() as u64;
        found.truncate(FOUND.saturating_sub(self.found.len()));
        self.found.append(&mut found);
    }

    /// How much was checked so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { writers: self.writers.len() as u64, ..self.counts }
    }

    /// The violations since the last call, at most 10,000 of them; [`Counts::violations`] counts all.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.found)
    }

    /// How many holds are open, and how many locks are remembered.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.open.len(), self.services.values().map(|service| service.locks.len()).sum())
    }

    fn writer(&mut self, by: &str) -> u32 {
        if let Some(&number) = self.writers.get(by) {
            return number;
        }
        let number = u32::try_from(self.writers.len()).unwrap_or(u32::MAX);
        self.writers.insert(by.to_owned(), number);
        number
    }

    fn lock(&mut self, service: &str, name: &str) -> &mut LockState {
        let service = entry(&mut self.services, service);
        if !service.locks.contains_key(name) {
            service.locks.insert(name.to_owned(), LockState::default());
        }
        service.locks.get_mut(name).unwrap_or_else(|| unreachable!("it was inserted"))
    }

    fn granted(
        &mut self,
        writer: u32,
        event: &GrantedEvent,
        moment: Moments,
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        self.counts.grants += 1;
        let id = (writer, event.hold);
        let asked = moment.call(event.asked).0;
        for (index, name) in event.locks.iter().enumerate() {
            // A caller may name a lock twice; it holds it once.
            if event.locks[..index].contains(name) {
                continue;
            }
            let hold = CheckedHold {
                id,
                mode: event.mode,
                subtree: event.subtree,
                slot: event.slots.get(index).copied(),
                token: event.token,
                from: moment.at,
                seen: Ahead::earliest(moment.ahead, line.at),
                until: None,
                granted: Arc::clone(line),
                ended: None,
            };
            let lock = self.lock(&event.service, name);
            lock.has_cached |= event.cached;
            lock.granted(hold, name, asked, found);
            let dead = lock.take_dead();
            let is_plain = event.mode == HoldMode::Exclusive && !event.subtree && !event.cached;
            if let (true, Some(token), [_]) = (is_plain, event.token, &event.locks[..]) {
                let queued = event.queued.map(|queued| Ahead::latest(moment.ahead, queued));
                lock.took_its_turn(name, (asked, queued), token, line, found);
            }
            for id in dead {
                self.open.remove(&id);
            }
        }
        if event.subtree {
            entry(&mut self.services, &event.service).has_subtrees = true;
        }
        self.open.insert(id, Arc::clone(line));
    }

    fn ended(
        &mut self,
        id: (u32, u64),
        event: &EndedEvent,
        moment: Moments,
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        let granted = self.open.remove(&id);
        let Some(hold) = granted.as_deref().and_then(grant_of) else { return };
        let until = Ahead::earliest(moment.ahead, event.until);
        let Some(service) = self.services.get_mut(&hold.service) else { return };
        for name in &hold.locks {
            if let Some(lock) = service.locks.get_mut(name) {
                lock.ended(id, until, line, name, found);
            }
            if service.has_subtrees {
                service.compare_related(name, id, found);
            }
        }
    }

    fn entered(
        &mut self,
        event: &EnteredEvent,
        moment: Moments,
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        self.counts.fenced += 1;
        let name = &event.resource;
        let resource = entry(&mut self.resources, name);
        resource.guarded(name, (&event.service, &event.lock), line, found);
        if event.verdict == FenceVerdict::Accepted {
            resource.accepted(name, event.token, moment.call(event.asked), line, found);
        }
    }

    fn wrote(
        &mut self,
        event: &WroteEvent,
        moment: Moments,
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        self.counts.fenced += 1;
        let (name, times) = (&event.resource, moment.call(event.asked));
        let resource = entry(&mut self.resources, name);
        resource.guarded(name, (&event.service, &event.lock), line, found);
        if let (Some(token), WriteOutcome::Done) = (event.token, event.outcome) {
            resource.accepted(name, token, times, line, found);
        }
        resource.wrote(name, event, times, line, found);
    }
}

/// What was granted by a line.
fn grant_of(line: &HistoryLine) -> Option<&GrantedEvent> {
    match &line.event {
        HistoryEvent::Granted(event) => Some(event),
        _ => None,
    }
}

/// The value of a key, which is made only if it is missing.
fn entry<'a, V: Default>(map: &'a mut HashMap<String, V>, key: &str) -> &'a mut V {
    if !map.contains_key(key) {
        map.insert(key.to_owned(), V::default());
    }
    map.get_mut(key).unwrap_or_else(|| unreachable!("it was inserted"))
}

impl ServiceState {
    /// Compares the hold that has just ended with those of names above and below, where one of both covers
    /// the other.
    fn compare_related(&mut self, name: &str, id: (u32, u64), found: &mut Vec<Violation>) {
        let ended = self.locks.get(name).and_then(LockState::last_ended).filter(|hold| hold.id == id);
        let Some(hold) = ended else { return };
        let mut above = name;
        while let Some((parent, _)) = above.rsplit_once('/') {
            above = parent;
            if let Some(lock) = self.locks.get(above) {
                lock.meets_related(hold, name, true, found);
            }
        }
        if hold.subtree {
            let below = format!("{name}/");
            for (_, lock) in
                self.locks.range(below.clone()..).take_while(|(name, _)| name.starts_with(&below))
            {
                lock.meets_related(hold, name, false, found);
            }
        }
    }
}

/// The times of a line.
#[derive(Clone, Copy)]
struct Moments {
    ahead: Option<Ahead>,
    /// The latest moment at which it may have been written.
    at: Time,
}

impl Moments {
    /// A call's earliest beginning and latest end.
    fn call(self, asked: u64) -> (Time, Time) {
        (Ahead::earliest(self.ahead, asked), self.at)
    }
}
