//! The actual outcome of each acquire, observed at the table, where no message is lost.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Effect, End, Reply, Seq, SessionId, Token};

#[derive(Clone, Copy, Default, Debug)]
struct Fate {
    /// Whether the request ever waited or held.
    lived: bool,
    granted: Option<Token>,
    ended: Option<End>,
}

/// The outcome of every request, by session and seq.
#[derive(Default)]
pub(crate) struct Observer(BTreeMap<(SessionId, Seq), Fate>);

impl Observer {
    pub(crate) fn saw(&mut self, command: &Command, reply: &Reply, effects: &[Effect]) -> Result<(), String> {
        match (command, reply) {
            (Command::Acquire(acquire), reply) => self.saw_acquire(acquire.session, acquire.seq, reply)?,
            (Command::Finish { session, target, .. }, Reply::Finished(end)) => {
                self.saw_finish(*session, *target, *end)?;
            }
            _ => {}
        }
        for effect in effects {
            match effect {
                Effect::Granted { session, seq, grant } => {
                    let fate = self.0.entry((*session, *seq)).or_default();
                    if fate.granted.is_some() || fate.ended.is_some() || !fate.lived {
                        return Err(format!("P8: {session}/{seq} was granted though {fate:?}"));
                    }
                    fate.granted = Some(grant.token);
                }
                Effect::Ended { session, seq, end } => {
                    let fate = self.0.entry((*session, *seq)).or_default();
                    if fate.ended.is_some() {
                        return Err(format!("P4: {session}/{seq} ended twice"));
                    }
                    fate.ended = Some(*end);
                }
                Effect::SessionEnded { session } => {
                    let own = self.0.iter_mut().filter(|((owner, _), _)| owner == session);
                    own.for_each(|(_, fate)| fate.ended = fate.ended.or(Some(End::Gone)));
                }
                Effect::Revoked { .. } | Effect::Closed { .. } | Effect::Recalled { .. } => {}
            }
        }
        Ok(())
    }

    fn saw_acquire(&mut self, session: SessionId, seq: Seq, reply: &Reply) -> Result<(), String> {
        let fate = self.0.entry((session, seq)).or_default();
        match reply {
            Reply::Queued { .. } if fate.ended.is_none() && fate.granted.is_none() => fate.lived = true,
            Reply::Granted(grant)
                if fate.ended.is_none() && fate.granted.is_none_or(|token| token == grant.token) =>
            {
                (fate.lived, fate.granted) = (true, Some(grant.token));
            }
            Reply::Queued { .. } | Reply::Granted(_) => {
                return Err(format!("P7: {session}/{seq} was answered {reply:?} though {fate:?}"));
            }
            // A request refused with `TooManyKeptAnswers` keeps no answer, so its retry is answered `gone`
            // and not as refused (R6). No client here reaches that limit, so this arm need not distinguish
            // it.
            Reply::Busy { .. } | Reply::Refused(_) => {
                if fate.lived || fate.ended.is_some_and(|end| end != End::NotAcquired) {
                    return Err(format!("P7: {session}/{seq} was answered {reply:?} though {fate:?}"));
                }
                fate.ended = Some(End::NotAcquired);
            }
            Reply::Finished(End::Gone) => fate.ended = fate.ended.or(Some(End::Gone)),
            Reply::Finished(end) if fate.ended != Some(*end) => {
                return Err(format!("P7: {session}/{seq} was answered {end:?} though {fate:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn saw_finish(&mut self, session: SessionId, target: Seq, end: End) -> Result<(), String> {
        let fate = self.0.entry((session, target)).or_default();
        match (fate.ended, end) {
            (Some(first), end) if first == end => Ok(()),
            // The `Finish` is a duplicate that arrives after the client has confirmed the end. `Client::over`
            // checks the answers that the client receives.
            (Some(_), End::Gone) => Ok(()),
            (None, End::Gone) if fate.lived => {
                Err(format!("P7: {session}/{target} was alive, and a Finish says gone"))
            }
            (None, end) => {
                let possible = match end {
                    End::Left => fate.granted.is_none() && fate.lived,
                    End::Released | End::Broken => fate.granted.is_some(),
                    End::TimedOut | End::NotAcquired => false,
                    End::Gone => true,
                };
                fate.ended = Some(end);
                if possible {
                    Ok(())
                } else {
                    Err(format!("{session}/{target} can't have ended so: {fate:?}"))
                }
            }
            (Some(first), end) => Err(format!("P7: {session}/{target} ended as {first:?}, then as {end:?}")),
        }
    }

    /// Checks that the end that a client has received equals the actual outcome.
    pub(crate) fn agrees(&self, session: SessionId, seq: Seq, end: End) -> Result<(), String> {
        let fate = self.0.get(&(session, seq)).copied().unwrap_or_default();
        if fate.ended == Some(end) {
            Ok(())
        } else {
            Err(format!("P7: the client of {session}/{seq} was told {end:?}, but {fate:?}"))
        }
    }
}
