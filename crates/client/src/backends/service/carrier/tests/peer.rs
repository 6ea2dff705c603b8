//! Stub of the service: the real table, with the deadlines of sessions and revoked holds only. It applies and
//! answers each item at once, without replication, which the simulator tests.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{Break, Command, Effect, Reply, Seq, SessionId, Table, Token};
use lockkeeper_wire::answer;
use lockkeeper_wire::request::{Open, Request, Secret};
use lockkeeper_wire::v1::{self, server_item::What};

use super::StreamId;

/// A stream, with the index of its client.
pub(in crate::backends::service) type At = (usize, StreamId);

struct Lease {
    ttl_ms: u64,
    linger_ms: u64,
    deadline_ms: u64,
    attach: u64,
    at: Option<At>,
    revoked: BTreeSet<Seq>,
}

pub(in crate::backends::service) struct Peer {
    pub(in crate::backends::service) table: Table,
    now_ms: u64,
    leases: BTreeMap<SessionId, Lease>,
    opened_revoked: BTreeMap<u64, Token>,
    /// Items to be sent, by stream.
    pub(in crate::backends::service) down: BTreeMap<At, Vec<v1::ServerItem>>,
}

fn hash(secret: &Secret) -> [u8; 32] {
    std::array::from_fn(|index| secret.0[index % 16])
}

impl Peer {
    pub(in crate::backends::service) fn new(now_ms: u64) -> Self {
        Self {
            table: Table::new(0),
            now_ms,
            leases: BTreeMap::new(),
            opened_revoked: BTreeMap::new(),
            down: BTreeMap::new(),
        }
    }

    fn tell(&mut self, at: At, session: SessionId, seq: Seq, what: What) {
        let item = v1::ServerItem { session: session.0, seq: seq.0, what: Some(what) };
        self.down.entry(at).or_default().push(item);
    }

    fn tell_session(&mut self, session: SessionId, seq: Seq, what: What) {
        if let Some(at) = self.leases.get(&session).and_then(|lease| lease.at) {
            self.tell(at, session, seq, what);
        }
    }

    pub(in crate::backends::service) fn frame(&mut self, at: At, items: Vec<v1::ClientItem>) {
        for item in items {
            match Request::try_from(item).expect("the carrier says what it means") {
                Request::Open(open) => self.open(at, &open),
                Request::Attach { session, secret, attach } => {
                    if self.table.secret_hash(session) != Some(&hash(&secret)) {
                        self.tell(at, session, Seq(0), What::SessionGone(v1::SessionGone {}));
                    } else if self.claim(at, session, attach) {
                        let revoked = self.revoked(session);
                        self.tell(
                            at,
                            session,
                            Seq(0),
                            What::Attached(v1::Attached { attach, revoked, recalled: Vec::new() }),
                        );
                        let ends: Vec<_> = self.table.unconfirmed_ends(session, Seq(0)).collect();
                        for (seq, end) in ends {
                            self.tell(at, session, seq, What::Ended(answer::finished(end)));
                        }
                    }
                }
                Request::KeepAlive { session, id } => {
                    if self.is_at(at, session, Seq(0)) {
                        self.renew(session);
                        let revoked = self.revoked(session);
                        self.tell(
                            at,
                            session,
                            Seq(0),
                            What::KeptAlive(v1::KeptAlive { id, revoked, recalled: Vec::new() }),
                        );
                    }
                }
                Request::Denied { .. } => unreachable!("only a node makes these"),
                Request::Command { session, seq, command } => {
                    if self.is_at(at, session, seq) {
                        let reply = self.apply(command);
                        if let Some(reply) = reply {
                            let item = answer::reply_item(session, seq, reply, |_| String::new());
                            self.down.entry(at).or_default().push(item);
                        }
                    }
                }
            }
        }
    }

    fn is_at(&mut self, at: At, session: SessionId, seq: Seq) -> bool {
        match self.leases.get(&session) {
            None => {
                self.tell(at, session, seq, What::SessionGone(v1::SessionGone {}));
                false
            }
            Some(lease) => lease.at == Some(at),
        }
    }

    fn revoked(&self, session: SessionId) -> Vec<u64> {
        self.leases[&session].revoked.iter().map(|seq| seq.0).collect()
    }

    fn open(&mut self, at: At, open: &Open) {
        let Some(Reply::Opened { session }) =
            self.apply(Command::OpenSession(open.session(hash(&open.secret), "")))
        else {
            panic!("not opened")
        };
        let (ttl_ms, linger_ms, deadline_ms) = (open.ttl_ms, open.linger_ms, self.now_ms + open.ttl_ms);
        self.leases.entry(session).or_insert_with(|| Lease {
            ttl_ms,
            linger_ms,
            deadline_ms,
            attach: 0,
            at: None,
            revoked: BTreeSet::new(),
        });
        if self.claim(at, session, open.attach) {
            let opened = v1::Opened { attach: open.attach, secret_prefix: open.secret.prefix() };
            self.tell(at, session, Seq(0), What::Opened(opened));
        }
    }

    fn claim(&mut self, at: At, session: SessionId, attach: u64) -> bool {
        let Some(lease) = self.leases.get_mut(&session) else { return false };
        let newer = attach > lease.attach;
        if newer {
            (lease.attach, lease.at) = (attach, Some(at));
            self.renew(session);
        }
        newer
    }

    fn renew(&mut self, session: SessionId) {
        let now_ms = self.now_ms;
        if let Some(lease) = self.leases.get_mut(&session) {
            lease.deadline_ms = now_ms + lease.ttl_ms;
        }
    }

    /// Handles the end of a stream.
    pub(in crate::backends::service) fn closed(&mut self, at: At, by_client: bool) {
        self.down.remove(&at);
        for lease in self.leases.values_mut().filter(|lease| lease.at == Some(at)) {
            lease.at = None;
            if by_client && lease.linger_ms > 0 {
                lease.deadline_ms = lease.deadline_ms.min(self.now_ms + lease.linger_ms);
            }
        }
    }

    /// Applies a command and returns its reply; `None` for a close, which the end of the session answers.
    fn apply(&mut self, command: Command) -> Option<Reply> {
        let closes = matches!(command, Command::CloseSession { .. });
        let finishes = match &command {
            Command::Finish { session, target, .. } => Some((*session, *target)),
            _ => None,
        };
        let mut effects = Vec::new();
        let reply = self.table.apply_whole(command, &mut effects);
        if let Some((session, target)) = finishes
            && let Some(lease) = self.leases.get_mut(&session)
        {
            lease.revoked.remove(&target);
        }
        for effect in effects {
            match effect {
                Effect::SessionEnded { session } => {
                    self.tell_session(session, Seq(0), What::SessionGone(v1::SessionGone {}));
                    self.leases.remove(&session);
                }
                Effect::Granted { session, seq, grant } => {
                    self.tell_session(session, seq, answer::granted(&grant));
                }
                Effect::Ended { session, seq, end } => {
                    self.tell_session(session, seq, What::Ended(answer::finished(end)));
                    self.leases.get_mut(&session).map(|lease| lease.revoked.remove(&seq));
                }
                // No client of these tests caches.
                Effect::Recalled { .. } => {}
                Effect::Revoked { session, seq, token } => {
                    let lease = self.leases.get_mut(&session).expect("its session lives");
                    lease.revoked.insert(seq);
                    self.opened_revoked.insert(self.now_ms + lease.ttl_ms, token);
                    self.tell_session(
                        session,
                        seq,
                        What::Revoked(v1::Revoked { token: token.get(), ..v1::Revoked::default() }),
                    );
                }
                Effect::Closed { .. } => {}
            }
        }
        (!closes).then_some(reply)
    }

    /// Breaks the hold of a name, as an operator.
    pub(in crate::backends::service) fn break_it(&mut self, name: &str) {
        let name: lockkeeper_core::LockName = name.parse().expect("a good name");
        let holder =
            self.table.describe(&name, lockkeeper_core::Page::first(0)).holds.first().map(|hold| hold.token);
        if let Some(token) = holder {
            let order = Break { name, token, reason: "test".into(), by: "test".into(), now: false };
            let _ = self.apply(Command::Break(order));
        }
    }

    pub(in crate::backends::service) fn pass(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let silent: Vec<SessionId> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.deadline_ms <= now_ms)
            .map(|(&session, _)| session)
            .collect();
        for session in silent {
            let _ = self.apply(Command::ExpireSession { session });
        }
        while let Some(entry) = self.opened_revoked.first_entry().filter(|entry| *entry.key() <= now_ms) {
            let token = entry.remove();
            let _ = self.apply(Command::EndRevoked { token });
        }
    }
}
