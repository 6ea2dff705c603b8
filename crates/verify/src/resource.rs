//! What a fence protects: the order of the tokens that it accepts, and the updates that were made under them.
//!
//! Each write says which version it has read and which it has made. So the versions form a chain, and an
//! acknowledged write that is not in the chain of a later one is lost.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lockkeeper_history::{HistoryEvent, HistoryLine, WriteOutcome, WroteEvent};

use crate::clock::Time;
use crate::holds::excerpt;
use crate::order::TokenOrder;
use crate::report::{Violation, ViolationKind};

/// How many writes are remembered.
const KEPT: usize = 4096;
/// How far a chain is followed: past all writes whose outcome is unknown.
const CHAIN: usize = 64;

/// What is remembered of a resource.
#[derive(Default)]
pub(crate) struct ResourceState {
    accepted: TokenOrder,
    /// ServiceState and lock of its tokens, and the first line that named them.
    guarded_by: Option<(String, String, Arc<HistoryLine>)>,
    is_told: bool,
    /// Writes that were or may have been done, by the version that they made.
    made: HashMap<String, Write>,
    /// Their versions, the oldest first.
    kept: VecDeque<String>,
    /// The acknowledged write that replaced a version.
    replaced: HashMap<String, String>,
    /// Acknowledged writes in the order in which they were known.
    done: VecDeque<(Time, String)>,
    /// Those who read a version that nobody has said to have made yet.
    unknown: HashMap<String, Vec<SeenVersion>>,
}

struct Write {
    saw: String,
    line: Arc<HistoryLine>,
}

/// Who has read a version, to compare it with what was acknowledged before.
#[derive(Clone)]
struct SeenVersion {
    version: String,
    asked: Time,
    line: Arc<HistoryLine>,
}

impl ResourceState {
    /// The fence accepted a token.
    pub(crate) fn accepted(
        &mut self,
        resource: &str,
        token: u64,
        times: (Time, Time),
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        self.passed(token, times, line, found, |highest| {
            format!("the fence of `{resource}` accepted token {token} after {highest}")
        });
    }

    /// The mark of the fence, as its store has it: every token that had passed before is at most that.
    pub(crate) fn marked(
        &mut self,
        resource: &str,
        token: u64,
        times: (Time, Time),
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        self.passed(token, times, line, found, |highest| {
            format!("the mark of `{resource}` is {token}, though {highest} had passed before")
        });
    }

    /// A token has passed the fence, at the latest when this line was written: none that was known before the
    /// call is higher. `violation`: the text with the one that is.
    fn passed(
        &mut self,
        token: u64,
        (asked, at): (Time, Time),
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
        violation: impl FnOnce(u64) -> String,
    ) {
        if let Some((highest, before)) = self.accepted.highest_before(asked)
            && *highest > token
        {
            let lines = excerpt([before, line].into_iter());
            found.push(Violation { kind: ViolationKind::FenceOrder, text: violation(*highest), lines });
        }
        self.accepted.issued(at, token, line);
    }

    /// The resource is used under this lock.
    pub(crate) fn guarded(
        &mut self,
        resource: &str,
        (service, lock): (&str, &str),
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        match &self.guarded_by {
            None => self.guarded_by = Some((service.to_owned(), lock.to_owned(), Arc::clone(line))),
            Some((one, other, _)) if one == service && other == lock => {}
            Some(_) if self.is_told => {}
            Some((first_service, first_lock, first)) => {
                let text = format!(
                    "`{resource}` is used under `{first_lock}` of {first_service} and under `{lock}` of {service}, which \
                     do not exclude each other"
                );
                let lines = excerpt([first, line].into_iter());
                found.push(Violation { kind: ViolationKind::TwoLocks, text, lines });
                self.is_told = true;
            }
        }
    }

    pub(crate) fn wrote(
        &mut self,
        resource: &str,
        event: &WroteEvent,
        (asked, at): (Time, Time),
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        if event.outcome == WriteOutcome::Stale {
            return;
        }
        let write = Write { saw: event.saw.clone(), line: Arc::clone(line) };
        self.made.insert(event.made.clone(), write);
        self.kept.push_back(event.made.clone());
        if event.outcome == WriteOutcome::Done {
            let before = self.replaced.insert(event.saw.clone(), event.made.clone());
            if let Some(other) = before.and_then(|made| self.made.get(&made)) {
                let text = format!(
                    "two acknowledged writes of `{resource}` have both replaced version `{}`: one of them is lost",
                    event.saw
                );
                let lines = excerpt([&other.line, line].into_iter());
                found.push(Violation { kind: ViolationKind::LostUpdate, text, lines });
            } else {
                self.seen(resource, event.saw.clone(), asked, line, found);
            }
            let place = self.done.iter().rev().take_while(|(other, _)| *other > at).count();
            self.done.insert(self.done.len() - place, (at, event.made.clone()));
        }
        for seen in self.unknown.remove(&event.made).unwrap_or_default() {
            self.follow(resource, seen, found);
        }
        self.trim();
    }

    /// Someone has read a version: what was acknowledged before must be in it.
    pub(crate) fn seen(
        &mut self,
        resource: &str,
        version: String,
        asked: Time,
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        self.follow(resource, SeenVersion { version, asked, line: Arc::clone(line) }, found);
    }

    fn follow(&mut self, resource: &str, seen: SeenVersion, found: &mut Vec<Violation>) {
        let Some((_, last)) = self.done.iter().rev().find(|(at, _)| *at < seen.asked) else { return };
        if *last == seen.version {
            return;
        }
        let chain = |from: &str| {
            let mut chain = vec![from.to_owned()];
            while let Some(write) = self.made.get(&chain[chain.len() - 1])
                && chain.len() < CHAIN
            {
                chain.push(write.saw.clone());
            }
            chain
        };
        let (of_last, of_seen) = (chain(last), chain(&seen.version));
        if of_seen.contains(last) {
            return;
        }
        if of_seen.iter().any(|version| of_last.contains(version)) {
            let what = match &seen.line.event {
                HistoryEvent::Read(_) => "a later reader has not seen it",
                _ => "a later write has replaced what was there before",
            };
            let text = format!("the acknowledged version `{last}` of `{resource}` is lost: {what}");
            let lost = self.made.get(last).map(|write| &write.line);
            let lines = excerpt(lost.into_iter().chain([&seen.line]));
            found.push(Violation { kind: ViolationKind::LostUpdate, text, lines });
        } else if let Some(oldest) = of_seen.last()
            && self.unknown.len() < KEPT
        {
            // Someone's write whose line has not come yet.
            self.unknown.entry(oldest.clone()).or_default().push(seen);
        }
    }

    fn trim(&mut self) {
        while self.kept.len() > KEPT
            && let Some(oldest) = self.kept.pop_front()
        {
            if let Some(write) = self.made.remove(&oldest) {
                self.replaced.remove(&write.saw);
            }
        }
        while self.done.len() > KEPT {
            self.done.pop_front();
        }
    }
}
