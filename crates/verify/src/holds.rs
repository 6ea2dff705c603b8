//! The holds of one lock: which of them overlap, and which was granted out of turn.
//!
//! What is certain of a hold is the time from its grant's arrival to its client's last moment. Two holds that
//! exclude each other must have no such moment in common.

use std::collections::VecDeque;
use std::sync::Arc;

use lockkeeper_history::{HistoryLine, HoldMode, SlotOf};

use crate::answers::Answers;
use crate::clock::Time;
use crate::order::TokenOrder;
use crate::report::{Violation, ViolationKind};

/// A hold that is remembered only for those that may still end: more than this many, and those that began
/// before the others are taken for dead, whose clients never said when they ended.
const REMEMBERED: usize = 256;
/// How many grants are compared with a waiter that was granted later.
const TURNS: usize = 64;

/// A hold's token; without one, its writer and its number there.
type HoldKey = (Option<u64>, Option<(u32, u64)>);

/// A hold of one lock.
#[derive(Debug)]
pub(crate) struct CheckedHold {
    /// The writer and the number of the hold.
    pub(crate) id: (u32, u64),
    pub(crate) mode: HoldMode,
    pub(crate) subtree: bool,
    pub(crate) slot: Option<SlotOf>,
    pub(crate) token: Option<u64>,
    /// It was certainly granted by then.
    pub(crate) from: Time,
    /// Its client certainly counted on it then: the earliest moment at which its grant may have arrived.
    pub(crate) seen: Time,
    /// It was certainly held up to here, once its client has said how it ended.
    pub(crate) until: Option<Time>,
    pub(crate) granted: Arc<HistoryLine>,
    pub(crate) ended: Option<Arc<HistoryLine>>,
}

impl CheckedHold {
    fn key(&self) -> HoldKey {
        (self.token, self.token.is_none().then_some(self.id))
    }

    fn excludes(&self, other: &Self) -> bool {
        match (self.mode, other.mode) {
            (HoldMode::Shared, HoldMode::Shared) => false,
            (HoldMode::Permit, HoldMode::Permit) => {
                self.slot.zip(other.slot).is_some_and(|(one, other)| one.slot == other.slot)
            }
            _ => true,
        }
    }

    /// Whether both were held at one moment, for certain.
    fn meets(&self, other: &Self) -> bool {
        // Of one that has not ended, only the arrival of its grant is certain.
        let ends = |hold: &Self| hold.until.unwrap_or(hold.seen.saturating_add(1));
        self.from < ends(other) && other.from < ends(self)
    }

    /// It was held after the token `later` was granted, which is higher.
    fn outlasts(&self, later: u64, line: &Arc<HistoryLine>, lock: &str) -> Violation {
        let token = self.token.unwrap_or_default();
        Violation {
            kind: ViolationKind::Overlap,
            text: format!(
                "`{lock}` was held by {} with token {token} after token {later} was granted",
                self.granted.by
            ),
            lines: excerpt(self.lines().chain([line])),
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Arc<HistoryLine>> {
        std::iter::once(&self.granted).chain(&self.ended)
    }

    fn overlap(&self, other: &Self, lock: &str) -> Violation {
        let token = |hold: &Self| hold.token.map_or(String::new(), |token| format!(" with token {token}"));
        let (one, two) = if self.from <= other.from { (self, other) } else { (other, self) };
        Violation {
            kind: ViolationKind::Overlap,
            text: format!(
                "`{lock}` was held by {}{} and by {}{} at once",
                one.granted.by,
                token(one),
                two.granted.by,
                token(two)
            ),
            lines: excerpt(one.lines().chain(two.lines())),
        }
    }
}

/// Lines in the order of their times.
pub(crate) fn excerpt<'a>(lines: impl Iterator<Item = &'a Arc<HistoryLine>>) -> Vec<HistoryLine> {
    let mut lines: Vec<HistoryLine> = lines.map(|line| (**line).clone()).collect();
    lines.sort_by_key(|line| line.at);
    lines
}

/// What is remembered of one lock.
#[derive(Default)]
pub(crate) struct LockState {
    open: Vec<CheckedHold>,
    closed: VecDeque<CheckedHold>,
    /// Tokens that the service had certainly issued.
    pub(crate) order: TokenOrder,
    /// Of these, the ones that were holds of this lock.
    holders: TokenOrder,
    /// Holds that were taken for dead since the last call of `take_dead`.
    dead: Vec<(u32, u64)>,
    /// Pairs of holds that were told of.
    told: VecDeque<[HoldKey; 2]>,
    pub(crate) answers: Answers,
    /// Whether it was ever cached. Then several tokens are those of one hold, and answers say less.
    pub(crate) has_cached: bool,
    /// Exclusive grants: when they were asked for, and their tokens.
    turns: VecDeque<(Time, u64, Arc<HistoryLine>)>,
}

impl LockState {
    pub(crate) fn granted(
        &mut self,
        mut hold: CheckedHold,
        lock: &str,
        asked: Time,
        found: &mut Vec<Violation>,
    ) {
        if let Some(SlotOf { slot, limit }) = hold.slot
            && slot >= limit
        {
            let text = format!("`{lock}` has {limit} permits, and number {slot} was granted");
            found.push(Violation { kind: ViolationKind::Permits, text, lines: excerpt(hold.lines()) });
        }
        if let Some(token) = hold.token {
            hold.from = self.answers.current_by(token).map_or(hold.from, |by| by.min(hold.from));
            if let Some((highest, line)) = self.order.highest_before(asked)
                && *highest >= token
            {
                let text = format!(
                    "`{lock}` was granted with token {token} to one who asked when token {highest} was known"
                );
                found.push(Violation {
                    kind: ViolationKind::TokenOrder,
                    text,
                    lines: excerpt([line, &hold.granted].into_iter()),
                });
            } else if let Some(same) = self.holders.of_token(token).filter(|same| same.is_grant()) {
                let text = format!("`{lock}` was granted twice with token {token}");
                found.push(Violation {
                    kind: ViolationKind::TokenOrder,
                    text,
                    lines: excerpt([&same.line, &hold.granted].into_iter()),
                });
            }
            self.order.issued(hold.from, token, &hold.granted);
            self.held(token, hold.from, &hold.granted, lock, found);
        }
        self.open.push(hold);
        if self.open.len() + self.closed.len() > REMEMBERED {
            self.forget();
        }
    }

    /// An exclusive grant with its place in the queue: nobody who asked later may have got a lower token.
    pub(crate) fn took_its_turn(
        &mut self,
        lock: &str,
        (asked, queued): (Time, Option<Time>),
        token: u64,
        line: &Arc<HistoryLine>,
        found: &mut Vec<Violation>,
    ) {
        if let Some(queued) = queued
            && let Some((_, _, before)) =
                self.turns.iter().find(|(other, earlier, _)| *other > queued && *earlier < token)
        {
            let text = format!(
                "`{lock}` was granted to {}, who asked for it when {} waited already",
                before.by, line.by
            );
            found.push(Violation {
                kind: ViolationKind::QueueOrder,
                text,
                lines: excerpt([before, line].into_iter()),
            });
        }
        self.turns.push_back((asked, token, Arc::clone(line)));
        if self.turns.len() > TURNS {
            self.turns.pop_front();
        }
    }

    /// A hold with this token was granted by `at`: holds with lower tokens had ended by then.
    pub(crate) fn held(
        &mut self,
        token: u64,
        at: Time,
        line: &Arc<HistoryLine>,
        lock: &str,
        found: &mut Vec<Violation>,
    ) {
        let lasts = |hold: &&CheckedHold| {
            let lower = hold.mode == HoldMode::Exclusive && hold.token.is_some_and(|other| other < token);
            lower && hold.until.is_some_and(|until| at < until)
        };
        if let Some(hold) = self.closed.iter().find(lasts) {
            let (pair, violation) = ([hold.key(), (Some(token), None)], hold.outlasts(token, line, lock));
            self.tell(pair, violation, found);
        }
        self.holders.issued(at, token, line);
    }

    /// An exclusive hold was still held at `until`: no higher token may have been granted before.
    /// The higher token, if there is one.
    pub(crate) fn lasted(&self, hold: &CheckedHold, until: Time, lock: &str) -> Option<(u64, Violation)> {
        let token = hold.token.filter(|_| hold.mode == HoldMode::Exclusive)?;
        let (highest, line) = self.holders.highest_before(until)?;
        (*highest > token).then(|| (*highest, hold.outlasts(*highest, line, lock)))
    }

    /// Tells of two holds, once: they may be found when either of both ends.
    fn tell(&mut self, mut pair: [HoldKey; 2], violation: Violation, found: &mut Vec<Violation>) {
        const TOLD: usize = 64;
        pair.sort_unstable();
        if self.told.contains(&pair) {
            return;
        }
        found.push(violation);
        self.told.push_back(pair);
        if self.told.len() > TOLD {
            self.told.pop_front();
        }
    }

    /// The ids of holds that are not remembered any more, though they have not ended.
    pub(crate) fn take_dead(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.dead)
    }

    /// The hold `id` was held until `until`.
    pub(crate) fn ended(
        &mut self,
        id: (u32, u64),
        until: Time,
        line: &Arc<HistoryLine>,
        lock: &str,
        found: &mut Vec<Violation>,
    ) {
        let Some(index) = self.open.iter().position(|hold| hold.id == id) else { return };
        let mut hold = self.open.swap_remove(index);
        hold.until = Some(until);
        hold.ended = Some(Arc::clone(line));
        let others = self.closed.iter().chain(&self.open);
        let met = others.filter(|other| hold.excludes(other) && hold.meets(other));
        let mut met: Vec<_> = met.map(|it| ([hold.key(), it.key()], hold.overlap(it, lock))).collect();
        if met.is_empty()
            && let Some((later, violation)) = self.lasted(&hold, until, lock)
        {
            met.push(([hold.key(), (Some(later), None)], violation));
        }
        for (pair, violation) in met {
            self.tell(pair, violation, found);
        }
        self.answers.held_until(&hold, until, lock, found);
        self.closed.push_back(hold);
        self.forget();
    }

    /// The hold `id` is shared from now on.
    pub(crate) fn downgraded(
        &mut self,
        id: (u32, u64),
        (asked, at): (Time, Time),
        line: &Arc<HistoryLine>,
        lock: &str,
        found: &mut Vec<Violation>,
    ) {
        let Some(hold) = self.open.iter().find(|hold| hold.id == id) else { return };
        let shared = CheckedHold {
            id,
            mode: HoldMode::Shared,
            subtree: hold.subtree,
            slot: None,
            token: hold.token,
            from: at,
            seen: asked,
            until: None,
            granted: Arc::clone(line),
            ended: None,
        };
        self.ended(id, asked, line, lock, found);
        self.open.push(shared);
    }

    /// Compares an ended hold of another name: one that covers this one, or one that holds of this name may
    /// cover (`is_above`).
    pub(crate) fn meets_related(
        &self,
        hold: &CheckedHold,
        lock: &str,
        is_above: bool,
        found: &mut Vec<Violation>,
    ) {
        for other in self.closed.iter().chain(&self.open) {
            let related = !is_above || other.subtree;
            if related && other.id != hold.id && hold.excludes(other) && hold.meets(other) {
                found.push(hold.overlap(other, lock));
            }
        }
    }

    /// The last hold that has ended.
    pub(crate) fn last_ended(&self) -> Option<&CheckedHold> {
        self.closed.back()
    }

    /// All that are remembered.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &CheckedHold> {
        self.open.iter().chain(self.closed.iter().rev())
    }

    pub(crate) fn of_token(&mut self, token: u64) -> Option<&mut CheckedHold> {
        let is_it = |hold: &&mut CheckedHold| hold.token == Some(token);
        self.open.iter_mut().find(is_it).or_else(|| self.closed.iter_mut().rev().find(is_it))
    }

    /// Forgets ended holds that no open one can meet any more: all that began before they ended have ended,
    /// too. The last few stay, for questions.
    fn forget(&mut self) {
        const FOR_QUESTIONS: usize = 16;
        if self.open.len() > REMEMBERED / 2 {
            // Holds of clients that died.
            self.open.sort_by_key(|hold| hold.from);
            let dead = self.open.drain(..self.open.len() - REMEMBERED / 2);
            self.dead.extend(dead.map(|hold| hold.id));
        }
        let oldest = self.open.iter().map(|hold| hold.from).min().unwrap_or(Time::MAX);
        while self.closed.len() > FOR_QUESTIONS {
            let is_over = |hold: &CheckedHold| hold.until.is_none_or(|until| until <= oldest);
            let full = self.closed.len() > REMEMBERED;
            if full || self.closed.front().is_some_and(is_over) {
                self.closed.pop_front();
            } else {
                break;
            }
        }
    }
}
