//! Handles the service's answers and pushes for a session.

use lockkeeper_backend::{Answer, BackendError, BootInstant, BreakNotice, CallError, LossCause, Push};
use lockkeeper_core::Seq;
use lockkeeper_wire::v1::server_item::What;

use super::super::{CarrierOutput, Nonsense, Outbox, SessionKey, items};
use super::{AttachState, CarriedSession, Numbered, PendingCommand, Sign};

impl<H> CarriedSession<H> {
    pub(in super::super) fn opened(
        &mut self,
        now: BootInstant,
        key: SessionKey,
        id: u64,
        attach: u64,
        outbox: &mut Outbox,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Result<Option<BootInstant>, Nonsense> {
        self.id = Some(id);
        self.attached(now, key, attach, outbox, out)
    }

    /// The service refuses to open the session: a retry would not help.
    pub(in super::super) fn open_refused(&mut self, error: &BackendError, out: &mut Vec<CarrierOutput<H>>) {
        self.attach_state = AttachState::Over;
        let refused = || Ok(Answer::Refused(error.clone()));
        self.unheard.clear();
        out.extend(self.signs.drain(..).map(|sign| CarrierOutput::Resolved(sign.handle, refused())));
        self.resolve_all(&refused(), out);
    }

    /// The session is gone, which is final (S2). Resolves all its calls, and pushes the loss unless the
    /// client closes it.
    pub(in super::super) fn gone(&mut self, key: SessionKey, out: &mut Vec<CarrierOutput<H>>) {
        self.attach_state = AttachState::Over;
        self.unheard.clear();
        let leaving = self.close.is_some();
        out.extend(
            self.signs.drain(..).map(|sign| CarrierOutput::Resolved(sign.handle, Ok(Answer::SessionGone))),
        );
        self.resolve_all(&Ok(Answer::SessionGone), out);
        if !leaving {
            out.push(CarrierOutput::Push(key, Push::Lost(LossCause::SessionEnded)));
        }
    }

    fn resolve_all(&mut self, result: &Result<Answer, CallError>, out: &mut Vec<CarrierOutput<H>>) {
        let asked = std::mem::take(&mut self.asked);
        let queued = std::mem::take(&mut self.queued);
        let handles = asked.into_values().chain(queued.into_values()).flat_map(|command| command.handles);
        out.extend(handles.map(|handle| CarrierOutput::Resolved(handle, result.clone())));
        if let Some(closing) = self.close.take() {
            out.push(CarrierOutput::Resolved(closing.handle, Ok(Answer::Closed)));
        }
    }

    /// Handles one item of an open session. Returns the latest time for the next check.
    pub(in super::super) fn item(
        &mut self,
        now: BootInstant,
        key: SessionKey,
        seq: u64,
        what: What,
        outbox: &mut Outbox,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Result<Option<BootInstant>, Nonsense> {
        let seq = Seq(seq);
        match what {
            What::Attached(attached) => {
                notices(key, attached.revoked, attached.recalled, out);
                return self.attached(now, key, attached.attach, outbox, out);
            }
            What::KeptAlive(alive) => {
                if self.attach_state != AttachState::Attached {
                    return Err(Nonsense("a keep-alive is acknowledged before its attach".into()));
                }
                // Revocations first, so that no acknowledgement precedes them.
                notices(key, alive.revoked, alive.recalled, out);
                self.kept_alive(alive.id, out)?;
            }
            What::Recalled(_) => out.push(CarrierOutput::Push(key, Push::Recalled { seq })),
            What::Queued(queued) => {
                let asked = self.asked.get(&seq);
                if asked.is_some_and(|command| !matches!(command.what, Numbered::Acquire { .. })) {
                    return Err(Nonsense(format!("command {seq} is queued, which is no acquire")));
                }
                if let Some(command) = self.asked.remove(&seq) {
                    self.queued.insert(seq, command);
                }
                if self.queued.contains_key(&seq) {
                    out.push(CarrierOutput::Push(key, Push::Queued { seq, position: queued.position }));
                }
            }
            // Seq 0 belongs to no command: the item answers the attach or a keep-alive.
            What::Refused(refused) if seq.0 == 0 => match self.attach_state {
                // The service refuses to attach the session. Its holds can't be kept, so the session counts
                // as gone.
                AttachState::Attaching(_) => self.gone(key, out),
                _ => {
                    self.unheard.clear();
                    let error = items::refusal(&refused);
                    let refused = |sign: Sign<H>| {
                        CarrierOutput::Resolved(sign.handle, Ok(Answer::Refused(error.clone())))
                    };
                    out.extend(self.signs.drain(..).map(refused));
                }
            },
            what => self.answer(key, seq, what, out)?,
        }
        Ok(None)
    }

    /// Handles the answer to a command, or an unsolicited item for a request.
    fn answer(
        &mut self,
        key: SessionKey,
        seq: Seq,
        what: What,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Result<(), Nonsense> {
        let unasked = matches!(what, What::Revoked(_) | What::Ended(_));
        let notice = match &what {
            What::Revoked(it) if !it.by.is_empty() => Some(BreakNotice::new(&it.by, &it.reason)),
            _ => None,
        };
        let is_done = matches!(what, What::Done(_));
        let answers =
            |command: &PendingCommand<H>| matches!(command.what, Numbered::Change { .. }) || !is_done;
        let fits = self.asked.get(&seq).or_else(|| self.queued.get(&seq)).is_none_or(answers);
        let Some(answer) = items::answer(what)?.filter(|_| fits) else {
            return Err(Nonsense(format!("what came for command {seq} answers no such command")));
        };
        if let Some(command) = self.asked.remove(&seq).or_else(|| self.queued.remove(&seq)) {
            let resolved = |handle| CarrierOutput::Resolved(handle, Ok(answer.clone()));
            out.extend(command.handles.into_iter().map(resolved));
            return Ok(());
        }
        match answer {
            Answer::Revoked if unasked => out.push(CarrierOutput::Push(key, Push::Revoked { seq, notice })),
            Answer::Finished(end) if unasked => out.push(CarrierOutput::Push(key, Push::Ended { seq, end })),
            // A late answer to a command that timed out or was dropped. A retry of that command is answered
            // separately (P7).
            _ => {}
        }
        Ok(())
    }

    /// The session is attached: all unresolved commands are sent again in the order of their seqs.
    fn attached(
        &mut self,
        now: BootInstant,
        key: SessionKey,
        attach: u64,
        outbox: &mut Outbox,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Result<Option<BootInstant>, Nonsense> {
        let (AttachState::Attaching(covers), Some(id)) = (self.attach_state, self.id) else {
            return Err(Nonsense("an attach is confirmed that nobody asked for".into()));
        };
        if attach != self.attach {
            return Err(Nonsense(format!("attach {attach} is confirmed, {} was sent", self.attach)));
        }
        self.attach_state = AttachState::Attached;
        self.silent_attaches = 0;
        out.push(CarrierOutput::Push(key, Push::Attached));
        self.kept_alive(covers, out)?;
        let unresolved = self.asked.iter().chain(&self.queued).map(|(&seq, _)| seq);
        let mut unresolved: Vec<Seq> = unresolved.collect();
        unresolved.sort_unstable();
        for seq in unresolved {
            let Some(command) = self.asked.get_mut(&seq).or_else(|| self.queued.get_mut(&seq)) else {
                continue;
            };
            outbox.seen.resent += u64::from(std::mem::replace(&mut command.sent, true));
            command.unanswered = Some(now);
            outbox.put(items::item(id, command.what.item(now, seq)));
        }
        if let Some(closing) = &mut self.close {
            closing.sent = true;
            outbox.put(self.close_item());
        }
        if !self.signs.is_empty() {
            self.put_keep_alive(now, outbox);
        }
        Ok(self.next_check())
    }

    /// Handles the acknowledgement of the attach and all keep-alives up to `number`.
    fn kept_alive(&mut self, number: u64, out: &mut Vec<CarrierOutput<H>>) -> Result<(), Nonsense> {
        if number > self.sent_through {
            let sent = self.sent_through;
            return Err(Nonsense(format!("keep-alive {number} is acknowledged, the last sent is {sent}")));
        }
        while self.unheard.front().is_some_and(|&(first, _)| first <= number) {
            self.unheard.pop_front();
        }
        while self.signs.front().is_some_and(|sign| sign.number <= number)
            && let Some(sign) = self.signs.pop_front()
        {
            let answer = if sign.opens { Answer::Opened } else { Answer::KeptAlive };
            out.push(CarrierOutput::Resolved(sign.handle, Ok(answer)));
        }
        Ok(())
    }
}

/// Pushes what an acknowledgement says about the session's holds: the seqs of revoked and of recalled ones.
fn notices<H>(key: SessionKey, revoked: Vec<u64>, recalled: Vec<u64>, out: &mut Vec<CarrierOutput<H>>) {
    let revoked = revoked.into_iter().map(|seq| Push::Revoked { seq: Seq(seq), notice: None });
    let recalled = recalled.into_iter().map(|seq| Push::Recalled { seq: Seq(seq) });
    out.extend(revoked.chain(recalled).map(|push| CarrierOutput::Push(key, push)));
}
