//! The order of tokens: whoever asked after a grant was known gets a higher token (P2).

use std::collections::VecDeque;
use std::sync::Arc;

use lockkeeper_history::{HistoryEvent, HistoryLine};

use crate::clock::Time;

/// How many grants a lock remembers. An acquire that was asked for before the oldest of them is compared with
/// none.
const KEPT: usize = 1024;

/// Tokens in the order in which they were known.
#[derive(Default)]
pub(crate) struct TokenOrder {
    stamps: VecDeque<Stamp>,
}

/// A token, from the moment at which it was certainly issued.
pub(crate) struct Stamp {
    pub(crate) at: Time,
    pub(crate) token: u64,
    pub(crate) line: Arc<HistoryLine>,
    /// The highest token up to here, and its line.
    highest: (u64, Arc<HistoryLine>),
}

impl Stamp {
    /// Whether it is known from a grant, and not only from an answer of the service.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self.line.event, HistoryEvent::Granted(_))
    }
}

impl TokenOrder {
    /// The highest token that was certainly issued before `asked`.
    pub(crate) fn highest_before(&self, asked: Time) -> Option<&(u64, Arc<HistoryLine>)> {
        // Most questions are about the last few.
        let before = self.stamps.iter().rev().find(|stamp| stamp.at < asked)?;
        Some(&before.highest)
    }

    /// The latest that is known of a token.
    pub(crate) fn of_token(&self, token: u64) -> Option<&Stamp> {
        // Almost always the token is new, and higher than all: nothing is looked for.
        let is_new = self.stamps.back().is_none_or(|last| last.highest.0 < token);
        if is_new { None } else { self.stamps.iter().rev().find(|stamp| stamp.token == token) }
    }

    pub(crate) fn issued(&mut self, at: Time, token: u64, line: &Arc<HistoryLine>) {
        let place = self.stamps.len() - self.stamps.iter().rev().take_while(|stamp| stamp.at > at).count();
        let stamp = Stamp { at, token, line: Arc::clone(line), highest: (token, Arc::clone(line)) };
        self.stamps.insert(place, stamp);
        for index in place..self.stamps.len() {
            if let Some(before) = index.checked_sub(1)
                && self.stamps[before].highest.0 > self.stamps[index].token
            {
                self.stamps[index].highest = self.stamps[before].highest.clone();
            }
        }
        if self.stamps.len() > KEPT {
            self.stamps.pop_front();
        }
    }
}
