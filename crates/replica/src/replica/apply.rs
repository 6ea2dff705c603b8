//! Applies committed entries, bounded per turn, and sends the results to the sessions and callers concerned.

use std::collections::VecDeque;

use lockkeeper_core::{Command, Effect, End, Rejection, Reply, Seq, SessionId, Token};
use lockkeeper_wire::v1::{self, server_item::What};
use lockkeeper_wire::{answer, entry};

use super::lead::ms;
use super::{Fatal, Origin, Proposal, Replica};
use crate::deadlines::Attached;
use crate::engine::Committed;
use crate::event::{Answer, Output, Requester};
use crate::mutant::Mutant;
use crate::summary::CommandSummary;

/// Maximum work of a turn on committed entries, as a number of visited table entries: some milliseconds. A
/// command is never interrupted, but its visits are bounded too (M2), so heartbeats are delayed by much less
/// than a tenth of the shortest election time-out.
pub const TURN_VISITS_MAX: u64 = 1 << 18;
/// The cost of a command apart from its visits, mostly that of its reply, in visits.
const VISITS_PER_COMMAND: u64 = 32;

/// An entry that is partly applied.
struct Begun {
    entry: Committed,
    rest: VecDeque<Proposal>,
}

/// The work budget of this turn, and the committed entries left for later turns.
#[derive(Default)]
pub(super) struct ApplyQueue {
    left: u64,
    begun: Option<Begun>,
    committed: VecDeque<Committed>,
}

impl ApplyQueue {
    pub(super) fn begin(&mut self, visits_max: u64) {
        self.left = visits_max;
    }

    /// Charges the turn's budget for a command, or for a step of reading timers, that has visited `visits`
    /// table entries.
    pub(super) fn spend(&mut self, visits: u64) {
        self.left = self.left.saturating_sub(visits + VISITS_PER_COMMAND);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Adds entries that are committed and not yet applied.
    pub(super) fn push(&mut self, committed: Vec<Committed>) {
        self.committed.extend(committed);
    }

    /// Index of the partly applied entry.
    pub(super) fn begun(&self) -> Option<u64> {
        self.begun.as_ref().map(|begun| begun.entry.at.index)
    }

    /// Whether the next entry to apply is a membership change.
    pub(super) fn is_next_of_members(&self) -> bool {
        self.begun.is_none() && self.committed.front().is_some_and(|next| next.is_members)
    }

    /// Whether committed entries are left to apply.
    pub(super) fn has_more(&self) -> bool {
        self.begun.is_some() || !self.committed.is_empty()
    }

    /// Drops all pending entries, since a snapshot has replaced them.
    pub(super) fn forget(&mut self) {
        self.begun = None;
        self.committed.clear();
    }
}

impl Replica {
    /// Applies committed entries in order within this turn's budget; a later turn continues, if necessary in
    /// the middle of an entry. Without `with_members` it stops before the first membership change, since
    /// raft-rs does not allow one to be applied while it waits for a write. It always stops before the end of
    /// this node's own removal.
    pub(super) fn apply_committed(&mut self, with_members: bool) -> Result<(), Fatal> {
        let (rules, applied) = (self.table.rules(), self.applied.index);
        while (!self.turn.is_spent() || self.is(Mutant::TurnUnbounded)) && !self.waits_to_be_removed() {
            let Some(Begun { entry, mut rest }) = self.turn.begun.take() else {
                let may = |next: &&Committed| with_members || !next.is_members;
                if self.turn.committed.front().filter(may).is_none() {
                    break;
                }
                let Some(entry) = self.turn.committed.pop_front() else { break };
                let rest = self.begin_entry(&entry)?;
                self.turn.begun = Some(Begun { entry, rest });
                continue;
            };
            if let Some(proposal) = rest.pop_front() {
                self.turn.begun = Some(Begun { entry, rest });
                if let Some(reserved) = &proposal.reserved {
                    self.quotas.release(reserved);
                }
                if let Command::OpenSession(open) = &proposal.command {
                    self.quotas.session_applied(&open.secret_hash);
                }
                self.apply(proposal.command, proposal.origin)?;
                continue;
            }
            self.settle_change(&entry);
            self.applied = entry.at;
            self.begin_named_snapshot();
        }
        if self.applied.index > applied {
            self.engine.applied(self.applied.index);
        }
        if self.table.rules() != rules {
            // On this output the caller also updates the rules version of its connections, which then refuse
            // peers that do not support it.
            self.tell_members();
        }
        Ok(())
    }

    /// Returns the commands of an entry with the receivers of their replies. A membership change and a new
    /// leader's empty entry have no commands: they are applied here.
    fn begin_entry(&mut self, committed: &Committed) -> Result<VecDeque<Proposal>, Fatal> {
        // Entries of another term have replaced the batches in flight below this index. Their commands get no
        // reply from this node; the clients send them again to the next leader.
        while self.in_flight.front().is_some_and(|batch| batch.at.index < committed.at.index) {
            self.in_flight.pop_front();
        }
        let is_own = self.in_flight.front().is_some_and(|batch| {
            batch.at == committed.at
                || (self.is(Mutant::AnswerByIndex) && batch.at.index == committed.at.index)
        });
        if is_own && let Some(batch) = self.in_flight.pop_front() {
            self.rounds.committed(batch.at);
            return Ok(batch.proposals.into());
        }
        if committed.is_members {
            self.commit_members(committed)?;
            return Ok(VecDeque::new());
        }
        if committed.data.is_empty() {
            if self.engine.is_leader() && self.engine.term() == committed.at.term {
                self.applied = committed.at;
                self.follow_leadership();
                self.begin_zero_point();
                self.read_timers();
            }
            return Ok(VecDeque::new());
        }
        let commands = entry::decode_batch(&committed.data).map_err(|error| {
            Fatal(format!(
                "log entry {} can't be understood ({error}): a newer version wrote it; upgrade this node",
                committed.at.index
            ))
        })?;
        let by_leader = |command| Proposal::new(command, Origin::Leader);
        Ok(commands.into_iter().map(by_leader).collect())
    }

    fn apply(&mut self, mut command: Command, origin: Origin) -> Result<(), Fatal> {
        if self.is(Mutant::LabelsForgotten)
            && self.config.node.is_multiple_of(2)
            && let Command::OpenSession(open) = &mut command
        {
            open.label = Box::default();
        }
        let summary = match origin {
            Origin::EndOrder { .. } => CommandSummary::EndOrder,
            _ => CommandSummary::of(&command),
        };
        if let Command::Acquire(acquire) = &command {
            self.token_pace.applied(acquire);
        }
        let expiring = self.to_be_named(&command, &origin);
        if command == Command::Resume {
            self.is_resuming = false;
        }
        let (visits, visits_max) = (self.table.visits(), command.visits_max());
        let reply = self.table.apply(command, &mut self.effects);
        let visits = self.table.visits() - visits;
        debug_assert!(visits <= visits_max, "{visits} entries looked at, {visits_max} are allowed (M2)");
        self.turn.spend(visits);
        if let Reply::Refused(rejection @ Rejection::UnknownRules { .. }) = &reply {
            return Err(Fatal(rejection.to_string()));
        }
        // Taken out, and put back below, so that the next command reuses the allocation.
        let mut effects = std::mem::take(&mut self.effects);
        // A follower sends no results, and a new leader reads its timers from the table at its zero point.
        if self.lead.is_ready() {
            self.activity.applied(&summary, &reply, &effects, self.table.granted_after());
            expiring.into_iter().for_each(|session| self.expired(session));
            self.answer_origin(origin, summary, reply, &effects);
            effects.drain(..).for_each(|effect| self.tell_effect(effect));
        } else if let Origin::Ask(ask) | Origin::EndOrder { ask, .. } = origin {
            // This node lost leadership while the entry was being applied.
            let leader = self.engine.leader();
            self.outputs.push(Output::Answer(ask, Answer::NotLeader { leader }));
        }
        effects.clear();
        self.effects = effects;
        Ok(())
    }

    fn answer_origin(&mut self, origin: Origin, summary: CommandSummary, reply: Reply, effects: &[Effect]) {
        match origin {
            Origin::Session { from, session, seq } => {
                match (&summary, &reply) {
                    // The client gets `SessionGone` from the effect of the command instead.
                    (CommandSummary::Close, _) if self.book.lease(session).is_some() => {
                        if let Requester::Call(call) = from {
                            self.calls.wait(call, session, Seq(0));
                        }
                        return;
                    }
                    (CommandSummary::Acquire { at_most: Some(at_most) }, Reply::Queued { .. }) => {
                        let until = self.lease_now.saturating_add(*at_most);
                        self.book.waits(session, seq, until);
                    }
                    (CommandSummary::Finish { target }, _) => self.over(session, *target),
                    _ => {}
                }
                let has_left = match (from, self.book.lease(session)) {
                    (Requester::Stream(stream), Some(lease)) => lease.attached != Attached::Stream(stream),
                    _ => false,
                };
                let reply = match reply {
                    Reply::Granted(mut grant) if grant.spare_tokens > 0 && self.is(Mutant::BlockTooLong) => {
                        grant.spare_tokens += 1;
                        Reply::Granted(grant)
                    }
                    reply => reply,
                };
                let table = &self.table;
                let label = |holder| table.session(holder).map(|it| it.label.into()).unwrap_or_default();
                let item = answer::reply_item(session, seq, reply, label);
                if let (CommandSummary::Finish { target }, Some(what @ What::Finished(_))) =
                    (&summary, &item.what)
                {
                    self.answer_waiting(session, *target, what);
                }
                if !has_left {
                    self.tell(from, item);
                }
                if let (CommandSummary::Finish { target }, Requester::Stream(stream)) = (summary, from) {
                    self.end_confirmed(stream, session, target);
                }
            }
            Origin::Open { from, attach, secret_prefix, received } => {
                let (what, session) = match (summary, reply) {
                    (CommandSummary::Open { ttl, linger }, Reply::Opened { session }) => {
                        let now = self.lease_now;
                        self.book.opened(session, ttl, linger, now, false);
                        match from {
                            Requester::Stream(stream) if !self.claim(stream, session, attach) => return,
                            Requester::Stream(_) => {}
                            Requester::Call(_) => self.attach_to(session, Attached::ToCalls),
                        }
                        let Some(lease) = self.book.lease_mut(session) else { return };
                        if !lease.ending {
                            lease.deadline = lease.deadline.max(received + lease.ttl);
                        } else if let Requester::Stream(_) = from {
                            // The session's end is proposed already: nothing is acknowledged until the end is
                            // applied or taken back.
                            return;
                        }
                        (What::Opened(v1::Opened { attach, secret_prefix }), session.0)
                    }
                    (_, Reply::Refused(rejection)) => {
                        let refused = answer::refused(&rejection);
                        (What::Refused(v1::Refused { secret_prefix, ..refused }), 0)
                    }
                    _ => return,
                };
                self.tell(from, v1::ServerItem { session, seq: 0, what: Some(what) });
            }
            Origin::Ask(ask) | Origin::EndOrder { ask, .. } => {
                let answer = operator_answer(&summary, reply, effects);
                self.outputs.push(Output::Answer(ask, answer));
            }
            Origin::Leader => {}
        }
    }

    /// A request of a session has ended: removes its timer and its break notice.
    fn over(&mut self, session: SessionId, seq: Seq) {
        self.book.waits_no_more(session, seq);
        if let Some(lease) = self.book.lease_mut(session) {
            lease.revoked.remove(&seq);
            lease.recalled.remove(&seq);
        }
    }

    fn tell_effect(&mut self, effect: Effect) {
        match effect {
            Effect::SessionEnded { session } => self.session_ended(session),
            Effect::Revoked { session, seq, token } => self.revoked(session, seq, token),
            Effect::Recalled { session, seq } => {
                if let Some(lease) = self.book.lease_mut(session) {
                    lease.recalled.insert(seq);
                }
                self.tell_session(session, seq, What::Recalled(v1::Recalled {}));
            }
            Effect::Ended { session, seq, end } => {
                self.over(session, seq);
                self.tell_session(session, seq, What::Ended(answer::finished(end)));
                debug_assert!(!matches!(end, End::Left | End::Released), "those are asked for");
            }
            Effect::Closed { token, ms: delay } => {
                self.book.closed(token, self.lease_now + ms(delay));
            }
            Effect::Granted { session, seq, grant } => {
                if !self.is(Mutant::TimeOutUnchecked) {
                    self.book.waits_no_more(session, seq);
                }
                self.tell_session(session, seq, answer::granted(&grant));
            }
        }
    }

    fn session_ended(&mut self, session: SessionId) {
        let Some(lease) = self.book.ended(session) else { return };
        self.session_of_calls_ended(session);
        let Some(stream) = lease.attached.stream() else { return };
        if let Some(open) = self.streams.get_mut(&stream) {
            open.sessions.remove(&session);
        }
        let what = Some(What::SessionGone(v1::SessionGone {}));
        self.tell(Requester::Stream(stream), v1::ServerItem { session: session.0, seq: 0, what });
    }

    /// Records a break. From here on every acknowledgement of a keep-alive or attach lists the hold as
    /// revoked, so its holder gives it up within one ttl (B1).
    fn revoked(&mut self, session: SessionId, seq: Seq, token: Token) {
        let (now, at_once) = (self.lease_now, self.is(Mutant::BreakOpensAtOnce));
        let Some(lease) = self.book.lease_mut(session) else { return };
        lease.revoked.insert(seq);
        let until = if at_once { now } else { now + lease.ttl };
        self.book.revoked(token, until);
        let (by, reason) = self.table.break_order(token).unwrap_or_default();
        let revoked = v1::Revoked { token: token.get(), by: by.to_owned(), reason: reason.to_owned() };
        self.tell_session(session, seq, What::Revoked(revoked));
    }

    fn tell_session(&mut self, session: SessionId, seq: Seq, what: What) {
        self.answer_waiting(session, seq, &what);
        if let Some(stream) = self.book.lease(session).and_then(|lease| lease.attached.stream()) {
            self.tell(
                Requester::Stream(stream),
                v1::ServerItem { session: session.0, seq: seq.0, what: Some(what) },
            );
        }
    }
}

fn operator_answer(summary: &CommandSummary, reply: Reply, effects: &[Effect]) -> Answer {
    use v1::BreakResult::{Done, NotCurrent, StillClosed};
    let broken = |result: v1::BreakResult, live: Vec<u64>| {
        Answer::Broken(v1::BreakResponse { result: result.into(), live })
    };
    match reply {
        Reply::Refused(rejection) => Answer::Refused(answer::refused(&rejection)),
        Reply::NotCurrent { live } => broken(NotCurrent, live.into_iter().map(Token::get).collect()),
        Reply::StillClosed => broken(StillClosed, Vec::new()),
        // An expiry is answered so whether there was such a session or not (S2); its effect differs.
        Reply::SessionGone => Answer::SessionEnded(match effects {
            [Effect::SessionEnded { .. }, ..] => v1::EndSessionResult::Done,
            _ => v1::EndSessionResult::Gone,
        }),
        _ if matches!(summary, CommandSummary::SetLimit) => Answer::LimitSet,
        _ => broken(Done, Vec::new()),
    }
}
