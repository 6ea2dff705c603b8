//! What a new leader must know to begin: its timers are rebuilt from the table (D3), and what clients may not have
//! heard is told again at every attach (R3).

use super::Table;
use super::request::Stage;
use crate::reply::End;
use crate::types::{Seq, SessionId, Token};

/// Something that ends by time, and of which the table only knows for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pending {
    /// A request waits, for at most so long (W1).
    Wait {
        /// Whose.
        session: SessionId,
        /// Which.
        seq: Seq,
        /// In milliseconds.
        at_most_ms: u64,
    },
    /// A hold is closed, for so long from its end (D1).
    Closed {
        /// The token it had.
        token: Token,
        /// In milliseconds.
        ms: u64,
    },
    /// A hold is under a break that waits for its holder (B1).
    Revoked {
        /// Whose.
        session: SessionId,
        /// Which.
        seq: Seq,
        /// Its token.
        token: Token,
    },
}

impl Table {
    /// A part of everything that ends by time, sessions excepted, in no particular order: looks at `places` places of
    /// memory, from `cursor` on (0 begins), and says where the next part begins. All parts together are complete if the
    /// table does not change between them.
    pub fn pending_in_part(
        &self,
        cursor: u64,
        places: usize,
    ) -> (impl Iterator<Item = Pending>, Option<u64>) {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let (requests, next) = self.requests.part(from, places);
        let pending = requests.filter_map(|request| match (request.stage, request.owner) {
            (Stage::Waiting { at_most_ms: Some(at_most_ms) }, Some(owner)) => {
                Some(Pending::Wait { session: owner.session, seq: owner.seq, at_most_ms })
            }
            (Stage::Closed { token, ms }, _) => Some(Pending::Closed { token, ms }),
            (Stage::Revoked { token }, Some(owner)) => {
                Some(Pending::Revoked { session: owner.session, seq: owner.seq, token })
            }
            _ => None,
        });
        (pending, next.map(|next| next as u64))
    }

    /// Whether a request of this session waits. Unlike [`Table::request`] it counts nobody ahead of it.
    #[must_use]
    pub fn is_waiting(&self, session: SessionId, seq: Seq) -> bool {
        let live = self.sessions.get(session).and_then(|it| it.live.get(&seq));
        live.is_some_and(|&id| matches!(self.requests[id as usize].stage, Stage::Waiting { .. }))
    }

    /// Requests of a session that ended without its asking, and whose end it has not confirmed by a `Finish` (R3): those
    /// with a higher number, in order.
    pub fn unconfirmed_ends(&self, session: SessionId, after: Seq) -> impl Iterator<Item = (Seq, End)> {
        self.sessions.get(session).into_iter().flat_map(move |session| session.unconfirmed_ends(after))
    }
}
