//! Answers of lock services about tokens and holders: each must have been so at some moment between its
//! question and its arrival.

use std::collections::VecDeque;
use std::sync::Arc;

use lockkeeper_history::{Line, Mode, TokenAnswer};

use crate::clock::Time;
use crate::holds::{Hold, LockState, excerpt};
use crate::report::{Kind, Violation};

/// How many answers a lock remembers for holds that have not ended yet.
const KEPT: usize = 256;

/// What was denied of holds that may still turn out to have been there all the time.
#[derive(Default)]
pub(crate) struct Answers {
    denied: VecDeque<Denied>,
}

/// An answer that says of all tokens but these: nobody holds the lock with them.
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

impl Denied {
    fn denies(&self, token: u64) -> bool {
        match &self.what {
            Tokens::One(one) => *one == token,
            Tokens::AllBut(listed) => !listed.contains(&token),
        }
    }

    fn contradicts(&self, hold: &Hold) -> bool {
        let covers = hold.from < self.asked && hold.until.is_some_and(|until| self.at < until);
        covers && hold.token.is_some_and(|token| self.denies(token))
    }
}

impl Answers {
    /// A hold has ended, so it is known how long it was held.
    pub(crate) fn ended(&self, hold: &Hold, lock: &str, found: &mut Vec<Violation>) {
        for denied in self.denied.iter().filter(|denied| denied.contradicts(hold)) {
            found.push(contradiction(hold, denied, lock));
        }
    }

    fn keep(&mut self, denied: Denied) {
        self.denied.push_back(denied);
        if self.denied.len() > KEPT {
            self.denied.pop_front();
        }
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
        match answer {
            TokenAnswer::Current => self.said_current(lock, token, asked, line, found),
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
        for &token in tokens {
            self.said_current(lock, token, asked, line, found);
        }
        self.said_denied(lock, Tokens::AllBut(tokens.to_vec()), (asked, at), line, found);
    }

    fn said_current(
        &self,
        lock: &str,
        token: u64,
        asked: Time,
        line: &Arc<Line>,
        found: &mut Vec<Violation>,
    ) {
        let Some(hold) = self.of_token(token) else { return };
        let exclusive = hold.mode == Mode::Exclusive;
        let Some((highest, later)) = self.order.highest_before(asked) else { return };
        if exclusive && *highest > token {
            let text = format!("token {token} of `{lock}` was said to be held, after a grant with {highest}");
            let lines = excerpt([&hold.granted, later, line].into_iter());
            found.push(Violation { kind: Kind::Answer, text, lines });
        }
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
        if let Some(hold) = self.ended_holds().find(|hold| denied.contradicts(hold)) {
            found.push(contradiction(hold, &denied, lock));
        }
        if !self.open().is_empty() {
            self.answers.keep(denied);
        }
    }
}
