//! The table written down: at one stretch as plain data, or by a walk, in pieces between which commands go on.
//!
//! A walk writes every entry as it was when the walk began, and nothing that came later. Its pieces follow memory, not
//! tickets or names; whoever reads them sorts. An entry that is changed before its turn is encoded first, in its old
//! state, by the store that it lies in (`ahead`, `requests`, `session`, `names`), and written from there. A command
//! pays for that once a walk and entry that it touches: one that ends a session of a million requests encodes
//! a million.

use super::Table;
use super::ahead::Pen;
use super::names::{Node, NodeId};
use crate::snapshot::items::{Digest, Header, put_end, put_header};
use crate::snapshot::{LimitState, RequestState, Snapshot};
use crate::types::SessionId;

/// Whether a walk has more to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum WalkState {
    /// Call again.
    Continue,
    /// The stream has its end, and the walk is over.
    Done {
        /// What [`Snapshot::digest`] of the table was when the walk began.
        digest: u128,
    },
    /// No walk was under way; nothing was written. A table that was put in place of another has none.
    NoWalk,
}

/// No walk can begin now: another is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a walk over the table is under way; write it to its end or abandon it before another is begun")]
pub struct WalkUnderWay;

/// A walk under way; how far it has come is known in the stores.
pub(super) struct Walk {
    /// As it was when the walk began; `None` once written.
    header: Option<Header>,
    digest: Digest,
}

impl Table {
    /// Begins a walk: a snapshot of the table as it is now, to be written in pieces while commands go on. Costs a few
    /// microseconds, and a bit for each request and name until the walk is over.
    ///
    /// # Errors
    /// [`WalkUnderWay`]: there is one walk at a time. That one is not disturbed.
    pub fn begin_walk(&mut self) -> Result<(), WalkUnderWay> {
        if self.walk.is_some() {
            return Err(WalkUnderWay);
        }
        self.unpassed.begin_walk();
        self.requests.begin_walk();
        self.sessions.begin_walk(SessionId(self.last_session));
        self.names.begin_walk();
        self.walk = Some(Walk { header: Some(self.header()), digest: Digest::default() });
        Ok(())
    }

    /// Appends the next piece of the walk's stream to `out`: about `budget_items` items, and at least one. Long items
    /// count as several (one for each name, kept answer and 128 bytes), 16 vacant places in memory as one; so a piece
    /// takes about the same time whatever it meets: with a budget of 5,000 about a millisecond, docs/benchmarks.md has
    /// the figures. One item is never cut: a session with very many kept answers is written at once.
    ///
    /// All pieces together are what a [`Restorer`](crate::Restorer) reads, and [`Snapshot::decode`].
    pub fn walk_piece(&mut self, budget_items: usize, out: &mut Vec<u8>) -> WalkState {
        let Some(mut walk) = self.walk.take() else { return WalkState::NoWalk };
        if let Some(header) = walk.header.take() {
            walk.digest += put_header(out, &header);
        }
        let mut pen = Pen::new(budget_items, out, &mut walk.digest);
        // What was saved comes first, so that it takes no memory for longer than it must.
        let is_done = self.unpassed.write_saved(&mut pen)
            && self.requests.write_saved(&mut pen)
            && self.sessions.write_saved(&mut pen)
            && self.names.write_saved(&mut pen)
            && self.unpassed.walk_on(&mut pen)
            && self.sessions.walk_on(&mut pen)
            && self.requests.walk_on(&self.names, &mut pen)
            && self.names.walk_on(&mut pen);
        if !is_done {
            self.walk = Some(walk);
            return WalkState::Continue;
        }
        put_end(out, walk.digest);
        self.abandon_walk();
        WalkState::Done { digest: walk.digest.0 }
    }

    /// Ends the walk under way, if there is one. What it wrote so far is of no use.
    pub fn abandon_walk(&mut self) {
        self.walk = None;
        self.unpassed.end_walk();
        self.requests.end_walk();
        self.sessions.end_walk();
        self.names.end_walk();
    }

    /// Whether a walk is under way.
    #[must_use]
    pub fn is_walking(&self) -> bool {
        self.walk.is_some()
    }

    fn header(&self) -> Header {
        Header {
            rules: self.rules,
            last_token: self.last_token,
            last_ticket: self.last_ticket,
            last_session: self.last_session,
        }
    }

    /// The whole table in canonical order (E2), at one stretch: for small tables and for tests.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut requests: Vec<RequestState> =
            self.requests.iter().map(|(_, request)| request.view(&self.names).into_state()).collect();
        requests.sort_unstable_by_key(|request| request.ticket);
        let limit_state = |(id, node): (NodeId, &Node)| {
            let limit = node.here.limit()?;
            Some(LimitState { name: self.names.name(id), limit: limit.number, stored: limit.stored })
        };
        let mut limits: Vec<LimitState> = self.names.all().filter_map(limit_state).collect();
        limits.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let Header { rules, last_token, last_ticket, last_session } = self.header();
        Snapshot {
            rules,
            last_token,
            last_ticket,
            last_session,
            sessions: self.sessions.iter().map(|(id, session)| session.state(id)).collect(),
            requests,
            limits,
            ending: self.sessions.ending().collect(),
            freed: self.unpassed.states().collect(),
        }
    }
}
