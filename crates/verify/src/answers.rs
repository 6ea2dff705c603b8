//! Answers of lock services about tokens and holders: each must have been so at some moment between its
//! question and its arrival.

use std::collections::VecDeque;
use std::sync::Arc;

use lockkeeper_history::{Line, TokenAnswer};

use crate::clock::Time;
use crate::holds::{Hold, LockState, excerpt};
use crate::report::{Kind, Violation};

/// How many answers of each kind a lock remembers.
const KEPT: usize = 64;

/// What was said of holds that may not be known yet, or not have ended.
#[derive(Default)]
pub(crate) struct Answers {
    denied: VecDeque<Denied>,
    current: VecDeque<Current>,
}

/// An answer that says of some tokens: nobody holds the lock with them.
struct Denied {
    asked: Time,
    at: Time,
    what: Tokens,
    line: Arc<Line>,
}

enum Tokens {
    One(u64),
    AllBut(Vec<u64>),
}

/// An answer that says of a token: it is that of a hold.
struct Current {
    token: u64,
    asked: Time,
    at: Time,
}

impl Denied {
    fn denies(&self, token: u64) -> bool {
        match &self.what {
            Tokens::One(one) => *one == token,
            Tokens::AllBut(listed) => !listed.contains(&token),
        }
    }

    /// Whether a hold that lasted until `until` was there all the time.
    fn contradicts(&self, hold: &Hold, until: Time) -> bool {
        let covers = hold.from < self.asked && self.at < until;
        covers && hold.token.is_some_and(|token| self.denies(token))
    }
}

impl Answers {
    /// A hold was certainly held until `until`.
    pub(crate) fn held_until(&self, hold: &Hold, until: Time, lock: &str, found: &mut Vec<Violation>) {
        let of_it = self.current.iter().filter(|current| Some(current.token) == hold.token);
        let until = of_it.map(|current| current.asked).fold(until, Time::max);
        for denied in self.denied.iter().filter(|denied| denied.contradicts(hold, until)) {
            found.push(contradiction(hold, denied, lock));
        }
    }

    /// The earliest moment by which the service had said that a token is that of a hold.
    pub(crate) fn current_by(&self, token: u64) -> Option<Time> {
        self.current.iter().filter(|current| current.token == token).map(|current| current.at).min()
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, value: T) {
    queue.push_back(value);
    if queue.len() > KEPT {
        queue.pop_front();
    }
}

fn contradiction(hold: &Hold, denied: &Denied, lock: &str) -> Violation {
    let token = hold.token.unwrap_or_default();
    Violation {
        kind: Kind::Answer,
        text: format!("the lock service did not know token {token} of `{lock}`, which was held all the time"),
        lines: excerpt([&hold.granted, &denied.line].into_iter().chain(&hold.ended)),
    }
}

impl LockState {
    /// What the service says of one token.
    pub(crate) fn asked_about(
        &mut self,
        lock: &str,
        (token, answer): (u64, TokenAnswer),
        (asked, at): (Time, Time),
        line: &Arc<Line>,
        found: &mut Vec<Violation>,
    ) {
        if self.has_cached {
            return;
        }
        match answer {
            TokenAnswer::Current => self.said_current(lock, token, (asked, at), line, found),
            TokenAnswer::NotCurrent => self.said_denied(lock, Tokens::One(token), (asked, at), line, found),
            TokenAnswer::NeverIssued => {
                if let Some((highest, before)) = self.order.highest_before(asked)
                    && *highest >= token
                {
                    let text = format!("token {token} of `{lock}` was said to be above all, after {highest}");
                    let lines = excerpt([before, line].into_iter());
                    found.push(Violation { kind: Kind::Answer, text, lines });
                }
            }
        }
    }

    /// The service lists all holds of the lock.
    pub(crate) fn listed(
        &mut self,
        lock: &str,
        tokens: &[u64],
        (asked, at): (Time, Time),
        line: &Arc<Line>,
        found: &mut Vec<Violation>,
    ) {
        if self.has_cached {
            return;
        }
        for &token in tokens {
            self.said_current(lock, token, (asked, at), line, found);
        }
        self.said_denied(lock, Tokens::AllBut(tokens.to_vec()), (asked, at), line, found);
    }

    fn said_current(
        &mut self,
        lock: &str,
        token: u64,
        (asked, at): (Time, Time),
        line: &Arc<Line>,
        found: &mut Vec<Violation>,
    ) {
        // It was held at some moment of the call: granted before the end, and not ended before the beginning.
        if let Some(hold) = self.of_token(token) {
            hold.from = hold.from.min(at);
        }
        push_bounded(&mut self.answers.current, Current { token, asked, at });
        let Some(hold) = self.holds().find(|hold| hold.token == Some(token)) else {
            self.order.issued(at, token, line);
            return self.held(token, at, line, lock, found);
        };
        if let Some((_, Violation { text, mut lines, .. })) = self.lasted(hold, asked, lock) {
            lines.push((**line).clone());
            found.push(Violation { kind: Kind::Answer, text: format!("{text}, as the service says"), lines });
        }
        self.answers.held_until(hold, asked, lock, found);
        self.order.issued(at, token, line);
        self.held(token, at, line, lock, found);
    }

    fn said_denied(
        &mut self,
        lock: &str,
        what: Tokens,
        (asked, at): (Time, Time),
        line: &Arc<Line>,
        found: &mut Vec<Violation>,
    ) {
        let denied = Denied { asked, at, what, line: Arc::clone(line) };
        let contradicts = |hold: &&Hold| {
            let said = self.answers.current.iter().filter(|current| Some(current.token) == hold.token);
            let seen = said.map(|current| current.asked).max();
            hold.until.max(seen).is_some_and(|until| denied.contradicts(hold, until))
        };
        if let Some(hold) = self.holds().find(contradicts) {
            found.push(contradiction(hold, &denied, lock));
        }
        push_bounded(&mut self.answers.denied, denied);
    }
}
