//! A granted request: kept, looked after, and given back.
//!
//! For a short while whoever asked for it may give it back at once. From then on the backend's thread looks after it:
//! hears when its connection ends or somebody breaks it, and asks it for signs of life.

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
    /// The server process that granted it.
    pid: i32,
    token: Option<Token>,
    /// Whether its connection bears its name at the server, which those see that do not see what it says.
    named: bool,
    since: Instant,
    /// Something else was asked of its connection than its lock.
    probed: bool,
    /// When the server last said something, and when it is asked next.
    heard: Instant,
    due: Instant,
    /// How many questions of callers it has heard of.
    asked: u64,
}

/// How a hold ended. What may be left of it at the server is a condition on `pg_stat_activity`.
pub(super) enum HoldEnd {
    Released,
    /// It was over before it was released.
    Gone(String),
    /// The connection is lost.
    Lost(Loss),
    /// It was to be released, and no answer came.
    Doubt(String),
}

/// How a connection was lost.
pub(super) struct Loss {
    /// A word for people.
    pub(super) why: String,
    pub(super) left: String,
}

/// What a hold waits for.
enum Event {
    Word(Word),
    Notices(Vec<Notification>),
    Ended(String),
    Due,
}

impl<'a> Hold<'a> {
    pub(super) fn new(claim: Claim<'a>, pid: i32, token: Option<Token>, named: bool) -> Self {
        let now = Instant::now();
        // A name is due as soon as the hold lasts.
        let due = if named { now + claim.shared.probe } else { now };
        Self { claim, pid, token, named, since: now, probed: false, heard: now, due, asked: 0 }
    }

    pub(super) fn granted(&self) -> Granted {
        Granted { token: self.token, permits: Vec::new() }
    }

    /// Until it ends, however.
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

    /// Looks whether the connection is still there and holds. A request that ends meanwhile does not wait for it.
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

    /// What a pooler may have kept of the hold, as a condition on `pg_stat_activity`. It renames its processes as it
    /// hands them on; a transaction's lock and name end with it.
    fn astray(&self) -> String {
        match self.claim.says.common.scope {
            Scope::Session => is_holder(self.pid, self.claim.says.key),
            Scope::Transaction => self.claim.link.left(),
        }
    }

    /// A break, if the letter names this hold's token, so that it never hits a later hold of this connection (P4), and
    /// knows its note: on the channel anybody can write.
    fn heard_of(&mut self, notice: &Notification) {
        let Ok(Letter { key, revocation }) = serde_json::from_str(notice.payload()) else { return };
        let Claim { request, note, .. } = &mut self.claim;
        if key != note.key {
            return;
        }
        if self.token.map(Token::get) == Some(revocation.token) && note.revoked.is_none() {
            note.revoked = Some(revocation);
            request.push(Push::Revoked { seq: request.seq });
            // Shown with the next probe.
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

    /// Whether it was held until now.
    async fn unlock(&mut self) -> Result<bool, NoAnswer> {
        let Claim { link, says, shared, .. } = &mut self.claim;
        match (&link.unlock, says.key) {
            (Some(unlock), AdvisoryKey::Number(number))
                if !says.shared && self.named == shared.common.tokens =>
            {
                let rows = link.line.run(unlock, &[&number]).await?;
                Ok(rows.first().is_some_and(|row| row.try_get(0).is_ok_and(|was_held| was_held)))
            }
            // Nothing was asked that could have failed, and with it the transaction; nobody else can end it.
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

/// Whether the answer to a probe came from the process that granted the lock, and it still has it.
pub(super) fn is_confirmed(rows: &[SimpleQueryRow], pid: i32) -> bool {
    let Some(row) = rows.last() else { return false };
    row.get(0) == Some(pid.to_string().as_str()) && row.get(1) == Some("t")
}
