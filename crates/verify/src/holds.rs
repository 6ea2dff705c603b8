//! The holds of one lock: which of them overlap, and which was granted out of turn.
//!
//! What is certain of a hold is the time from its grant's arrival to its client's last moment. Two holds that
//! exclude each other must have no such moment in common.

use std::collections::VecDeque;
use std::sync::Arc;

use lockkeeper_history::{Line, Mode, SlotOf};

use crate::answers::Answers;
use crate::clock::Time;
use crate::order::TokenOrder;
use crate::report::{Kind, Violation};

/// A hold that is remembered only for those that may still end: more than this many, and those that began
/// before the others are taken for dead, whose clients never said when they ended.
const REMEMBERED: usize = 256;
/// How many grants are compared with a waiter that was granted later.
const TURNS: usize = 64;

/// A hold of one lock.
#[derive(Debug)]
pub(crate) struct Hold {
    /// The writer and the number of the hold.
    pub(crate) id: (u32, u64),
    pub(crate) mode: Mode,
    pub(crate) subtree: bool,
    pub(crate) slot: Option<SlotOf>,
    pub(crate) token: Option<u64>,
    /// From here on it was certainly held.
    pub(crate) from: Time,
    /// Up to here, once it has ended.
    pub(crate) until: Option<Time>,
    pub(crate) granted: Arc<Line>,
    pub(crate) ended: Option<Arc<Line>>,
}

impl Hold {
    fn excludes(&self, other: &Self) -> bool {
        match (self.mode, other.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Permit, Mode::Permit) => {
                self.slot.zip(other.slot).is_some_and(|(one, other)| one.slot == other.slot)
            }
            _ => true,
        }
    }

    /// Whether both were held at one moment, for certain.
    fn meets(&self, other: &Self) -> bool {
        // Of one that has not ended, only its beginning is certain.
        let ends = |hold: &Self| hold.until.unwrap_or(hold.from.saturating_add(1));
        self.from < ends(other) && other.from < ends(self)
    }

    fn lines(&self) -> impl Iterator<Item = &Arc<Line>> {
        std::iter::once(&self.granted).chain(&self.ended)
    }

    fn overlap(&self, other: &Self, lock: &str) -> Violation {
        let token = |hold: &Self| hold.token.map_or(String::new(), |token| format!(" with token {token}"));
        let (one, two) = if self.from <= other.from { (self, other) } else { (other, self) };
        Violation {
            kind: Kind::Overlap,
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
pub(crate) fn excerpt<'a>(lines: impl Iterator<Item = &'a Arc<Line>>) -> Vec<Line> {
    let mut lines: Vec<Line> = lines.map(|line| (**line).clone()).collect();
    lines.sort_by_key(|line| line.at);
    lines
}

/// What is remembered of one lock.
#[derive(Default)]
pub(crate) struct LockState {
    open: Vec<Hold>,
    closed: VecDeque<Hold>,
    pub(crate) order: TokenOrder,
    pub(crate) answers: Answers,
    /// Exclusive grants: when they were asked for, and their tokens.
    turns: VecDeque<(Time, u64, Arc<Line>)>,
}

impl LockState {
    pub(crate) fn granted(&mut self, hold: Hold, lock: &str, asked: Time, found: &mut Vec<Violation>) {
        if let Some(SlotOf { slot, limit }) = hold.slot
            && slot >= limit
        {
            let text = format!("`{lock}` has {limit} permits, and number {slot} was granted");
            found.push(Violation { kind: Kind::Permits, text, lines: excerpt(hold.lines()) });
        }
        if let Some(token) = hold.token {
            if let Some((highest, line)) = self.order.highest_before(asked)
                && *highest >= token
            {
                let text = format!(
                    "`{lock}` was granted with token {token} to one who asked when token {highest} was known"
                );
                found.push(Violation {
                    kind: Kind::TokenOrder,
                    text,
                    lines: excerpt([line, &hold.granted].into_iter()),
                });
            } else if let Some(same) = self.order.of_token(token) {
                let text = format!("`{lock}` was granted twice with token {token}");
                found.push(Violation {
                    kind: Kind::TokenOrder,
                    text,
                    lines: excerpt([&same.line, &hold.granted].into_iter()),
                });
            }
            self.order.issued(hold.from, token, &hold.granted);
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
        line: &Arc<Line>,
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
                kind: Kind::QueueOrder,
                text,
                lines: excerpt([before, line].into_iter()),
            });
        }
        self.turns.push_back((asked, token, Arc::clone(line)));
        if self.turns.len() > TURNS {
            self.turns.pop_front();
        }
    }

    /// The hold `id` was held until `until`.
    pub(crate) fn ended(
        &mut self,
        id: (u32, u64),
        until: Time,
        line: &Arc<Line>,
        lock: &str,
        found: &mut Vec<Violation>,
    ) {
        let Some(index) = self.open.iter().position(|hold| hold.id == id) else { return };
        let mut hold = self.open.swap_remove(index);
        hold.until = Some(until);
        hold.ended = Some(Arc::clone(line));
        for other in self.closed.iter().chain(&self.open) {
            if hold.excludes(other) && hold.meets(other) {
                found.push(hold.overlap(other, lock));
            }
        }
        self.answers.ended(&hold, lock, found);
        self.closed.push_back(hold);
        self.forget();
    }

    /// The hold `id` is shared from now on.
    pub(crate) fn downgraded(
        &mut self,
        id: (u32, u64),
        (asked, at): (Time, Time),
        line: &Arc<Line>,
        lock: &str,
        found: &mut Vec<Violation>,
    ) {
        let Some(hold) = self.open.iter().find(|hold| hold.id == id) else { return };
        let shared = Hold {
            id,
            mode: Mode::Shared,
            subtree: hold.subtree,
            slot: None,
            token: hold.token,
            from: at,
            until: None,
            granted: Arc::clone(line),
            ended: None,
        };
        self.ended(id, asked, line, lock, found);
        self.open.push(shared);
    }

    /// Compares an ended hold of another name: one that covers this one, or one that holds of this name may
    /// cover (`is_above`).
    pub(crate) fn meets_related(&self, hold: &Hold, lock: &str, is_above: bool, found: &mut Vec<Violation>) {
        for other in self.closed.iter().chain(&self.open) {
            let related = !is_above || other.subtree;
            if related && other.id != hold.id && hold.excludes(other) && hold.meets(other) {
                found.push(hold.overlap(other, lock));
            }
        }
    }

    /// The last hold that has ended.
    pub(crate) fn last_ended(&self) -> Option<&Hold> {
        self.closed.back()
    }

    pub(crate) fn open(&self) -> &[Hold] {
        &self.open
    }

    pub(crate) fn ended_holds(&self) -> impl Iterator<Item = &Hold> {
        self.closed.iter()
    }

    pub(crate) fn of_token(&self, token: u64) -> Option<&Hold> {
        let is_it = |hold: &&Hold| hold.token == Some(token);
        self.open.iter().find(is_it).or_else(|| self.closed.iter().rev().find(is_it))
    }

    /// Forgets ended holds that no open one can meet any more: all that began before they ended have ended,
    /// too. The last few stay, for questions.
    fn forget(&mut self) {
        const FOR_QUESTIONS: usize = 16;
        if self.open.len() > REMEMBERED / 2 {
            // Holds of clients that died.
            self.open.sort_by_key(|hold| hold.from);
            self.open.drain(..self.open.len() - REMEMBERED / 2).for_each(drop);
        }
        let oldest = self.open.iter().map(|hold| hold.from).min().unwrap_or(Time::MAX);
        while self.closed.len() > FOR_QUESTIONS {
            let is_over = |hold: &Hold| hold.until.is_none_or(|until| until <= oldest);
            let full = self.closed.len() > REMEMBERED;
            if full || self.closed.front().is_some_and(is_over) {
                self.closed.pop_front();
            } else {
                break;
            }
        }
    }
}
