//! An honest client: the commands that it has sent, the answers received, and the seq up to which it may
//! confirm.

use std::collections::{BTreeMap, VecDeque};

use lockkeeper_core::{Command, Effect, End, Reply, Seq, SessionId};

use super::observer::Observer;
use crate::random_steps::{self, Asked};

/// A command that the client has sent, and what it has received for it.
#[derive(Clone, Debug)]
enum Sent {
    Acquire { asked: Asked, heard: Heard, finish: Option<Seq> },
    Finish { target: Seq, answered: bool },
    Change { command: Command, answered: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Nothing,
    Queued,
    Held,
    Over(End),
}

pub(crate) struct Client {
    pub(crate) session: SessionId,
    /// Frames in flight, in order.
    pub(crate) stream: VecDeque<Command>,
    sent: BTreeMap<Seq, Sent>,
    last: Seq,
    /// The highest `done_through` sent.
    confirmed: Seq,
}

impl Client {
    pub(crate) fn new(session: SessionId) -> Self {
        Self { session, stream: VecDeque::new(), sent: BTreeMap::new(), last: Seq(0), confirmed: Seq(0) }
    }

    fn next(&mut self) -> Seq {
        self.last.0 += 1;
        self.last
    }

    /// The seq up to which the client may confirm: an acquire counts as answered after any answer or effect
    /// for it (R2), another command after its answer.
    fn done_through(&mut self) -> Seq {
        let unheard = self.sent.iter().find(|(_, sent)| match sent {
            Sent::Acquire { heard, .. } => *heard == Heard::Nothing,
            Sent::Finish { answered, .. } | Sent::Change { answered, .. } => !answered,
        });
        let done_through = unheard.map_or(self.last, |(seq, _)| Seq(seq.0 - 1));
        self.confirmed = self.confirmed.max(done_through);
        done_through
    }

    pub(crate) fn acquire(&mut self, asked: Asked) -> Command {
        let done_through = self.done_through();
        let seq = self.next();
        self.sent.insert(seq, Sent::Acquire { asked: asked.clone(), heard: Heard::Nothing, finish: None });
        random_steps::acquire(self.session, seq, done_through, &asked)
    }

    pub(crate) fn finish(&mut self, target: Seq) -> Command {
        let done_through = self.done_through();
        let seq = self.next();
        self.sent.insert(seq, Sent::Finish { target, answered: false });
        if let Some(Sent::Acquire { finish, .. }) = self.sent.get_mut(&target) {
            *finish = Some(seq);
        }
        Command::Finish { session: self.session, seq, target, done_through }
    }

    pub(crate) fn change(&mut self, target: Seq, downgrade: bool) -> Command {
        let (session, done_through) = (self.session, self.done_through());
        let seq = self.next();
        let command = if downgrade {
            Command::Downgrade { session, seq, target, done_through }
        } else {
            Command::SetValue { session, seq, target, value: b"new"[..].into(), done_through }
        };
        self.sent.insert(seq, Sent::Change { command: command.clone(), answered: false });
        command
    }

    /// A command that only confirms answers.
    pub(crate) fn nothing(&mut self) -> Command {
        self.change(Seq(0), true)
    }

    /// Seqs of acquires without a `Finish`, in any state. Acquires that were busy or refused are excluded:
    /// their answer was final at once, so there is no request to end.
    pub(crate) fn without_finish(&self) -> Vec<Seq> {
        let open = |sent: &Sent| match sent {
            Sent::Acquire { finish: None, heard, .. } => *heard != Heard::Over(End::NotAcquired),
            _ => false,
        };
        self.sent.iter().filter(|(_, sent)| open(sent)).map(|(seq, _)| *seq).collect()
    }

    /// Commands to repeat on a new stream, ordered by seq.
    pub(crate) fn unresolved(&mut self) -> Vec<Command> {
        let (session, done_through) = (self.session, self.done_through());
        self.sent
            .iter()
            .filter_map(|(&seq, sent)| match sent {
                Sent::Acquire { asked, heard: Heard::Nothing | Heard::Queued, .. } => {
                    Some(random_steps::acquire(session, seq, done_through, asked))
                }
                Sent::Finish { target, answered: false } => {
                    Some(Command::Finish { session, seq, target: *target, done_through })
                }
                Sent::Change { command, answered: false } => Some(command.clone()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn hear_answer(
        &mut self,
        command: &Command,
        reply: &Reply,
        observer: &Observer,
    ) -> Result<(), String> {
        if *reply == Reply::SessionGone {
            return Ok(());
        }
        match command {
            Command::Acquire(acquire) => match reply {
                Reply::Queued { .. } => self.progress(acquire.seq, Heard::Queued),
                Reply::Granted(_) | Reply::Revoked { .. } => self.progress(acquire.seq, Heard::Held),
                Reply::Finished(end) => self.over(acquire.seq, *end, observer),
                Reply::Busy { .. } | Reply::Refused(_) => self.over(acquire.seq, End::NotAcquired, observer),
                other => Err(format!("an acquire was answered {other:?}")),
            },
            Command::Finish { seq, target, .. } => {
                if let Some(Sent::Finish { answered, .. }) = self.sent.get_mut(seq) {
                    *answered = true;
                }
                match reply {
                    Reply::Finished(end) => self.over(*target, *end, observer),
                    other => Err(format!("R4: a Finish was answered {other:?}")),
                }
            }
            Command::SetValue { seq, .. } | Command::Downgrade { seq, .. } | Command::Settle { seq, .. } => {
                if let Some(Sent::Change { answered, .. }) = self.sent.get_mut(seq) {
                    *answered = true;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn hear_effect(&mut self, effect: &Effect, observer: &Observer) -> Result<(), String> {
        match effect {
            Effect::Granted { seq, .. } | Effect::Revoked { seq, .. } => self.progress(*seq, Heard::Held),
            Effect::Ended { seq, end, .. } => self.over(*seq, *end, observer),
            Effect::SessionEnded { .. } | Effect::Closed { .. } | Effect::Recalled { .. } => Ok(()),
        }
    }

    /// Handles an unconfirmed end that the service sends at an attach (R3).
    pub(crate) fn told_at_attach(&mut self, seq: Seq, reply: &Reply) {
        if let (Some(Sent::Acquire { heard, .. }), Reply::Finished(end)) = (self.sent.get_mut(&seq), reply) {
            *heard = Heard::Over(*end);
        }
    }

    fn progress(&mut self, seq: Seq, now: Heard) -> Result<(), String> {
        let Some(Sent::Acquire { heard, .. }) = self.sent.get_mut(&seq) else {
            return Err(format!("{}/{seq} is no acquire of this client", self.session));
        };
        match (*heard, now) {
            (Heard::Over(end), _) => {
                Err(format!("P7: {}/{seq} was over ({end:?}) and is {now:?} again", self.session))
            }
            (Heard::Held, Heard::Queued) => {
                Err(format!("{}/{seq} fell back from held to queued", self.session))
            }
            _ => {
                *heard = now;
                Ok(())
            }
        }
    }

    /// Handles a request's end: it must equal the actual end, and never change (P7).
    fn over(&mut self, seq: Seq, end: End, observer: &Observer) -> Result<(), String> {
        let Some(Sent::Acquire { heard, .. }) = self.sent.get_mut(&seq) else {
            return Err(format!("{}/{seq} is no acquire of this client", self.session));
        };
        // The client has confirmed the refusal of this acquire, so the table may have dropped the refusal; a
        // `Finish` that was in flight then returns `gone` (R3).
        if *heard == Heard::Over(End::NotAcquired) && end == End::Gone && seq <= self.confirmed {
            return Ok(());
        }
        if let Heard::Over(first) = *heard
            && first != end
        {
            return Err(format!("P7: {}/{seq} ended as {first:?} first, then as {end:?}", self.session));
        }
        *heard = Heard::Over(end);
        observer.agrees(self.session, seq, end)
    }

    pub(crate) fn every_acquire_is_over(&self) -> Result<(), String> {
        match self
            .sent
            .iter()
            .find(|(_, sent)| matches!(sent, Sent::Acquire { heard, .. } if !matches!(heard, Heard::Over(_))))
        {
            None => Ok(()),
            Some((seq, sent)) => Err(format!("{}/{seq} has no outcome at rest: {sent:?}", self.session)),
        }
    }
}
