//! Honest clients on a network that loses, duplicates and delays frames, and an observer of the actual
//! outcomes.
//!
//! A client sends its commands in the order of their seqs, raises `done_through` only over received answers,
//! and after a broken stream repeats all unresolved commands in order. The network may lose any frame, answer
//! or effect, and may deliver any earlier frame again at any time. The observer checks P7 on each answer.

mod client;
mod observer;

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Break, Command, Effect, LockName, OpenSession, Reply, Seq, SessionId, Token};
use proptest::prelude::*;

use crate::oracle::pair::Pair;
use crate::random_steps::{self, Asked};
use client::Client;
use observer::Observer;

/// An event of a random history.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Acquire {
        client: usize,
        asked: Asked,
    },
    /// Cancels or releases a request, or confirms its end: the `pick`-th acquire without a `Finish`.
    Finish {
        client: usize,
        pick: usize,
    },
    Change {
        client: usize,
        pick: usize,
        downgrade: bool,
    },
    /// The next frame of a stream arrives; its answer or its effects may be lost.
    Deliver {
        client: usize,
        lose_answer: bool,
        lose_effects: bool,
    },
    /// The stream breaks and loses its frames; the client attaches again.
    Reattach {
        client: usize,
    },
    /// Any earlier frame arrives again.
    Again {
        pick: usize,
    },
    TimeOut {
        pick: usize,
    },
    EndDelay {
        pick: usize,
    },
    EndRevoked {
        pick: usize,
    },
    Break {
        pick: usize,
        now: bool,
    },
    Expire {
        client: usize,
    },
    Restart,
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let client = || 0..3usize;
    let pick = any::<usize>;
    prop_oneof![
        20 => (client(), random_steps::asked()).prop_map(|(client, asked)| Act::Acquire { client, asked }),
        12 => (client(), pick()).prop_map(|(client, pick)| Act::Finish { client, pick }),
        3 => (client(), pick(), any::<bool>())
            .prop_map(|(client, pick, downgrade)| Act::Change { client, pick, downgrade }),
        45 => (client(), prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(client, lose_answer, lose_effects)| Act::Deliver { client, lose_answer, lose_effects }),
        6 => client().prop_map(|client| Act::Reattach { client }),
        12 => pick().prop_map(|pick| Act::Again { pick }),
        5 => pick().prop_map(|pick| Act::TimeOut { pick }),
        4 => pick().prop_map(|pick| Act::EndDelay { pick }),
        3 => pick().prop_map(|pick| Act::EndRevoked { pick }),
        4 => (pick(), any::<bool>()).prop_map(|(pick, now)| Act::Break { pick, now }),
        1 => client().prop_map(|client| Act::Expire { client }),
        1 => Just(Act::Restart),
    ]
}

/// The tables, the clients, and all frames ever sent.
pub(crate) struct World {
    pair: Pair,
    clients: Vec<Client>,
    sent: Vec<Command>,
    observer: Observer,
    sessions_opened: u8,
}

impl World {
    pub(crate) fn new(clients: usize) -> Self {
        let mut world = Self {
            pair: Pair::new(),
            clients: Vec::new(),
            sent: Vec::new(),
            observer: Observer::default(),
            sessions_opened: 0,
        };
        for _ in 0..clients {
            let session = world.open_session().expect("a first session opens");
            world.clients.push(Client::new(session));
        }
        world
    }

    fn open_session(&mut self) -> Result<SessionId, String> {
        self.sessions_opened += 1;
        let open = OpenSession {
            secret_hash: [self.sessions_opened; 32],
            ttl_ms: 10_000,
            lock_delay_ms: u64::from(self.sessions_opened % 2) * 4000,
            linger_ms: 0,
            label: "".into(),
            identity: Box::default(),
        };
        match self.pair.apply(&Command::OpenSession(open))?.0 {
            Reply::Opened { session } => Ok(session),
            other => Err(format!("a new session was answered {other:?}")),
        }
    }

    pub(crate) fn act(&mut self, act: Act) -> Result<(), String> {
        match act {
            Act::Acquire { client, asked } => self.send(client, |c| c.acquire(asked)),
            Act::Finish { client, pick } => {
                let open = self.clients[client].without_finish();
                if !open.is_empty() {
                    self.send(client, |c| c.finish(open[pick % open.len()]));
                }
            }
            Act::Change { client, pick, downgrade } => {
                let open = self.clients[client].without_finish();
                if !open.is_empty() {
                    self.send(client, |c| c.change(open[pick % open.len()], downgrade));
                }
            }
            Act::Deliver { client, lose_answer, lose_effects } => {
                if let Some(command) = self.clients[client].stream.pop_front() {
                    self.deliver(&command, (!lose_answer).then_some(client), !lose_effects)?;
                }
            }
            Act::Reattach { client } => self.reattach(client),
            Act::Again { pick } => {
                if !self.sent.is_empty() {
                    let command = self.sent[pick % self.sent.len()].clone();
                    self.deliver(&command, None, true)?;
                }
            }
            Act::TimeOut { pick } => {
                let waiters = self.owners(|phase| matches!(phase, Phase::Waiting { .. }));
                if !waiters.is_empty() {
                    let (session, target) = waiters[pick % waiters.len()];
                    self.deliver(&Command::TimeOut { session, target }, None, true)?;
                }
            }
            Act::EndDelay { pick } => {
                if let Some(token) = self.pick_token(pick, |phase| matches!(phase, Phase::Closed { .. })) {
                    self.deliver(&Command::EndDelay { token }, None, true)?;
                }
            }
            Act::EndRevoked { pick } => {
                if let Some(token) = self.pick_token(pick, |phase| matches!(phase, Phase::Revoked { .. })) {
                    self.deliver(&Command::EndRevoked { token }, None, !pick.is_multiple_of(3))?;
                }
            }
            Act::Break { pick, now } => self.break_some_hold(pick, now)?,
            Act::Expire { client } => {
                let session = self.clients[client].session;
                self.deliver(&Command::ExpireSession { session }, None, true)?;
                let session = self.open_session()?;
                self.clients[client] = Client::new(session);
            }
            Act::Restart => self.pair.restart()?,
        }
        Ok(())
    }

    /// Lets the client create a command; adds the command to the stream and to the frames ever sent.
    fn send(&mut self, client: usize, make: impl FnOnce(&mut Client) -> Command) {
        let command = make(&mut self.clients[client]);
        self.sent.push(command.clone());
        self.clients[client].stream.push_back(command);
    }

    /// Applies a command to the table. `answers`: the client that receives the reply, if any.
    /// `effects_heard`: whether the clients receive the effects on their sessions.
    fn deliver(
        &mut self,
        command: &Command,
        answers: Option<usize>,
        effects_heard: bool,
    ) -> Result<(), String> {
        let (reply, effects) = self.pair.apply(command)?;
        self.observer.saw(command, &reply, &effects)?;
        if let Some(client) = answers {
            self.clients[client].hear_answer(command, &reply, &self.observer)?;
        }
        for effect in &effects {
            let of = match effect {
                Effect::Granted { session, .. }
                | Effect::Ended { session, .. }
                | Effect::Revoked { session, .. } => *session,
                Effect::SessionEnded { .. } | Effect::Closed { .. } | Effect::Recalled { .. } => continue,
            };
            if effects_heard && let Some(client) = self.clients.iter_mut().find(|c| c.session == of) {
                client.hear_effect(effect, &self.observer)?;
            }
        }
        Ok(())
    }

    /// Opens a new stream: the service sends unconfirmed ends, and the client repeats its unresolved
    /// commands.
    fn reattach(&mut self, client: usize) {
        let attached = &mut self.clients[client];
        attached.stream.clear();
        let session = attached.session;
        if let Some(state) = self.pair.now.sessions.iter().find(|state| state.id == session) {
            for kept in state.kept.iter().filter(|kept| kept.until.is_none()) {
                attached.told_at_attach(kept.seq, &kept.reply);
            }
        }
        let again = attached.unresolved();
        self.sent.extend(again.iter().cloned());
        self.clients[client].stream.extend(again);
    }

    fn owners(&self, of: impl Fn(&Phase) -> bool) -> Vec<(SessionId, Seq)> {
        self.pair.now.requests.iter().filter(|r| of(&r.phase)).filter_map(|r| r.owner).collect()
    }

    fn pick_token(&self, pick: usize, of: impl Fn(&Phase) -> bool) -> Option<Token> {
        let tokens: Vec<Token> = self
            .pair
            .now
            .requests
            .iter()
            .filter(|r| of(&r.phase))
            .filter_map(crate::oracle::token_of)
            .collect();
        (!tokens.is_empty()).then(|| tokens[pick % tokens.len()])
    }

    fn break_some_hold(&mut self, pick: usize, now: bool) -> Result<(), String> {
        let Some(token) = self.pick_token(pick, |phase| !matches!(phase, Phase::Waiting { .. })) else {
            return Ok(());
        };
        let request = self
            .pair
            .now
            .requests
            .iter()
            .find(|r| crate::oracle::token_of(r) == Some(token))
            .expect("picked");
        let name: LockName = request.names[0].clone();
        let order = Break { name, token, reason: "".into(), by: "".into(), now };
        self.deliver(&Command::Break(order), None, !pick.is_multiple_of(3))
    }

    /// The network recovers: every client attaches and finishes its requests; then all old frames arrive
    /// again, in an order that `shuffle` selects. No request may be left before or after that.
    pub(crate) fn settle(&mut self, shuffle: u64) -> Result<(), String> {
        for _ in 0..2 {
            for client in 0..self.clients.len() {
                self.reattach(client);
                self.drain(client)?;
                for acquire in self.clients[client].without_finish() {
                    self.send(client, |c| c.finish(acquire));
                }
                self.drain(client)?;
            }
        }
        self.no_orphans("at rest")?;
        for client in &self.clients {
            client.every_acquire_is_over()?;
        }
        for client in 0..self.clients.len() {
            self.send(client, Client::nothing);
            self.drain(client)?;
        }
        for state in &self.pair.now.sessions {
            if state.kept.len() > 1 {
                return Err(format!("R3: answers that the client has are still kept: {state:?}"));
            }
        }
        let mut late = self.sent.clone();
        for _ in 0..late.len() {
            let at = usize::try_from(shuffle).unwrap_or(usize::MAX) % late.len();
            let command = late.swap_remove(at);
            self.deliver(&command, None, true)?;
            self.no_orphans("after a late duplicate")?;
        }
        Ok(())
    }

    fn drain(&mut self, client: usize) -> Result<(), String> {
        while let Some(command) = self.clients[client].stream.pop_front() {
            self.deliver(&command, Some(client), true)?;
        }
        Ok(())
    }

    fn no_orphans(&self, when: &str) -> Result<(), String> {
        match self.pair.now.requests.iter().find(|r| r.owner.is_some()) {
            None => Ok(()),
            Some(orphan) => Err(format!("P7: an orphan {when}: {orphan:?}")),
        }
    }
}
