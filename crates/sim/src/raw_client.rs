//! A raw protocol client, which sends frames directly. It repeats commands out of order, and uses operations
//! that the library uses otherwise (values, downgrades, cached holds). It computes no lease deadline, so only
//! the table and the replies are checked.

mod calls;

use std::collections::BTreeMap;

use lockkeeper_core::{Acquire, Command, IfBusy, LockName, Mode, Seq, SessionId};
use lockkeeper_replica::StreamId;
use lockkeeper_wire::request::{Open, Request, Secret};
use lockkeeper_wire::v1::{self, server_item::What};

use crate::clock::{MS, Nanos};
use crate::core::{Core, Happening, Id};
use crate::crowd_client::CrowdClient;
use crate::net::{Down, Up};
use crate::node::node_at;
use calls::PendingCalls;

/// A secret that no session has.
pub(crate) const WRONG_SECRET: [u8; 16] = [0; 16];
/// The number of recent commands that are kept, to be repeated.
const MEMORY: usize = 8;

pub(crate) struct RawClient {
    index: usize,
    ttl: Nanos,
    secret: Secret,
    session: Option<u64>,
    attach: u64,
    stream: Option<StreamId>,
    /// The leader named by the last stream end.
    leader: Option<Id>,
    is_attached: bool,
    alive_at: Nanos,
    heard_at: Nanos,
    /// The client sends nothing on its own until this time.
    silent_until: Nanos,
    next_seq: u64,
    /// Commands without a reply. They are sent again on the next stream, in order (R5).
    unanswered: BTreeMap<u64, Command>,
    said: Vec<Command>,
    /// The seq of the present request, and whether the request is granted.
    request: Option<(u64, bool)>,
    /// The present request is recalled (C4).
    is_recalled: bool,
    is_leaving: bool,
    is_over: bool,
    calls: PendingCalls,
    /// The crowd of requests, if the scenario has one.
    crowd: Option<CrowdClient>,
}

impl RawClient {
    pub(crate) fn new(core: &mut Core) -> Self {
        Self {
            index: core.scenario.clients + 1,
            ttl: core.dice.within(1, 4) * 1_000 * MS,
            secret: Secret(core.dice.secret()),
            session: None,
            attach: 0,
            stream: None,
            leader: None,
            is_attached: false,
            alive_at: 0,
            heard_at: 0,
            silent_until: 0,
            next_seq: 1,
            unanswered: BTreeMap::new(),
            said: Vec::new(),
            request: None,
            is_recalled: false,
            is_leaving: false,
            is_over: false,
            calls: PendingCalls::default(),
            crowd: core.scenario.crowd.clone().map(CrowdClient::new),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn acts(&mut self, core: &mut Core) {
        self.is_over |= !core.is_stormy && self.session.is_none() && self.attach == 0;
        if self.is_over {
            return;
        }
        self.make_call(core);
        match self.stream {
            _ if core.is_stormy && core.now < self.silent_until && self.is_attached => {}
            None if core.is_stormy && self.crowd.as_ref().is_some_and(|it| it.is_away(core.now)) => {}
            None => self.connect(core),
            // The attach got no answer: it was lost, or another stream has a higher number.
            Some(_) if !self.is_attached && core.now > self.alive_at + self.ttl / 4 => self.hang_up(core),
            Some(_) if !self.is_attached => {}
            Some(_) if core.now > self.heard_at + self.ttl => self.hang_up(core),
            Some(stream) => self.act(core, stream),
        }
        let pause = core.dice.spread(5 * MS, self.ttl / 6);
        core.after(pause, Happening::HandActs);
    }

    /// Makes the client send nothing on its own until the given time.
    pub(crate) fn is_silent_until(&mut self, until: Nanos) {
        self.silent_until = until;
    }

    /// Sends a keep-alive at once.
    pub(crate) fn lives(&mut self, core: &mut Core) {
        if let (Some(stream), Some(session), true) = (self.stream, self.session, self.is_attached) {
            let session = SessionId(session);
            core.send_up(stream, Up::Frame(vec![Request::KeepAlive { session, id: core.now }.into()]));
        }
    }

    fn connect(&mut self, core: &mut Core) {
        let node = self.leader.take().unwrap_or_else(|| core.dice.pick(&core.present));
        let stream = core.open_line(self.index, 1, node, false);
        self.stream = Some(stream);
        self.attach += 1;
        self.alive_at = core.now;
        let request = match self.session {
            Some(session) => {
                let session = SessionId(session);
                Request::Attach { session, secret: self.secret, attach: self.attach }
            }
            None => Request::Open(self.open()),
        };
        core.send_up(stream, Up::Frame(vec![request.into()]));
    }

    pub(crate) fn open(&self) -> Open {
        Open {
            secret: self.secret,
            ttl_ms: self.ttl / MS,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: "by hand".into(),
            attach: self.attach,
        }
    }

    fn hang_up(&mut self, core: &mut Core) {
        self.is_attached = false;
        if let Some(stream) = self.stream.take() {
            core.hang_up(stream);
        }
    }

    fn act(&mut self, core: &mut Core, stream: StreamId) {
        let Some(session) = self.session.map(SessionId) else { return };
        let mut frame: Vec<v1::ClientItem> = Vec::new();
        if core.now > self.alive_at + self.ttl / 4 {
            self.alive_at = core.now;
            frame.push(Request::KeepAlive { session, id: core.now }.into());
        }
        if let Some(mut crowd) = self.crowd.take() {
            crowd.acts(self, core, session, &mut frame);
            self.crowd = Some(crowd);
        } else {
            let command = self.next_command(core, session);
            frame.extend(command.map(|command| self.say(session, command)));
        }
        if core.is_stormy && core.dice.chance(15) && !self.said.is_empty() {
            // A repeated command must change nothing, whether the original was answered or not (P7).
            let again = core.dice.pick(&self.said);
            frame.push(item(session, again));
        }
        if core.is_stormy && core.dice.chance(5) {
            frame.push(Request::Attach { session, secret: self.secret, attach: self.attach }.into());
        }
        if core.is_stormy && core.dice.chance(5) {
            frame.push(Request::Open(self.open()).into());
        }
        let is_done = self.request.is_none() && self.crowd.as_ref().is_none_or(CrowdClient::is_empty);
        if !core.is_stormy && is_done && self.unanswered.is_empty() && !self.is_leaving {
            self.is_leaving = true;
            frame.push(item(session, Command::CloseSession { session }));
        }
        if !frame.is_empty() {
            core.send_up(stream, Up::Frame(frame));
        }
        if self.crowd.as_ref().is_some_and(|crowd| crowd.is_away(core.now)) {
            self.hang_up(core);
        }
    }

    /// The next command, if any.
    pub(crate) fn next_command(&mut self, core: &mut Core, session: SessionId) -> Option<Command> {
        let roll = core.dice.below(100);
        match self.request {
            _ if self.is_leaving => None,
            None if core.is_stormy && roll < 50 => {
                let acquire = self.acquire(core, session);
                self.request = Some((acquire.seq.0, false));
                self.is_recalled = false;
                Some(Command::Acquire(acquire))
            }
            None => None,
            Some((target, is_granted)) => {
                let (seq, target) = (Seq(self.next_seq), Seq(target));
                let done_through = self.done_through();
                match roll {
                    0..15 if is_granted => {
                        let value = vec![roll as u8].into();
                        Some(Command::SetValue { session, seq, target, value, done_through })
                    }
                    15..30 if is_granted => Some(Command::Downgrade { session, seq, target, done_through }),
                    30..40 if is_granted => Some(Command::Settle { session, seq, target, done_through }),
                    // A target that waits, is over, or never was.
                    40..43 => {
                        let target = Seq(core.dice.within(0, self.next_seq));
                        Some(Command::Settle { session, seq, target, done_through })
                    }
                    43..60 if is_granted && std::mem::take(&mut self.is_recalled) => {
                        Some(Command::Settle { session, seq, target, done_through })
                    }
                    _ if roll < if is_granted { 60 } else { 10 } || !core.is_stormy => {
                        self.request = None;
                        Some(Command::Finish { session, seq, target, done_through })
                    }
                    _ => None,
                }
            }
        }
    }

    /// Numbers a command and keeps it until a reply arrives.
    pub(crate) fn say(&mut self, session: SessionId, command: Command) -> v1::ClientItem {
        self.unanswered.insert(self.next_seq, command.clone());
        self.next_seq += 1;
        self.said.push(command.clone());
        if self.said.len() > MEMORY {
            self.said.remove(0);
        }
        item(session, command)
    }

    pub(crate) fn ttl(&self) -> Nanos {
        self.ttl
    }

    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(crate) fn done_through(&self) -> Seq {
        let first = self.unanswered.first_key_value().map_or(self.next_seq, |(&seq, _)| seq);
        Seq(first - 1)
    }

    fn acquire(&self, core: &mut Core, session: SessionId) -> Acquire {
        let name: LockName = core.dice.pick(&core.scenario.names.clone());
        let mode = if core.dice.chance(75) { Mode::Exclusive } else { Mode::Shared };
        let caches = mode == Mode::Exclusive && core.dice.chance(40);
        let spare_tokens = if caches { core.dice.within(1, 3) as u32 } else { 0 };
        let at_most_ms = core.dice.chance(50).then(|| core.dice.within(1, 2 * self.ttl / MS));
        Acquire {
            session,
            seq: Seq(self.next_seq),
            done_through: self.done_through(),
            names: vec![name],
            mode,
            subtree: core.dice.chance(20),
            if_busy: if core.dice.chance(80) {
                IfBusy::Wait { at_most_ms, waiters_max: None }
            } else {
                IfBusy::Fail
            },
            keep_closed_ms: 0,
            value: Box::default(),
            meta: Box::default(),
            spare_tokens,
            holding: Box::default(),
        }
    }

    pub(crate) fn arrives(&mut self, core: &mut Core, stream: StreamId, packet: Down) {
        let Some(packet) = self.answers_call(core, stream, packet) else { return };
        if self.stream != Some(stream) {
            return;
        }
        self.heard_at = core.now;
        match packet {
            Down::End(end) => {
                self.leader = node_at(&end.leader);
                self.hang_up(core);
            }
            // The answer to a call that was forgotten with its session.
            Down::Called { .. } => {}
            Down::Closed => self.hang_up(core),
            Down::Items(items) => {
                items.into_iter().for_each(|item| self.hears(core, stream, item));
                self.finishes(core);
            }
        }
    }

    /// Sends the finishes of all requests that the crowd wants to finish, in one frame.
    fn finishes(&mut self, core: &mut Core) {
        let Some(stream) = self.stream.filter(|_| self.is_attached) else { return };
        if let (Some(session), Some(mut crowd)) = (self.session.map(SessionId), self.crowd.take()) {
            let mut frame = Vec::new();
            crowd.finishes(self, session, &mut frame);
            self.crowd = Some(crowd);
            if !frame.is_empty() {
                core.send_up(stream, Up::Frame(frame));
            }
        }
    }

    fn hears(&mut self, core: &mut Core, stream: StreamId, item: v1::ServerItem) {
        let Some(what) = item.what else { return };
        if let Some(crowd) = self.crowd.as_mut().filter(|_| self.session == Some(item.session)) {
            crowd.hears(item.seq, &what);
        }
        match what {
            // The reply to a repeated open of the previous session.
            What::Opened(opened) if opened.secret_prefix != self.secret.prefix() => {}
            What::Opened(_) | What::Attached(_) => {
                self.session = Some(item.session);
                if std::mem::replace(&mut self.is_attached, true) {
                    return;
                }
                let session = SessionId(item.session);
                // The reply that granted a waiting request may be lost, so the acquire is sent again (R5).
                self.unanswered.extend(self.crowd.iter().flat_map(CrowdClient::waiting));
                let again = self.unanswered.values().map(|command| self::item(session, command.clone()));
                let again: Vec<v1::ClientItem> = again.collect();
                // Makes the next action send the close again.
                self.is_leaving = false;
                if !again.is_empty() {
                    core.send_up(stream, Up::Frame(again));
                }
            }
            What::SessionGone(_) if self.session == Some(item.session) => self.restart(core),
            // A call has taken over the session. The refused commands are sent again on the next stream.
            What::Refused(refused) if refused.text.contains("is not attached") => self.hang_up(core),
            What::Granted(_) => {
                self.unanswered.remove(&item.seq);
                if let Some((seq, is_granted)) = &mut self.request {
                    *is_granted |= *seq == item.seq;
                }
            }
            What::Recalled(_) => self.is_recalled |= self.request == Some((item.seq, true)),
            What::Queued(_) => drop(self.unanswered.remove(&item.seq)),
            What::Busy(_) | What::Finished(_) | What::Ended(_) | What::Revoked(_) | What::Refused(_)
                if item.seq != 0 =>
            {
                self.unanswered.remove(&item.seq);
                let is_own = self.request.is_some_and(|(seq, _)| seq == item.seq);
                let Some(session) = self.session.map(SessionId).filter(|_| is_own) else { return };
                let finish = self.confirm(session, item.seq);
                core.send_up(stream, Up::Frame(vec![finish]));
            }
            What::Done(_) => drop(self.unanswered.remove(&item.seq)),
            _ => {}
        }
    }

    /// Every end of a request is confirmed by a finish (R3).
    fn confirm(&mut self, session: SessionId, target: u64) -> v1::ClientItem {
        self.request = None;
        let (seq, target) = (Seq(self.next_seq), Seq(target));
        let done_through = self.done_through();
        self.say(session, Command::Finish { session, seq, target, done_through })
    }

    /// Begins anew, since the session is gone.
    fn restart(&mut self, core: &mut Core) {
        self.hang_up(core);
        let is_over = !core.is_stormy;
        *self = Self { is_over, ..Self::new(core) };
    }
}

pub(crate) fn item(session: SessionId, command: Command) -> v1::ClientItem {
    let seq = Seq(0);
    Request::Command { session, seq, command }.into()
}
