//! One request, from its first try to the end of its hold: the connection that holds for it, and all that is said on it.
//!
//! Runs on the connections' thread. A connection goes back to the pool only if it certainly holds nothing; in any
//! doubt it is ended, and what may be left of it at the server is ended there.

use std::pin::{Pin, pin};
use std::time::Duration;

use lockkeeper_core::{End, Token};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::{Notification, SimpleQueryRow};

use super::note::{Badge, Letter, Note, random};
use super::pool::{Link, unreadable};
use super::server::{answer_within, transaction_pooler};
use super::session::{Ending, Request};
use super::sql::{Scope, Statements, is_holder};
use super::{Shared, look};
use crate::backend::CallError;
use crate::backends::postgres::connect::NoAnswer;
use crate::error::{BackendError, BackendErrorKind, LossCause};
use crate::machine::{Answer, Granted, Push};

/// How often the server is asked to give up a wait, and how long each time is waited for it.
const CANCELS: u32 = 3;
const CANCEL_AGAIN: Duration = Duration::from_secs(1);
/// For how long what may be left at the server is looked for. By then the server has found out by itself that nobody is
/// there any more (`prepare_session`).
const SEE_TO_FOR: Duration = Duration::from_secs(60);
const SEE_TO_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What came of asking.
enum Asked<'a> {
    Held(Box<Hold<'a>>),
    /// Nothing is held, and nothing is left.
    Not(Result<Answer, CallError>),
    /// Something may be left at the server, by this condition on `pg_stat_activity`.
    Doubt(String),
    /// A pooler gave the statement to a server process that is not this connection's alone. The lock stays with that
    /// process, by this condition on `pg_stat_activity`.
    Pooled(String),
}

/// A granted request.
struct Hold<'a> {
    shared: &'a Shared,
    request: &'a Request,
    link: Link,
    says: Statements,
    note: Note,
    /// The server process that granted it.
    pid: i32,
    granted: Granted,
    /// When the server last said something, and when it is asked next.
    heard: Instant,
    due: Instant,
    /// Callers who want to know now.
    asked: watch::Receiver<u64>,
}

/// How a hold ended.
enum HoldEnd {
    Released,
    /// It was over before it was released.
    Gone,
    /// The connection is lost.
    Lost(Loss),
    /// It was to be released, and no answer came.
    Doubt,
}

/// How a connection was lost.
struct Loss {
    /// A word for people.
    why: String,
    /// What may be left at the server, as a condition on `pg_stat_activity`.
    left: String,
}

/// However its keeper ends, nobody waits for a request for ever.
struct Told<'a>(&'a Request);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Carries a request to its end.
pub(super) async fn keep(shared: &Shared, request: &Request) {
    let _told = Told(request);
    let slot = match shared.pool.slot() {
        Ok(slot) => slot,
        Err(error) => {
            request.answer(Ok(Answer::Refused(error)));
            return request.end(Ending::Sure(End::NotAcquired));
        }
    };
    let left = match ask(shared, request).await {
        Asked::Not(answer) => {
            request.answer(answer);
            return request.end(Ending::Sure(End::Left));
        }
        Asked::Doubt(left) => {
            request.answer(Err(CallError { sent: true }));
            request.end(Ending::Unsure);
            left
        }
        Asked::Pooled(left) => {
            request.answer(Ok(Answer::Refused(transaction_pooler().into())));
            request.end(Ending::Unsure);
            left
        }
        Asked::Held(hold) => {
            request.answer(Ok(Answer::Granted(hold.granted.clone())));
            let (worn, astray) = (hold.says.badge.is_worn(), hold.astray());
            match hold.hold_on().await {
                HoldEnd::Released => return request.end(Ending::Sure(End::Released)),
                HoldEnd::Gone => {
                    request.end(Ending::Sure(End::Gone));
                    astray
                }
                HoldEnd::Lost(Loss { why, left }) => {
                    request.push(Push::HoldLost { seq: request.seq, cause: LossCause::Disconnected });
                    request.end(Ending::Sure(End::Gone));
                    tracing::debug!(
                        name = request.name.as_str(),
                        why,
                        "looks for what is left of a lost hold"
                    );
                    left
                }
                HoldEnd::Doubt => {
                    request.end(Ending::Unsure);
                    worn
                }
            }
        }
    };
    // What is left has no connection of ours any more.
    drop(slot);
    let known = see_to(shared, request, &left).await;
    // What was told as certain stays; nobody can say any more what became of what could not be looked for.
    request.settle(if known { End::Released } else { End::Gone });
}

/// Asks for the lock, and waits for it if that is wanted.
async fn ask<'a>(shared: &'a Shared, request: &'a Request) -> Asked<'a> {
    let prepared = tokio::select! {
        () = request.over.cancelled() => return left(),
        prepared = prepare(shared, request) => prepared,
    };
    let (says, note, link) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Asked::Not(failed(error)),
    };
    let doing = "take a lock";
    let tried = match link.connection.ask(&says.try_lock(&note)).await {
        Ok(rows) => rows,
        Err(none) => return undone(none, &says, doing),
    };
    let Some(tried) = Tried::read(&tried) else { return Asked::Not(Ok(Answer::Refused(unreadable(doing)))) };
    if let Some(pooled) = tried.pooled(&link, &says) {
        return pooled;
    }
    if tried.held {
        return granted(shared, request, link, says, note, tried).await;
    }
    if request.wait && !request.over.is_cancelled() {
        wait(shared, request, link, says, note).await
    } else {
        busy(shared, link, &says).await
    }
}

async fn prepare(shared: &Shared, request: &Request) -> Result<(Statements, Note, Link), BackendError> {
    let no_random_bytes = |error| {
        let what = format!("the system gives no random bytes: {error}");
        BackendError::new(BackendErrorKind::Operator, what)
    };
    let badge = Badge::new(&request.label).map_err(no_random_bytes)?;
    let note = Note {
        key: random().map_err(no_random_bytes)?,
        name: request.name.as_str().to_owned(),
        owner: request.label.to_string(),
        meta: request.meta.clone(),
        revoked: None,
    };
    let link = shared.pool.take().await?;
    let says = Statements {
        common: shared.common,
        key: shared.key_of(&request.name).await?,
        shared: request.shared_mode,
        badge,
        prepared: link.prepared,
    };
    Ok((says, note, link))
}

/// It isn't free, and the caller does not wait: says who is in the way.
async fn busy<'a>(shared: &Shared, link: Link, says: &Statements) -> Asked<'a> {
    let look = format!("{}; {}", says.give_up(), look::statement(shared.common.version, Some(says.key)));
    match link.connection.ask(&look).await {
        Ok(rows) => {
            shared.pool.put(link);
            Asked::Not(Ok(Answer::Busy(look::busy(&rows))))
        }
        Err(none) => undone(none, says, "look at a lock"),
    }
}

async fn wait<'a>(
    shared: &'a Shared,
    request: &'a Request,
    link: Link,
    says: Statements,
    note: Note,
) -> Asked<'a> {
    let doing = "wait for a lock";
    let ahead = match link.connection.ask(&look::statement(shared.common.version, Some(says.key))).await {
        Ok(rows) => look::busy(&rows).queued_ahead,
        Err(none) => return undone(none, &says, doing),
    };
    request.push(Push::Queued { seq: request.seq, position: ahead });
    let statement = says.wait(&note);
    let answer = {
        let mut waiting = pin!(link.connection.wait_for(&statement));
        tokio::select! {
            answer = &mut waiting => Some(answer),
            () = request.over.cancelled() => {
                match cancelled(&link, waiting).await {
                    // It may have been granted all the same, before or while it was cancelled (madelson #147).
                    true => None,
                    false => return Asked::Doubt(says.badge.is_worn()),
                }
            }
        }
    };
    let rows = match answer {
        Some(Ok(rows)) => rows,
        Some(Err(none)) => return undone(none, &says, doing),
        None => return forget(&link, &says).await,
    };
    match Tried::read(&rows) {
        Some(tried) => match tried.pooled(&link, &says) {
            Some(pooled) => pooled,
            None => granted(shared, request, link, says, note, tried).await,
        },
        None => Asked::Not(Ok(Answer::Refused(unreadable(doing)))),
    }
}

type Rows = Result<Vec<SimpleQueryRow>, NoAnswer>;

/// Has the server give up a wait. Whether the statement is over; only then can another one follow.
async fn cancelled(link: &Link, mut waiting: Pin<&mut impl Future<Output = Rows>>) -> bool {
    for _ in 0..CANCELS {
        if let Err(why) = link.connection.cancel().await {
            tracing::debug!(why, "the server can't be asked to give up a wait");
        }
        match timeout(CANCEL_AGAIN, &mut waiting).await {
            Ok(Ok(_) | Err(NoAnswer::Refused(_))) => return true,
            Ok(Err(_)) => return false,
            // The request came before the statement, or not at all.
            Err(_) => {}
        }
    }
    false
}

/// Gives back whatever a cancelled wait has, and ends its connection: a cancel that is late could hit what is next.
async fn forget<'a>(link: &Link, says: &Statements) -> Asked<'a> {
    let clear = match says.common.scope {
        Scope::Session => "select pg_catalog.pg_advisory_unlock_all()",
        Scope::Transaction => "rollback",
    };
    match link.connection.ask(clear).await {
        Ok(_) => left(),
        Err(_) => Asked::Doubt(says.badge.is_worn()),
    }
}

/// A statement without an answer that helps. Its connection ends with this.
fn undone<'a>(none: NoAnswer, says: &Statements, doing: &str) -> Asked<'a> {
    match none {
        NoAnswer::Refused(_) => Asked::Not(Ok(Answer::Refused(none.explained(doing)))),
        NoAnswer::Ended(_) | NoAnswer::Silent(_) => {
            tracing::debug!("{}", none.explained(doing));
            Asked::Doubt(says.badge.is_worn())
        }
    }
}

fn failed(error: BackendError) -> Result<Answer, CallError> {
    match error.kind {
        BackendErrorKind::Unreachable => {
            tracing::debug!("{error}");
            Err(CallError { sent: false })
        }
        _ => Ok(Answer::Refused(error)),
    }
}

/// Nobody waits for this answer.
fn left<'a>() -> Asked<'a> {
    Asked::Not(Ok(Answer::Finished(End::Left)))
}

/// The last row of a try.
struct Tried {
    pid: i32,
    held: bool,
    token: Option<Token>,
    /// The server process had the lock before it was asked for.
    before: bool,
}

impl Tried {
    fn read(rows: &[SimpleQueryRow]) -> Option<Self> {
        let row = rows.last()?;
        let token = row.try_get(2).ok().flatten().and_then(|token| token.parse().ok()).and_then(Token::new);
        let before = row.try_get(3).ok().flatten() == Some("t");
        Some(Self { pid: row.get(0)?.parse().ok()?, held: row.try_get(1).ok()?? == "t", token, before })
    }

    /// The proofs of a transaction pooler: another server process answers than the connection's own, or that has the
    /// lock already, by somebody whose hold is worth as little. What is left ends with the process.
    fn pooled<'a>(&self, link: &Link, says: &Statements) -> Option<Asked<'a>> {
        let foreign = link.pid.as_ref().is_some_and(|pid| pid.number != self.pid);
        if self.before || (foreign && self.held) {
            return Some(Asked::Pooled(is_holder(self.pid, says.key)));
        }
        foreign.then(|| Asked::Not(Ok(Answer::Refused(transaction_pooler().into()))))
    }
}

/// The lock is held: gets it a token, if its statement did not bring one.
async fn granted<'a>(
    shared: &'a Shared,
    request: &'a Request,
    link: Link,
    says: Statements,
    note: Note,
    tried: Tried,
) -> Asked<'a> {
    let now = Instant::now();
    let granted = Granted { token: tried.token, permits: Vec::new() };
    let (pid, asked) = (tried.pid, request.asked.subscribe());
    let mut hold =
        Box::new(Hold { shared, request, link, says, note, pid, granted, heard: now, due: now, asked });
    if shared.common.tokens && shared.common.scope == Scope::Transaction {
        // Not in its own transaction: what that has drawn is durable only at its end.
        let token = match shared.draws.draw(shared).await {
            Ok(token) => token,
            Err(error) => {
                return match hold.link.connection.ask(&hold.says.give_up()).await {
                    Ok(_) => Asked::Not(failed(error)),
                    Err(_) => Asked::Doubt(hold.says.badge.is_worn()),
                };
            }
        };
        hold.granted.token = Some(token);
        let named = hold.says.probe_with_token(&hold.note, token);
        match hold.link.connection.ask(&named).await {
            Ok(rows) if hold.is_confirmed(&rows) => {}
            Ok(_) => return Asked::Doubt(hold.says.badge.is_worn()),
            Err(none) => return undone(none, &hold.says, "hold a lock"),
        }
    }
    if shared.common.tokens && hold.granted.token.is_none() {
        return Asked::Not(Ok(Answer::Refused(unreadable("draw a token"))));
    }
    hold.due = Instant::now() + shared.probe;
    Asked::Held(hold)
}

impl Hold<'_> {
    async fn hold_on(mut self: Box<Self>) -> HoldEnd {
        loop {
            let due = self.due;
            tokio::select! {
                biased;
                () = self.request.over.cancelled() => return self.release().await,
                () = self.link.connection.ended().cancelled() => {
                    let why = self.link.connection.why_ended().to_owned();
                    let left = self.says.badge.is_worn();
                    return self.lost(Loss { why, left });
                }
                Some(notice) = self.link.notices.recv() => self.heard_of(&notice),
                Ok(()) = self.asked.changed() => self.due = Instant::now(),
                () = sleep_until(due) => {
                    if let Err(loss) = self.probe().await {
                        return self.lost(loss);
                    }
                }
            }
        }
    }

    /// Looks whether the connection is still there and holds. A request that ends meanwhile does not wait for it.
    async fn probe(&mut self) -> Result<(), Loss> {
        let limit = answer_within(self.shared.probe);
        let asked = *self.asked.borrow_and_update();
        let statement = self.says.probe(&self.note);
        let answer = tokio::select! {
            answer = self.link.connection.ask_within(&statement, limit) => answer,
            () = self.request.over.cancelled() => return Ok(()),
        };
        match answer {
            Ok(rows) if self.is_confirmed(&rows) => {
                self.heard = Instant::now();
                self.due = self.heard + self.shared.probe;
                self.request.confirmed.send_replace(asked);
                Ok(())
            }
            Ok(_) => Err(Loss {
                why: "the server does not know this connection as a holder; a pooler that gives one client's server \
                      process to another (pool_mode=transaction) is the likely cause"
                    .to_owned(),
                left: self.astray(),
            }),
            Err(none) => Err(Loss {
                why: none.explained("give a sign of life").to_string(),
                left: self.says.badge.is_worn(),
            }),
        }
    }

    /// What a pooler may have kept of the hold, as a condition on `pg_stat_activity`. It renames its processes as it
    /// hands them on; a transaction's lock and name end with it.
    fn astray(&self) -> String {
        match self.says.common.scope {
            Scope::Session => is_holder(self.pid, self.says.key),
            Scope::Transaction => self.says.badge.is_worn(),
        }
    }

    /// Whether the answer to a probe came from the process that granted the lock, and it still has it.
    fn is_confirmed(&self, rows: &[SimpleQueryRow]) -> bool {
        let Some(row) = rows.last() else { return false };
        row.get(0) == Some(self.pid.to_string().as_str()) && row.get(1) == Some("t")
    }

    /// A break, if the letter names this hold's token, so that it never hits a later hold of this connection (P4), and
    /// knows its note: on the channel anybody can write.
    fn heard_of(&mut self, notice: &Notification) {
        let Ok(Letter { key, revocation }) = serde_json::from_str(notice.payload()) else { return };
        if key != self.note.key {
            return;
        }
        if self.granted.token.map(Token::get) == Some(revocation.token) && self.note.revoked.is_none() {
            self.note.revoked = Some(revocation);
            self.request.push(Push::Revoked { seq: self.request.seq });
            // Shown with the next probe.
            self.due = Instant::now();
        }
    }

    async fn release(self: Box<Self>) -> HoldEnd {
        match self.link.connection.ask(&self.says.unlock()).await {
            Ok(rows) if rows.first().and_then(|row| row.get(0)) == Some("t") => {
                self.shared.pool.put(self.link);
                HoldEnd::Released
            }
            Ok(_) => {
                let name = self.request.name.as_str();
                tracing::warn!(
                    name,
                    "a lock was not held any more when it was released; is there a transaction pooler?"
                );
                HoldEnd::Gone
            }
            Err(none) => {
                tracing::debug!("{}", none.explained("release a lock"));
                HoldEnd::Doubt
            }
        }
    }

    fn lost(&self, loss: Loss) -> HoldEnd {
        let ms = u64::try_from(self.heard.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            name = self.request.name.as_str(),
            server = self.link.connection.server(),
            why = loss.why,
            last_heard_ms_ago = ms,
            "the connection that held a lock is lost; the server may have freed it at any time since it was last heard"
        );
        HoldEnd::Lost(loss)
    }
}

/// Ends what may be left of a connection at the server, which may take hours to find out that nobody is there any more.
/// Whether it is known that nothing is left.
async fn see_to(shared: &Shared, request: &Request, which: &str) -> bool {
    let (mut pause, most) = SEE_TO_PAUSES;
    let since = Instant::now();
    while since.elapsed() < SEE_TO_FOR {
        match look::end_process(shared, &format!("({which}) and usename = current_user")).await {
            Ok(()) => return true,
            Err(error) => tracing::debug!(name = request.name.as_str(), "what is left of a request: {error}"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(most);
    }
    tracing::warn!(
        name = request.name.as_str(),
        "could not look for {SEE_TO_FOR:?} whether a lost connection still holds at the server; the server ends it when \
         its own keep-alives fail"
    );
    false
}
