//! One acquire and its hold: a task of the lease thread, which alone uses the request's connection.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_backend::{AcquireRequest, Answer, Busy, CallError, Granted, LossCause, Push};
use lockkeeper_core::{End, Seq, Token};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::SessionShared;
use super::held::{HeldConnection, literal, note, take};
use super::inspect;
use crate::answer::{StatementFailure, explained};

/// How long to look whether a lost connection still holds.
const REAP_FOR: Duration = Duration::from_secs(60);
/// The pause between two looks: the first one, and the longest.
const REAP_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The answer to an acquire, or to its repetition.
pub(super) type AcquireReply = oneshot::Sender<Result<Answer, CallError>>;

/// A message to a request's task.
pub(super) enum Ask {
    /// The acquire once more: whether it holds.
    Verify(AcquireReply),
    /// Release the hold, or give up waiting.
    Finish(oneshot::Sender<Result<End, CallError>>),
}

/// One request.
pub(super) struct Request {
    pub(super) shared: Arc<SessionShared>,
    pub(super) seq: Seq,
    pub(super) asked: Arc<AcquireRequest>,
    pub(super) label: Arc<str>,
    pub(super) pushes: UnboundedSender<Push>,
    /// The server's name of the lock.
    pub(super) key: String,
    /// The number of the connection that may hold or wait; 0 if none may.
    pub(super) connection: AtomicU64,
}

/// The outcome of an acquire.
enum AcquireOutcome {
    Held(HeldConnection, Option<Token>),
    Answer(Answer),
}

impl Request {
    /// Runs the request until it has ended. Ends it as soon as the sender of `asks` is dropped.
    pub(super) async fn run(self, first: AcquireReply, mut asks: UnboundedReceiver<Ask>) {
        let mut callers = vec![first];
        let acquired = {
            let mut acquiring = pin!(self.acquire());
            loop {
                tokio::select! {
                    acquired = &mut acquiring => break Ok(acquired),
                    ask = asks.recv() => match ask {
                        Some(Ask::Verify(caller)) => callers.push(caller),
                        Some(Ask::Finish(finish)) => break Err(Some(finish)),
                        None => break Err(None),
                    },
                }
            }
        };
        match acquired {
            // The acquire was dropped, and its connection closed.
            Err(finish) => {
                tell(callers, &Ok(Answer::Finished(End::Left)));
                let end = if self.reap(None).await { Ok(End::Left) } else { Err(CallError::IN_DOUBT) };
                finish.map(|finish| finish.send(end));
            }
            Ok(Ok(AcquireOutcome::Held(held, token))) => {
                tell(callers, &Ok(Answer::Granted(granted(token))));
                self.hold(held, token, asks).await;
            }
            Ok(Ok(AcquireOutcome::Answer(answer))) => tell(callers, &Ok(answer)),
            Ok(Err(StatementFailure::Refused(error))) => {
                tell(callers, &Ok(Answer::Refused(error)));
                self.reap(None).await;
            }
            Ok(Err(StatementFailure::Silent(error))) => {
                tell(callers, &Err(error));
                self.reap(None).await;
            }
        }
    }

    fn name(&self) -> &str {
        self.asked.names[0].as_str()
    }

    async fn acquire(&self) -> Result<AcquireOutcome, StatementFailure> {
        let shared = &*self.shared;
        let held = take(shared).await?;
        self.connection.store(held.id(), Ordering::Relaxed);
        let (mut held, got) = held.try_lock(shared, &self.key).await?;
        self.connection.store(held.id(), Ordering::Relaxed);
        if !got {
            if !self.asked.wait {
                self.connection.store(0, Ordering::Relaxed);
                held.put_back(shared);
                return Ok(AcquireOutcome::Answer(Answer::Busy(self.busy().await)));
            }
            let note = note(&self.key, self.name(), &self.label, &self.asked.meta);
            let position = inspect::waiters(shared, Some(&self.key)).await.map_or(0, |waiters| waiters.len());
            // Fails if the session was dropped.
            let _ = self.pushes.send(Push::Queued { seq: self.seq, position: position as u64 });
            held.wait(shared, &self.key, &note).await?;
        }
        let mut token = None;
        if shared.has_table {
            let names = (self.name(), self.key.as_str());
            token = held
                .draw(shared, names, &self.label, &self.asked.meta)
                .await
                .map_err(StatementFailure::in_doubt)?;
        }
        Ok(AcquireOutcome::Held(held, token))
    }

    /// Who is in the way, as far as it can be seen.
    async fn busy(&self) -> Busy {
        let queued_ahead =
            inspect::waiters(&self.shared, Some(&self.key)).await.map_or(0, |found| found.len());
        let holder = inspect::holder(&self.shared, self.name(), &self.key).await.unwrap_or_default();
        Busy { holder, queued_ahead: queued_ahead as u64 }
    }

    async fn hold(&self, mut held: HeldConnection, token: Option<Token>, mut asks: UnboundedReceiver<Ask>) {
        let mut revoked = false;
        loop {
            let ask = tokio::select! {
                ask = asks.recv() => Some(ask),
                () = sleep(self.shared.probe) => None,
            };
            let caller = match ask {
                Some(None) => return self.release(held, revoked, None, asks).await,
                Some(Some(Ask::Finish(finish))) => {
                    return self.release(held, revoked, Some(finish), asks).await;
                }
                Some(Some(Ask::Verify(caller))) => Some(caller),
                None => None,
            };
            match held.check(&self.shared, &self.key, token).await {
                Ok(is_revoked) => {
                    if is_revoked && !revoked {
                        revoked = true;
                        let _ = self.pushes.send(Push::Revoked { seq: self.seq, notice: None });
                    }
                    let answer = if revoked { Answer::Revoked } else { Answer::Granted(granted(token)) };
                    tell(caller, &Ok(answer));
                }
                Err(why) => {
                    let name = self.name();
                    tracing::warn!(name, why, "the connection that held a lock is lost");
                    let (seq, why) = (self.seq, Some(why.into()));
                    let _ = self.pushes.send(Push::HoldLost { seq, cause: LossCause::Disconnected, why });
                    tell(caller, &Ok(Answer::Finished(End::Gone)));
                    self.reap(Some(held.room)).await;
                    return;
                }
            }
        }
    }

    async fn release(
        &self,
        mut held: HeldConnection,
        revoked: bool,
        finish: Option<oneshot::Sender<Result<End, CallError>>>,
        mut asks: UnboundedReceiver<Ask>,
    ) {
        let released = if revoked { End::Broken } else { End::Released };
        let end = match held.release(&self.shared, &self.key).await {
            Ok(true) => {
                held.put_back(&self.shared);
                Ok(released)
            }
            Ok(false) => {
                let name = self.name();
                tracing::warn!(name, "a lock was not held any more when it was released");
                Ok(End::Gone)
            }
            Err(failure) => {
                let refusal = explained(failure, "release a lock");
                let error = CallError { sent: true, ..CallError::refused(refusal) };
                let room = held.room;
                finish.map(|finish| finish.send(Err(error)));
                // The connection is closed: the server frees the lock, which is looked at.
                let mut reaping = pin!(self.reap(Some(room)));
                let mut known = None;
                loop {
                    tokio::select! {
                        gone = &mut reaping, if known.is_none() => known = Some(gone),
                        ask = asks.recv() => match ask {
                            None if known.is_some() => return,
                            None => {
                                reaping.await;
                                return;
                            }
                            Some(Ask::Verify(caller)) => {
                                let _ = caller.send(Ok(Answer::Finished(End::Gone)));
                            }
                            Some(Ask::Finish(finish)) => {
                                let _ = finish.send(match known {
                                    None => Err(CallError::IN_DOUBT),
                                    Some(true) => Ok(released),
                                    Some(false) => Ok(End::Gone),
                                });
                            }
                        },
                    }
                }
            }
        };
        finish.map(|finish| finish.send(end));
    }

    /// Sees to it that a connection that was closed or lost holds nothing any more: the server frees its
    /// locks once it finds out, or when it is told to end it. Whether that is certain.
    async fn reap(&self, room: Option<OwnedSemaphorePermit>) -> bool {
        let connection = self.connection.load(Ordering::Relaxed);
        if connection == 0 {
            return true;
        }
        let (mut pause, most) = REAP_PAUSES;
        let since = Instant::now();
        while since.elapsed() < REAP_FOR {
            match self.holds(connection).await {
                Ok(false) => {
                    drop(room);
                    return true;
                }
                // It may have ended by itself meanwhile.
                Ok(true) => {
                    drop(self.shared.ask("end a connection", &format!("KILL {connection}"), Vec::new()).await)
                }
                Err(error) => tracing::debug!(%error, "mysql: what is left of a request is unknown"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(most);
        }
        let name = self.name();
        tracing::warn!(
            name,
            "could not check for {REAP_FOR:?} whether a lost connection still holds at the server"
        );
        false
    }

    /// Whether this connection holds the lock, or waits for it.
    async fn holds(&self, connection: u64) -> Result<bool, lockkeeper_backend::BackendError> {
        let sql = format!(
            "SELECT COALESCE(IS_USED_LOCK({key}) = {connection}, 0) OR EXISTS (SELECT 1 FROM \
             information_schema.PROCESSLIST WHERE ID = {connection} AND INFO LIKE CONCAT('%GET_LOCK(', ?, '%'))",
            key = literal(&self.key)
        );
        let found = self.shared.ask("look at a lock", &sql, vec![literal(&self.key).into()]).await?;
        found.rows.first().map_or(Ok(false), |row| crate::lane::column(row, 0))
    }
}

fn granted(token: Option<Token>) -> Granted {
    Granted { token, ..Granted::default() }
}

/// A caller that has stopped waiting hears nothing.
fn tell(callers: impl IntoIterator<Item = AcquireReply>, answer: &Result<Answer, CallError>) {
    for caller in callers {
        let _ = caller.send(answer.clone());
    }
}
