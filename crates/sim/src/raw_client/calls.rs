//! Calls by the raw protocol client: it uses its session by calls now and then, also while it has a stream.
//! It repeats commands, leaves before the answer comes, and presents a wrong secret.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Seq, SessionId};
use lockkeeper_replica::StreamId;
use lockkeeper_wire::request::{Request, Secret};
use lockkeeper_wire::v1::{self, client_item, server_item::What};

use super::{RawClient, WRONG_SECRET, item};
use crate::clock::{MS, Nanos};
use crate::core::{Core, Happening};
use crate::net::{Down, Up};

/// A call without its last answer.
pub(super) struct PendingCall {
    session: u64,
    sent: Nanos,
    /// The secret is wrong.
    is_theft: bool,
}

pub(super) type PendingCalls = BTreeMap<StreamId, PendingCall>;

impl RawClient {
    /// Makes a call, at random.
    pub(super) fn make_call(&mut self, core: &mut Core) {
        if !core.is_stormy && !self.calls.is_empty() {
            // Their answers may be lost.
            self.calls.clear();
            self.hang_up(core);
        }
        let Some(session) = self.session else { return };
        if !core.is_stormy || !core.scenario.has_calls || !core.dice.chance(20) {
            return;
        }
        let id = SessionId(session);
        let is_theft = core.dice.chance(20);
        let secret = if is_theft { Secret(WRONG_SECRET) } else { self.secret };
        let target = self.request.map_or(1, |(seq, _)| seq);
        let finish =
            |seq| Command::Finish { session: id, seq: Seq(seq), target: Seq(target), done_through: Seq(0) };
        let keep_alive = Request::KeepAlive { session: id, id: core.now };
        let again = self.said.last().cloned().map(|command| item(id, command));
        let item = match core.dice.below(4) {
            0 => keep_alive.into(),
            1 if is_theft => item(id, finish(self.next_seq)),
            1 => Request::Open(self.open()).into(),
            2 if !is_theft => match self.next_command(core, id) {
                Some(command) => self.say(id, command),
                None => keep_alive.into(),
            },
            _ => again.unwrap_or_else(|| keep_alive.into()),
        };
        // An `open` has its secret in the item.
        let mut call =
            v1::SessionCallRequest { secret: secret.0.to_vec(), item: Some(item), ..Default::default() };
        if matches!(&call.item, Some(item) if matches!(item.what, Some(client_item::What::KeepAlive(_)))) {
            call.poll_ms = core.dice.below(2);
            call.waiting = self.request.iter().map(|(seq, _)| *seq).collect();
            if core.dice.chance(20) {
                call.known = call.waiting.clone();
            }
        }
        let of_stream = self.stream.and_then(|stream| core.net.lines.get(&stream)).map(|line| line.node);
        let node = of_stream.filter(|_| core.dice.chance(70));
        let node = node.unwrap_or_else(|| core.dice.pick(&core.present));
        let line = core.call(self.index, 1, node, call);
        self.calls.insert(line, PendingCall { session, sent: core.now, is_theft });
        if core.dice.chance(15) {
            let pause = core.dice.spread(MS, self.ttl);
            core.after(pause, Happening::ToNode(line, Up::Closed));
        }
    }

    /// Handles a packet on the line of a call. Returns it if the line is of no call.
    pub(super) fn answers_call(&mut self, core: &mut Core, line: StreamId, packet: Down) -> Option<Down> {
        let Some(PendingCall { session, sent, is_theft }) = self.calls.remove(&line) else {
            return Some(packet);
        };
        let Down::Called { response: v1::SessionCallResponse { item: Some(item), granted, .. }, waits } =
            packet
        else {
            // Its command is sent again on the next stream.
            self.hang_up(core);
            return None;
        };
        let is_refused = matches!(item.what, Some(What::Refused(_) | What::SessionGone(_)));
        if is_theft {
            if !is_refused {
                core.broken("P4", &format!("a call with a wrong secret is answered: {item:?}"));
            }
            core.hang_up(line);
            return None;
        }
        if !is_refused && item.session == session {
            core.oracle.renewed(core.now, session, sent + self.ttl / 100 * 98);
        }
        if waits {
            self.calls.insert(line, PendingCall { session, sent, is_theft });
        } else {
            core.hang_up(line);
        }
        let session = item.session;
        self.hears_by_call(core, item);
        for it in granted {
            let what = it.grant.map(What::Granted);
            self.hears_by_call(core, v1::ServerItem { session, seq: it.seq, what });
        }
        None
    }

    fn hears_by_call(&mut self, core: &mut Core, item: v1::ServerItem) {
        let Some(what) = item.what else { return };
        let is_own = self.request.is_some_and(|(seq, _)| seq == item.seq);
        match what {
            What::SessionGone(_) if self.session == Some(item.session) => self.restart(core),
            What::Granted(_) => {
                self.unanswered.remove(&item.seq);
                self.request = self.request.map(|(seq, is_granted)| (seq, is_granted || is_own));
            }
            What::Queued(_) | What::Done(_) => drop(self.unanswered.remove(&item.seq)),
            What::Busy(_) | What::Finished(_) | What::Revoked(_) | What::Refused(_) if item.seq != 0 => {
                self.unanswered.remove(&item.seq);
                if let Some(session) = self.session.filter(|_| is_own) {
                    self.confirm(SessionId(session), item.seq);
                }
            }
            _ => {}
        }
    }
}
