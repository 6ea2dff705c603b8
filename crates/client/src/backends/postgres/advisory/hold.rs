//! A granted request: probed, watched, and released.
//!
//! Shortly after the grant the caller's task may still release it directly. From then on the backend's thread drives
//! it: the thread is notified of breaks and of the connection's end, and probes the connection.

use std::time::Instant;

use lockkeeper_core::Token;
use tokio_postgres::{Notification, SimpleQueryRow};

use super::keeper::Claim;
use super::note::Letter;
use super::request::Word;
use super::server::answer_within;
use super::sql::{Scope, is_holder};
use crate::backends::postgres::connect::NoAnswer;
use crate::backends::postgres::keys::AdvisoryKey;
use crate::machine::{Granted, Push};

/// A granted request.
pub(super) struct Hold<'a> {
    claim: Claim<'a>,
    /// The server process that granted the lock.
    pid: i32,
    token: Option<Token>,
    /// Whether its connection has a holder's badge, which is visible also to roles that can't see its statements.
    named: bool,
    since: Instant,
    /// Whether a probe was sent on its connection.
    probed: bool,
    /// Last answer of the server, and when the next probe is due.
    heard: Instant,
    due: Instant,
    /// Number of the last confirmation request that a probe has answered.
    asked: u64,
}

/// How a hold ended. The string is a condition on `pg_stat_activity` that selects its orphaned server process, if any.
pub(super) enum HoldEnd {
    Released,
    /// It had ended before the release.
    Gone(String),
    /// The connection is lost.
    Lost(Loss),
    /// The release got no answer.
    Doubt(String),
}

/// The loss of a connection.
pub(super) struct Loss {
    /// The reason, as shown to users.
    pub(super) why: String,
    pub(super) left: String,
}

/// Events of a hold.
enum Event {
    Word(Word),
    Notices(Vec<Notification>),
    Ended(String),
    Due,
}

impl<'a> Hold<'a> {
    pub(super) fn new(claim: Claim<'a>, pid: i32, token: Option<Token>, named: bool) -> Self {
        let now = Instant::now();
        // A connection without a badge gets it by the first probe, as soon as the backend's thread drives the hold.
        let due = if named { now + claim.shared.probe } else { now };
        Self { claim, pid, token, named, since: now, probed: false, heard: now, due, asked: 0 }
    }

    pub(super) fn granted(&self) -> Granted {
        Granted { token: self.token, permits: Vec::new() }
    }

    /// Drives the hold to its end.
    pub(super) async fn hold_on(mut self) -> HoldEnd {
        loop {
            match self.next().await {
                Event::Word(Word::Over) => return self.release().await,
                Event::Ended(why) => {
                    let left = self.claim.link.left();
                    return self.lost(Loss { why, left });
                }
                Event::Notices(notices) => notices.iter().for_each(|notice| self.heard_of(notice)),
                Event::Word(Word::Asked(_)) | Event::Due => {
                    if let Err(loss) = self.probe().await {
                        return self.lost(loss);
                    }
                }
            }
        }
    }

    async fn next(&mut self) -> Event {
        let Claim { shared, request, link, .. } = &mut self.claim;
        tokio::select! {
            biased;
            word = request.heard(self.asked) => return Event::Word(word),
            () = request.has_lasted() => {}
        }
        tokio::select! {
            biased;
            word = request.heard(self.asked) => Event::Word(word),
            noticed = link.line.notices() => noticed.map_or_else(Event::Ended, Event::Notices),
            () = shared.worker.timer(self.due) => Event::Due,
        }
    }

    /// Checks that the connection is alive and still holds. A release does not wait for the probe.
    async fn probe(&mut self) -> Result<(), Loss> {
        let Claim { shared, request, link, says, note } = &mut self.claim;
        let limit = answer_within(shared.probe);
        let asked = request.asked();
        self.probed = true;
        let statement = if self.named { says.probe(note) } else { says.name(note, self.since.elapsed()) };
        let answer = tokio::select! {
            biased;
            answer = link.line.ask_within(&statement, limit) => answer,
            () = request.over() => return Ok(()),
        };
        match answer {
            Ok(rows) if is_confirmed(&rows, self.pid) => {
                self.named = true;
                self.heard = Instant::now();
                self.due = self.heard + shared.probe;
                self.asked = asked;
                request.confirm(asked);
                Ok(())
            }
            Ok(_) => Err(Loss {
                why: "the server does not know this connection as a holder; a pooler that gives one client's server \
                      process to another (pool_mode=transaction) is the likely cause"
                    .to_owned(),
                left: self.astray(),
            }),
            Err(none) => Err(Loss { why: none.explained("give a sign of life").to_string(), left: link.left() }),
        }
    }

    /// Condition on `pg_stat_activity` for a server process in which a pooler may have kept the hold. A pooler renames
    /// a process when it assigns it to another client, so a session's lock is found by its key; a transaction's lock
    /// and badge end with it.
    fn astray(&self) -> String {
        match self.claim.says.common.scope {
            Scope::Session => is_holder(self.pid, self.claim.says.key),
            Scope::Transaction => self.claim.link.left(),
        }
    }

    /// Handles a break. The letter must name this hold's token, so that it never hits a later hold of this connection
    /// (P4), and contain the key of its note, as any client can write to the channel.
    fn heard_of(&mut self, notice: &Notification) {
        let Ok(Letter { key, revocation }) = serde_json::from_str(notice.payload()) else { return };
        let Claim { request, note, .. } = &mut self.claim;
        if key != note.key {
            return;
        }
        if self.token.map(Token::get) == Some(revocation.token) && note.revoked.is_none() {
            note.revoked = Some(revocation);
            request.push(Push::Revoked { seq: request.seq });
            // The next probe makes the revocation visible.
            self.due = Instant::now();
        }
    }

    async fn release(mut self) -> HoldEnd {
        match self.unlock().await {
            Ok(true) => {
                self.claim.shared.pool.put(self.claim.link);
                HoldEnd::Released
            }
            Ok(false) => {
                let name = self.claim.request.wants.name.as_str();
                tracing::warn!(
                    name,
                    "a lock was not held any more when it was released; is there a transaction pooler?"
                );
                HoldEnd::Gone(self.astray())
            }
            Err(none) => {
                tracing::debug!("{}", none.explained("release a lock"));
                HoldEnd::Doubt(self.claim.link.left())
            }
        }
    }

    /// Releases the lock. Returns whether it was held until now.
    async fn unlock(&mut self) -> Result<bool, NoAnswer> {
        let Claim { link, says, shared, .. } = &mut self.claim;
        match (&link.unlock, says.key) {
            (Some(unlock), AdvisoryKey::Number(number))
                if !says.shared && self.named == shared.common.tokens =>
            {
                let rows = link.line.run(unlock, &[&number]).await?;
                Ok(rows.first().is_some_and(|row| row.try_get(0).is_ok_and(|was_held| was_held)))
            }
            // No statement since the grant could have aborted the transaction, and nothing else can end it: no check is
            // needed.
            _ if link.direct && says.common.scope == Scope::Transaction && !self.probed => {
                link.line.ask("commit").await.map(|_| true)
            }
            _ => {
                let rows = link.line.ask(&says.unlock(self.named)).await?;
                Ok(rows.first().and_then(|row| row.get(0)) == Some("t"))
            }
        }
    }

    fn lost(&self, loss: Loss) -> HoldEnd {
        let ms = u64::try_from(self.heard.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            name = self.claim.request.wants.name.as_str(),
            server = self.claim.link.line.server(),
            why = loss.why,
            last_heard_ms_ago = ms,
            "the connection that held a lock is lost; the server may have freed it at any time since it was last heard"
        );
        HoldEnd::Lost(loss)
    }
}

/// Whether the probe was answered by the process that granted the lock, and that process still holds it.
pub(super) fn is_confirmed(rows: &[SimpleQueryRow], pid: i32) -> bool {
    let Some(row) = rows.last() else { return false };
    row.get(0) == Some(pid.to_string().as_str()) && row.get(1) == Some("t")
}
