//! Breaks by an operator (B1–B3), and the status of a token (B4).

use super::Table;
use super::crowd::Class;
use super::describe::TokenStatus;
use super::end::Closure;
use super::names::NodeId;
use super::request::{RequestId, RequestStage};
use crate::command::Break;
use crate::limits;
use crate::name::{self, LockName};
use crate::reply::{Effect, Effects, End, Reply};
use crate::types::Token;
use crate::validate;

impl Table {
    pub(super) fn break_hold(&mut self, order: &Break, out: &mut Effects) -> Reply {
        if let Err(rejection) = validate::break_texts(&order.reason, &order.by) {
            return Reply::Refused(rejection);
        }
        let Some(id) = self.hold_covering(&order.name, order.token) else {
            return Reply::NotCurrent { live: self.live_tokens(&order.name) };
        };
        let request = &self.requests[id as usize];
        match (request.stage, order.now) {
            (RequestStage::Closed { .. }, true) => self.open_closed(id),
            (RequestStage::Closed { .. }, false) => return Reply::StillClosed,
            (_, true) => self.end_unasked(id, End::Broken, Closure::None, out),
            (RequestStage::Held { token }, false) => {
                // An ended session gets no effect: its `SessionEnded` stands for all its holds (E1).
                if let Some(owner) = request.owner.filter(|it| self.sessions.get(it.session).is_some()) {
                    out.push(Effect::Revoked { session: owner.session, seq: owner.seq, token });
                }
                self.requests.edit(id, &self.names, |request| {
                    request.stage = RequestStage::Revoked { token };
                    let extras = request.extras_mut();
                    extras.reason.clone_from(&order.reason);
                    extras.by.clone_from(&order.by);
                });
                self.revoked.insert(token, id);
                self.end_caching(id, out);
            }
            // If revoked already, the first reason stays (B3). A waiter has no token and is never broken.
            (RequestStage::Revoked { .. } | RequestStage::Waiting { .. }, false) => {}
        }
        Reply::Done
    }

    /// The status of a token at a name (B4). Linearizable if a quorum read of the leader preceded the call.
    #[must_use]
    pub fn check_token(&self, name: &LockName, token: u64) -> TokenStatus {
        let Some(token) = Token::new(token).filter(|token| token.get() <= self.last_token) else {
            return TokenStatus::NeverIssued;
        };
        match self.hold_covering(name, token) {
            Some(id) if self.is_held(id) => TokenStatus::Current,
            _ => TokenStatus::NotCurrent { live: self.live_tokens(name) },
        }
    }

    /// Whether the hold is live and not revoked.
    fn is_held(&self, id: RequestId) -> bool {
        matches!(self.requests[id as usize].stage, RequestStage::Held { .. })
    }

    /// The hold, possibly closed, that has this token and covers the name: at the name, or as a subtree above
    /// it.
    fn hold_covering(&self, name: &LockName, token: Token) -> Option<RequestId> {
        let mut covering = self.covering(name);
        covering
            .find_map(|(node, classes)| self.names.get(node).here.hold_with(token, classes, &self.requests))
    }

    /// Tokens of live, unrevoked holds that cover a name, ascending (B4). Only the
    /// [`limits::LIVE_TOKENS_MAX`] lowest tokens that cover the name are examined, including those of closed
    /// and revoked holds.
    fn live_tokens(&self, name: &LockName) -> Vec<Token> {
        let first = self.first_covering(name, None, limits::LIVE_TOKENS_MAX);
        first.into_iter().filter(|&(_, id)| self.is_held(id)).map(|(token, _)| token).collect()
    }

    /// The holds that cover a name and have a token above `after`, including closed ones, by token: at most
    /// `max`.
    pub(super) fn first_covering(
        &self,
        name: &LockName,
        after: Option<Token>,
        max: usize,
    ) -> Vec<(Token, RequestId)> {
        let mut first = Vec::new();
        for (node, classes) in self.covering(name) {
            let here = &self.names.get(node).here;
            for &class in classes {
                first.extend(here.holds_after(after, class, &self.requests).take(max));
            }
            // Truncated after each name, so that the sort never covers more than the holds of one name and
            // `max` others.
            first.sort_unstable();
            first.truncate(max);
        }
        self.names.visits().add(first.len());
        first
    }

    /// The nodes whose holds may cover a name, each with the classes of holds that do: the name itself, and
    /// the names above it.
    pub(super) fn covering(&self, name: &LockName) -> impl Iterator<Item = (NodeId, &'static [Class])> {
        let at = self.names.find(name.as_str()).map(|node| (node, &Class::ALL[..]));
        let above = name::ancestors(name.as_str()).filter_map(|above| self.names.find(above));
        at.into_iter().chain(above.map(|node| (node, &Class::SUBTREES[..])))
    }
}
