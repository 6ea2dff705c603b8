//! An operator ends a hold (B1–B3), and what a token is worth now (B4).

use super::Table;
use super::crowd::Class;
use super::describe::TokenStatus;
use super::end::Closure;
use super::request::{Request, RequestId, Stage};
use crate::command::Break;
use crate::name::{self, LockName};
use crate::reply::{Effect, Effects, End, Reply};
use crate::types::Token;
use crate::validate;

impl Table {
    pub(super) fn break_hold(&mut self, order: &Break, out: &mut Effects) -> Reply {
        if let Err(rejection) = validate::break_texts(&order.reason, &order.by) {
            return Reply::Refused(rejection);
        }
        let hit = self
            .holds_covering(&order.name)
            .find(|&id| self.requests[id as usize].token() == Some(order.token));
        let Some(id) = hit else {
            return Reply::NotCurrent { live: self.live_tokens(&order.name) };
        };
        let request = self.requests.get_mut(id, &self.names);
        match (request.stage, order.now) {
            (Stage::Closed { .. }, true) => self.open_closed(id),
            (Stage::Closed { .. }, false) => return Reply::StillClosed,
            (_, true) => self.end_unasked(id, End::Broken, Closure::None, out),
            (Stage::Held { token }, false) => {
                request.stage = Stage::Revoked { token };
                let extras = request.extras_mut();
                extras.reason.clone_from(&order.reason);
                extras.by.clone_from(&order.by);
                if let Some(owner) = request.owner {
                    out.push(Effect::Revoked { session: owner.session, seq: owner.seq, token });
                }
                self.revoked.insert(token, id);
            }
            // Revoked already: the first reason stays (B3). A waiter has no token and is never hit.
            (Stage::Revoked { .. } | Stage::Waiting { .. }, false) => {}
        }
        Reply::Done
    }

    /// What a token is worth at a name (B4). Linearizable when asked of a leader that has confirmed itself.
    #[must_use]
    pub fn check_token(&self, name: &LockName, token: u64) -> TokenStatus {
        if token == 0 || token > self.last_token {
            return TokenStatus::NeverIssued;
        }
        let live = self.live_tokens(name);
        if live.iter().any(|live| live.get() == token) {
            TokenStatus::Current
        } else {
            TokenStatus::NotCurrent { live }
        }
    }

    /// Tokens of the live, unrevoked holds that cover a name, ascending (B4).
    pub(super) fn live_tokens(&self, name: &LockName) -> Vec<Token> {
        let held = |request: &Request| match request.stage {
            Stage::Held { token } => Some(token),
            _ => None,
        };
        let mut live: Vec<Token> =
            self.holds_covering(name).filter_map(|id| held(&self.requests[id as usize])).collect();
        live.sort_unstable();
        live
    }

    /// Every hold, closed ones too, that covers a name: at the name, or as a subtree above it.
    pub(super) fn holds_covering(&self, name: &LockName) -> impl Iterator<Item = RequestId> {
        let at = self.names.find(name.as_str()).into_iter();
        let at = at.flat_map(|node| self.names.get(node).here.all_holds());
        let above = name::ancestors(name.as_str()).filter_map(|above| self.names.find(above));
        let above = above.flat_map(|node| self.names.get(node).here.all_holds()).filter(|&id| {
            matches!(self.requests[id as usize].class(), Class::ExclusiveSubtree | Class::SharedSubtree)
        });
        at.chain(above)
    }
}
