//! Quorum reads (Raft's ReadIndex rounds): a majority confirms that this node still leads; then everything
//! that arrived before the round began may be acknowledged (P6). One round is in progress at a time. It
//! serves all requests that arrived before it began, and the next one begins once it is confirmed.
//!
//! A committed batch of commands serves as the round for everything that arrived before the batch was
//! proposed: the voters that made it durable acknowledged it in this term, after those arrivals. Any majority
//! that elects another leader includes one of these voters, and that voter votes only after its
//! acknowledgement, since after its vote it accepts no entries of this term. So no other leader had been
//! elected when the requests arrived. Under load, keep-alives and reads therefore cost no messages of their
//! own.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_core::{Seq, SessionId};
use lockkeeper_wire::v1::{self, server_item::What};

use super::Replica;
use super::streams::Notices;
use crate::engine::Position;
use crate::event::{AskId, Question, Requester, StreamId};
use crate::mutant::Mutant;

/// Minimum interval between rounds that serve only keep-alives on streams: these arrive all the time, and
/// each round costs two messages per follower. Much shorter than any ttl.
const PACE: Duration = Duration::from_millis(10);

/// A request that must be confirmed by a round that begins after its arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PendingRead {
    KeepAlive {
        from: Requester,
        session: SessionId,
        id: u64,
    },
    Attach {
        stream: StreamId,
        session: SessionId,
        attach: u64,
    },
    /// A request for a session that this node does not know. If this node has been deposed without noticing,
    /// the next leader may have opened the session, so `SessionGone` needs a confirmation too.
    Unknown {
        from: Requester,
        session: SessionId,
        seq: Seq,
    },
    Question(AskId, Question),
    /// A check of silent sessions; see `expiry.rs`.
    Silence(u64),
}

#[derive(Default)]
pub(super) struct QuorumReads {
    last: u64,
    /// The round in progress: its number, when it was last sent to the peers, and the requests that it
    /// serves.
    open: Option<(u64, Duration, Vec<PendingRead>)>,
    /// When the last round began.
    begun: Option<Duration>,
    waiting: Vec<PendingRead>,
    /// Requests served by a batch that was proposed after they arrived, and that is not committed yet.
    riding: VecDeque<(Position, Vec<PendingRead>)>,
    /// Confirmed requests, answered once all entries up to the index are applied.
    confirmed: VecDeque<(u64, Vec<PendingRead>)>,
}

impl QuorumReads {
    pub(super) fn ask(&mut self, asked: PendingRead) {
        self.waiting.push(asked);
    }

    /// Adds the pending requests to a round or batch already in progress. Violates P6: for a mutant only.
    fn ask_too_late(&mut self) {
        let under_way = self.riding.back_mut().map(|(_, asked)| asked);
        let under_way = under_way.or(self.open.as_mut().map(|(_, _, asked)| asked));
        if let Some(under_way) = under_way {
            under_way.append(&mut self.waiting);
        }
    }

    /// Drops a cancelled call. Otherwise a watch would begin after it was cancelled.
    pub(super) fn forget(&mut self, ask: AskId) {
        let other = |asked: &PendingRead| !matches!(asked, PendingRead::Question(it, _) if *it == ask);
        self.waiting.retain(other);
        if let Some((_, _, asked)) = &mut self.open {
            asked.retain(other);
        }
        self.confirmed.iter_mut().for_each(|(_, asked)| asked.retain(other));
        self.riding.iter_mut().for_each(|(_, asked)| asked.retain(other));
    }

    /// Assigns the pending requests to a batch that was proposed just now, after their arrival.
    pub(super) fn ride(&mut self, at: Position) {
        if !self.waiting.is_empty() {
            self.riding.push_back((at, std::mem::take(&mut self.waiting)));
        }
    }

    /// To be called when one of this leader's batches is committed: confirms the requests that it serves.
    pub(super) fn committed(&mut self, at: Position) {
        while self.riding.front().is_some_and(|(batch, _)| batch.index <= at.index) {
            let ridden = self.riding.pop_front().map(|(batch, asked)| (batch.index, asked));
            self.confirmed.extend(ridden);
        }
    }

    /// When the next round must begin if nothing else happens.
    pub(super) fn due(&self) -> Option<Duration> {
        let waits = self.open.is_none() && !self.waiting.is_empty();
        self.begun.filter(|_| waits).map(|begun| begun + PACE)
    }

    /// Begins a new round, or repeats one that was not confirmed within `patience`, since raft-rs drops some
    /// rounds without an error; returns the round's number. `is_free`: this node is the only voter, so a
    /// round costs no messages.
    fn begin(&mut self, now: Duration, patience: Duration, is_free: bool) -> Option<u64> {
        let is_keep_alive =
            |asked: &PendingRead| matches!(asked, PendingRead::KeepAlive { from: Requester::Stream(_), .. });
        let is_early = self.begun.is_some_and(|begun| now < begun + PACE);
        let asked = match self.open.take() {
            Some((number, at, asked)) if now < at + patience => {
                self.open = Some((number, at, asked));
                return None;
            }
            // The repeated round begins now, so it also serves the requests that arrived after its first
            // attempt.
            Some((_, _, asked)) => asked.into_iter().chain(self.waiting.drain(..)).collect(),
            None if self.waiting.is_empty() => return None,
            None if is_early && !is_free && self.waiting.iter().all(is_keep_alive) => return None,
            None => std::mem::take(&mut self.waiting),
        };
        self.last += 1;
        self.open = Some((self.last, now, asked));
        self.begun = Some(now);
        Some(self.last)
    }

    pub(super) fn confirmed(&mut self, round: u64, index: u64) {
        if let Some((_, _, asked)) = self.open.take_if(|(number, ..)| *number == round) {
            self.confirmed.push_back((index, asked));
        }
    }

    /// Takes the confirmed requests whose index is applied, given that `applied` is the last applied index.
    fn take_answerable(&mut self, applied: u64) -> Vec<PendingRead> {
        let mut answerable = Vec::new();
        while let Some((index, _)) = self.confirmed.front()
            && *index <= applied
        {
            answerable.extend(self.confirmed.pop_front().into_iter().flat_map(|(_, asked)| asked));
        }
        answerable
    }

    /// Drops everything; returns the calls to be answered with `NotLeader`.
    pub(super) fn step_down(&mut self) -> Vec<AskId> {
        let open = self.open.take().map(|(_, _, asked)| asked).unwrap_or_default();
        let confirmed = self.confirmed.drain(..).flat_map(|(_, asked)| asked);
        let riding = self.riding.drain(..).flat_map(|(_, asked)| asked);
        let all = open.into_iter().chain(confirmed).chain(riding).chain(self.waiting.drain(..));
        let asks = all.filter_map(|asked| match asked {
            PendingRead::Question(ask, _) => Some(ask),
            _ => None,
        });
        asks.collect()
    }
}

impl Replica {
    pub(super) fn begin_round(&mut self) {
        // Twice the interval of heartbeats: each heartbeat repeats the round's message, so a single lost
        // message needs no new round.
        let patience = self.config.tick * 4;
        let configuration = &self.members.configuration;
        let is_alone = configuration.voters.len() == 1 && configuration.voters_outgoing.is_empty();
        if self.is(Mutant::RoundBegunEarlier) {
            self.rounds.ask_too_late();
        }
        if let Some(round) = self.rounds.begin(self.now, patience, is_alone) {
            if self.is(Mutant::KeepAliveWithoutQuorum) {
                self.rounds.confirmed(round, self.applied.index);
            }
            self.engine.ask(round);
        }
    }

    pub(super) fn answer_confirmed(&mut self) {
        if !self.lead.is_ready() {
            return;
        }
        for asked in self.rounds.take_answerable(self.applied.index) {
            match asked {
                PendingRead::KeepAlive { from, session, id } => {
                    self.acknowledge(from, session, |notices| notices.kept_alive(id))
                }
                PendingRead::Attach { stream, session, attach } => {
                    self.acknowledge(Requester::Stream(stream), session, |Notices { revoked, recalled }| {
                        What::Attached(v1::Attached { attach, revoked, recalled })
                    });
                    self.tell_unconfirmed_ends(stream, session, Seq(0));
                }
                PendingRead::Unknown { from, session, seq } => {
                    let what = Some(What::SessionGone(v1::SessionGone {}));
                    let is_call = matches!(from, Requester::Call(_));
                    if is_call || self.book.lease(session).is_none() {
                        self.tell(from, v1::ServerItem { session: session.0, seq: seq.0, what });
                    }
                }
                PendingRead::Question(ask, question) => self.answer(ask, question),
                PendingRead::Silence(check) => self.expiry.confirmed(check),
            }
        }
    }
}
