//! Redlock: a key with an expiry on each of five Redis servers. The client that has the key on three of them
//! holds the lock.
//!
//! The servers are modelled here (`SET NX PX`, each with its own clock); the client is the production one.

use std::collections::BTreeMap;

use lockkeeper::LossCause;
use lockkeeper::machine::{Answer, CallId, CallKind, Event, Granted, Push};
use lockkeeper_core::{End, Seq};

use crate::client::{Client, CountedHold, Sent};

const SERVERS: usize = 5;
const MAJORITY: usize = 3;
/// How many clocks a step sets.
const STEPPED: usize = 3;
/// How long a client that found the lock taken waits before it tries again, in milliseconds.
const RETRY_MS: u64 = 500;

/// The five servers, and the clients that wait for the lock.
pub(crate) struct Redlock {
    ttl_ms: u64,
    servers: [RedisServer; SERVERS],
    /// The request by which each client holds the lock.
    granted: BTreeMap<Client, Seq>,
    waiting: Vec<Waiting>,
    retry_ms: u64,
}

#[derive(Clone, Copy, Default)]
struct RedisServer {
    /// How far the server's clock is ahead.
    ahead_ms: u64,
    key: Option<Key>,
}

#[derive(Clone, Copy)]
struct Key {
    client: Client,
    seq: Seq,
    /// On the server's clock.
    expires_ms: u64,
}

struct Waiting {
    client: Client,
    seq: Seq,
    call: CallId,
}

impl RedisServer {
    /// The key, if it has not expired.
    fn live(&self, now: u64) -> Option<Key> {
        self.key.filter(|key| now + self.ahead_ms < key.expires_ms)
    }
}

impl Redlock {
    pub(crate) fn new(ttl_ms: u64) -> Self {
        Self {
            ttl_ms,
            servers: [RedisServer::default(); SERVERS],
            granted: BTreeMap::new(),
            waiting: Vec::new(),
            retry_ms: 0,
        }
    }

    pub(crate) fn call(
        &mut self,
        now: u64,
        client: Client,
        (call, kind): (CallId, CallKind),
        out: &mut Vec<Sent>,
    ) {
        let answer = match kind {
            // There is no session: only the keys expire.
            CallKind::Open { .. } => Answer::Opened,
            CallKind::Close => Answer::Closed,
            CallKind::KeepAlive => {
                if let Some(seq) = self.renew(now, client) {
                    let lost = Push::HoldLost { seq, cause: LossCause::Forgotten, why: None };
                    out.push(Sent::to(client, Event::Pushed(lost)));
                }
                Answer::KeptAlive
            }
            CallKind::Acquire { seq, .. } => {
                if !self.try_set(now, client, seq) {
                    if self.waiting.is_empty() {
                        self.retry_ms = now + RETRY_MS;
                    }
                    self.waiting.push(Waiting { client, seq, call });
                    return out.push(Sent::to(client, Event::Pushed(Push::Queued { seq, position: 0 })));
                }
                Answer::Granted(Granted::default())
            }
            CallKind::Settle { .. } => Answer::Changed,
            CallKind::Finish { target, .. } => {
                self.delete(client, target);
                Answer::Finished(End::Released)
            }
        };
        out.push(Sent::to(client, Event::Answered { call, answer }));
    }

    /// Sets the key where there is none. Without a majority, deletes it again.
    fn try_set(&mut self, now: u64, client: Client, seq: Seq) -> bool {
        let mut set = 0;
        for server in &mut self.servers {
            if server.live(now).is_none() {
                server.key = Some(Key { client, seq, expires_ms: now + server.ahead_ms + self.ttl_ms });
                set += 1;
            }
        }
        if set < MAJORITY {
            self.delete(client, seq);
            return false;
        }
        self.granted.insert(client, seq);
        true
    }

    fn delete(&mut self, client: Client, seq: Seq) {
        if self.granted.get(&client) == Some(&seq) {
            self.granted.remove(&client);
        }
        self.waiting.retain(|waiting| (waiting.client, waiting.seq) != (client, seq));
        for server in &mut self.servers {
            server.key = server.key.filter(|key| (key.client, key.seq) != (client, seq));
        }
    }

    /// Extends a client's keys. Returns the request whose keys have lost their majority; its remaining keys
    /// are deleted.
    fn renew(&mut self, now: u64, client: Client) -> Option<Seq> {
        let seq = *self.granted.get(&client)?;
        let mut renewed = 0;
        for server in &mut self.servers {
            let expires_ms = now + server.ahead_ms + self.ttl_ms;
            if let Some(mut key) = server.live(now).filter(|key| (key.client, key.seq) == (client, seq)) {
                key.expires_ms = expires_ms;
                server.key = Some(key);
                renewed += 1;
            }
        }
        if renewed >= MAJORITY {
            return None;
        }
        self.delete(client, seq);
        Some(seq)
    }

    /// Sets the clocks of a majority forward.
    pub(crate) fn step_clocks(&mut self, ms: u64) {
        for server in &mut self.servers[..STEPPED] {
            server.ahead_ms += ms;
        }
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.retry_ms)
    }

    /// Lets waiting clients try again, in the order of their arrival.
    pub(crate) fn fire(&mut self, now: u64, out: &mut Vec<Sent>) {
        if self.next_due().is_none_or(|due| due > now) {
            return;
        }
        self.retry_ms = now + RETRY_MS;
        for Waiting { client, seq, call } in std::mem::take(&mut self.waiting) {
            if self.try_set(now, client, seq) {
                let answer = Answer::Granted(Granted::default());
                out.push(Sent::to(client, Event::Answered { call, answer }));
            } else {
                self.waiting.push(Waiting { client, seq, call });
            }
        }
    }

    /// The client that has the key on most servers.
    pub(crate) fn held(&self, now: u64) -> Vec<CountedHold> {
        let live: Vec<Client> =
            self.servers.iter().filter_map(|server| server.live(now)).map(|key| key.client).collect();
        let holder =
            live.iter().find(|client| live.iter().filter(|other| other == client).count() >= MAJORITY);
        holder
            .map(|holder| CountedHold { token: None, holder: *holder, is_closed: false })
            .into_iter()
            .collect()
    }
}
