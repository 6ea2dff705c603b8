//! Our own lock service under virtual time: the production table, and a model of a leader's timers
//! (`crates/replica/src/deadlines.rs`). A session's deadline moves when the session is opened, with each
//! keep-alive, and, with a `linger`, when the system closes the client's connection.
//!
//! One node is enough: replication does not change what clients observe.

use std::collections::BTreeMap;

use lockkeeper::LossCause;
use lockkeeper::machine::{Answer, CallId, CallKind, Event, Granted, Push};
use lockkeeper_core::{
    Acquire, Command, Effect, Effects, HoldState, IfBusy, LockName, Mode, ModeKind, OpenSession, Page, Reply,
    Seq, SessionId, Table, Token,
};

use crate::client::{Client, CountedHold, Sent};
use crate::settings::Settings;

/// The name of the lock.
const NAME: &str = "account";

/// A node that leads.
pub(crate) struct LockService {
    ttl_ms: u64,
    lock_delay_ms: u64,
    linger_ms: u64,
    name: LockName,
    table: Table,
    /// How many sessions each client has opened, and the latest one.
    opened: BTreeMap<Client, (u8, SessionId)>,
    /// The live sessions.
    leases: BTreeMap<SessionId, Lease>,
    /// The client and the call to answer for each waiting acquire.
    waiting: BTreeMap<(SessionId, Seq), (Client, CallId)>,
    /// The time at which each closed hold opens, in milliseconds.
    closed: BTreeMap<Token, u64>,
    /// The client to which each token was granted; kept after the hold has ended.
    holders: BTreeMap<Token, Client>,
}

struct Lease {
    client: Client,
    deadline_ms: u64,
}

impl LockService {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            ttl_ms: settings.ttl_ms,
            lock_delay_ms: settings.lock_delay_ms,
            linger_ms: settings.linger_ms,
            name: LockName::parse(NAME).expect("a valid name"),
            table: Table::new(0),
            opened: BTreeMap::new(),
            leases: BTreeMap::new(),
            waiting: BTreeMap::new(),
            closed: BTreeMap::new(),
            holders: BTreeMap::new(),
        }
    }

    /// Handles a call of a client's machine.
    pub(crate) fn call(
        &mut self,
        now: u64,
        client: Client,
        mode: ModeKind,
        (call, kind): (CallId, CallKind),
        out: &mut Vec<Sent>,
    ) {
        let Some(command) = self.command(client, mode, &kind) else {
            let answer = if self.renew(now, client) { Answer::KeptAlive } else { Answer::SessionGone };
            return out.push(Sent::to(client, Event::Answered { call, answer }));
        };
        let mut effects = Effects::new();
        let reply = self.table.apply_whole(command, &mut effects);
        let session = self.session(client);
        let answer = match reply {
            Reply::Opened { session } => {
                let opened = self.opened.get(&client).map_or(0, |(count, _)| *count);
                self.opened.insert(client, (opened.max(1), session));
                let deadline_ms = now + self.ttl_ms;
                self.leases.entry(session).or_insert(Lease { client, deadline_ms }).deadline_ms = deadline_ms;
                Answer::Opened
            }
            Reply::Granted(grant) => {
                self.holders.insert(grant.token, client);
                Answer::Granted(Granted { token: Some(grant.token), permits: grant.permits, spare_tokens: 0 })
            }
            Reply::Queued { position, .. } => {
                let (CallKind::Acquire { seq, .. }, Some(session)) = (kind, session) else { return };
                self.waiting.insert((session, seq), (client, call));
                return out.push(Sent::to(client, Event::Pushed(Push::Queued { seq, position })));
            }
            Reply::Finished(end) => Answer::Finished(end),
            Reply::Done => Answer::Closed,
            Reply::SessionGone => Answer::SessionGone,
            // Other replies can't occur: the requests of a story break no rule and reach no limit. If one
            // did, its caller would wait forever, which the tests detect.
            _ => return,
        };
        out.push(Sent::to(client, Event::Answered { call, answer }));
        self.pass_on(now, effects, out);
    }

    /// The table's command for a call; `None` for a keep-alive, which changes only the leader's timers.
    fn command(&mut self, client: Client, mode: ModeKind, kind: &CallKind) -> Option<Command> {
        let session = self.session(client).unwrap_or(SessionId(0));
        Some(match *kind {
            CallKind::KeepAlive => return None,
            CallKind::Open { fresh } => {
                let opened = self.opened.entry(client).or_insert((0, SessionId(0)));
                opened.0 += u8::from(fresh);
                let mut secret_hash = [client as u8; 32];
                secret_hash[0] = opened.0;
                Command::OpenSession(OpenSession {
                    secret_hash,
                    ttl_ms: self.ttl_ms,
                    lock_delay_ms: self.lock_delay_ms,
                    linger_ms: self.linger_ms,
                    label: format!("{client:?}").into(),
                    identity: "".into(),
                })
            }
            CallKind::Acquire { seq, done_through, .. } => Command::Acquire(Acquire {
                session,
                seq,
                done_through,
                names: vec![self.name.clone()],
                mode: if mode == ModeKind::Shared { Mode::Shared } else { Mode::Exclusive },
                subtree: false,
                if_busy: IfBusy::WAIT,
                keep_closed_ms: 0,
                value: Box::default(),
                meta: Box::default(),
                spare_tokens: 0,
                holding: Box::default(),
            }),
            CallKind::Finish { seq, target, done_through } => {
                Command::Finish { session, seq, target, done_through }
            }
            CallKind::Settle { seq, target, done_through } => {
                Command::Settle { session, seq, target, done_through }
            }
            CallKind::Close => Command::CloseSession { session },
        })
    }

    fn session(&self, client: Client) -> Option<SessionId> {
        self.opened.get(&client).map(|(_, session)| *session)
    }

    /// Extends the lease of a client's session, if it is live.
    fn renew(&mut self, now: u64, client: Client) -> bool {
        let lease = self.session(client).and_then(|session| self.leases.get_mut(&session));
        lease.map(|lease| lease.deadline_ms = now + self.ttl_ms).is_some()
    }

    /// A client's process has died, and its system has closed the connection.
    pub(crate) fn disconnected(&mut self, now: u64, client: Client) {
        let session = self.session(client);
        if let Some(lease) = session.and_then(|session| self.leases.get_mut(&session))
            && self.linger_ms > 0
        {
            lease.deadline_ms = lease.deadline_ms.min(now + self.linger_ms);
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let leases = self.leases.values().map(|lease| lease.deadline_ms);
        leases.chain(self.closed.values().copied()).min()
    }

    /// Fires the timers that are due. Returns the clients whose sessions have expired.
    pub(crate) fn fire(&mut self, now: u64, out: &mut Vec<Sent>) -> Vec<Client> {
        let mut effects = Effects::new();
        let expired = self.leases.iter().filter(|(_, lease)| lease.deadline_ms <= now);
        let expired: Vec<(SessionId, Client)> = expired.map(|(id, lease)| (*id, lease.client)).collect();
        for &(session, client) in &expired {
            let _gone = self.table.apply_whole(Command::ExpireSession { session }, &mut effects);
            // A real leader sends this message on the session's stream.
            out.push(Sent::to(client, Event::Pushed(Push::Lost(LossCause::SessionEnded))));
        }
        let open: Vec<Token> =
            self.closed.iter().filter(|(_, until)| **until <= now).map(|(token, _)| *token).collect();
        for token in open {
            self.closed.remove(&token);
            let _done = self.table.apply_whole(Command::EndDelay { token }, &mut effects);
        }
        self.pass_on(now, effects, out);
        expired.into_iter().map(|(_, client)| client).collect()
    }

    fn pass_on(&mut self, now: u64, effects: Effects, out: &mut Vec<Sent>) {
        for effect in effects {
            match effect {
                Effect::SessionEnded { session } => {
                    self.leases.remove(&session);
                    self.waiting.retain(|(waiting, _), _| *waiting != session);
                }
                Effect::Closed { token, ms } => {
                    self.closed.insert(token, now + ms);
                }
                Effect::Granted { session, seq, grant } => {
                    let Some((client, call)) = self.waiting.remove(&(session, seq)) else { continue };
                    self.holders.insert(grant.token, client);
                    let answer = Answer::Granted(Granted {
                        token: Some(grant.token),
                        permits: grant.permits,
                        spare_tokens: 0,
                    });
                    out.push(Sent::to(client, Event::Answered { call, answer }));
                }
                // Can't occur: no story breaks a hold, caches one or limits a wait.
                Effect::Revoked { .. } | Effect::Recalled { .. } | Effect::Ended { .. } => {}
            }
        }
    }

    /// The holds of the lock, as the table describes them.
    pub(crate) fn held(&self) -> Vec<CountedHold> {
        let described = self.table.describe(&self.name, Page::first(0));
        let held = described.holds.iter().filter_map(|hold| {
            let is_closed = matches!(hold.state, HoldState::Closed { .. });
            Some(CountedHold { token: Some(hold.token), holder: *self.holders.get(&hold.token)?, is_closed })
        });
        held.collect()
    }
}
