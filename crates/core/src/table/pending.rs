//! Queries of the leader: the states for which a new leader sets timers (D3), whether a request still waits,
//! the end of a request, and the unconfirmed ends, which are sent again at every attach (R3).

use super::Table;
use super::request::RequestStage;
use crate::reply::{End, Reply};
use crate::snapshot::Caching;
use crate::types::{Seq, SessionId, Token};

/// A state that a new leader has to know: most are ended by a timer of the leader. The table stores
/// durations, not deadlines; the duration for a revoked hold is its session's ttl.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pending {
    /// A request that waits with a limit (W1).
    Wait {
        /// Session of the request.
        session: SessionId,
        /// The request.
        seq: Seq,
        /// Wait limit in milliseconds.
        at_most_ms: u64,
    },
    /// A closed hold (D1).
    Closed {
        /// The closed hold's token.
        token: Token,
        /// Time from the hold's end in milliseconds.
        ms: u64,
    },
    /// A hold under a break that waits for its holder (B1).
    Revoked {
        /// Session of the hold.
        session: SessionId,
        /// Request that became the hold.
        seq: Seq,
        /// The hold's token.
        token: Token,
    },
    /// A cached hold that is recalled (C4). No timer ends it; its session is told again at every attach.
    Recalled {
        /// Session of the hold.
        session: SessionId,
        /// Request that became the hold.
        seq: Seq,
    },
}

impl Table {
    /// Returns some of the [`Pending`] states, in no particular order. Scans `places` slab entries from
    /// `cursor` (initially 0) and returns the next cursor, `None` at the end. The calls from 0 to `None`
    /// return every such state once if the table does not change between them.
    pub fn pending_in_part(
        &self,
        cursor: u64,
        places: usize,
    ) -> (impl Iterator<Item = Pending>, Option<u64>) {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let (requests, next) = self.requests.part(from, places);
        let pending = requests.filter_map(|(_, request)| match (request.stage, request.owner) {
            (RequestStage::Waiting { at_most_ms: Some(at_most_ms) }, Some(owner)) => {
                Some(Pending::Wait { session: owner.session, seq: owner.seq, at_most_ms })
            }
            (RequestStage::Closed { token, ms }, _) => Some(Pending::Closed { token, ms }),
            (RequestStage::Revoked { token }, Some(owner)) => {
                Some(Pending::Revoked { session: owner.session, seq: owner.seq, token })
            }
            (RequestStage::Held { .. }, Some(owner)) if request.caching == Caching::Recalled => {
                Some(Pending::Recalled { session: owner.session, seq: owner.seq })
            }
            _ => None,
        });
        (pending, next.map(|next| next as u64))
    }

    /// Whether a request of this session waits. Unlike [`Table::request`] this does not compute the queue
    /// position.
    #[must_use]
    pub fn is_waiting(&self, session: SessionId, seq: Seq) -> bool {
        let live = self.sessions.get(session).and_then(|it| it.live.get(&seq));
        live.is_some_and(|&id| matches!(self.requests[id as usize].stage, RequestStage::Waiting { .. }))
    }

    /// Whether a request of this session is a cached hold that is recalled (C4).
    #[must_use]
    pub fn is_recalled(&self, session: SessionId, seq: Seq) -> bool {
        let live = self.sessions.get(session).and_then(|it| it.live.get(&seq));
        live.is_some_and(|&id| self.requests[id as usize].caching == Caching::Recalled)
    }

    /// Requests of a session that ended without a command of its client, and whose end no `Finish` has
    /// confirmed (R3): those with a seq above `after`, in order.
    pub fn unconfirmed_ends(&self, session: SessionId, after: Seq) -> impl Iterator<Item = (Seq, End)> {
        self.sessions.get(session).into_iter().flat_map(move |session| session.unconfirmed_ends(after))
    }

    /// How the request with this seq has ended; `None` while it is live, and before it is seen.
    #[must_use]
    pub fn end_of(&self, session: SessionId, seq: Seq) -> Option<End> {
        let session = self.sessions.get(session)?;
        if seq > session.highest || session.live.contains_key(&seq) {
            return None;
        }
        Some(match session.kept(seq) {
            Some((_, Reply::Finished(end))) => *end,
            Some(_) => End::NotAcquired,
            None => End::Gone,
        })
    }
}
