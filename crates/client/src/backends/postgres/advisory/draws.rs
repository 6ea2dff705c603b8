//! Tokens for holds that can't draw their own: those of transactions.
//!
//! Group commit: requests that arrive during a draw are served together by the next statement, which is synced once.
//! Each token is drawn after its lock is held, since only holders request one; and two holds that exclude each other
//! never wait here at the same time. One of the waiting callers draws for all, on a dedicated connection.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::Token;
use tokio::sync::oneshot;
use tokio_postgres::Statement;

use super::note::IDLE;
use super::pool::unreadable;
use super::server::PID;
use super::sql::{PLAN_ONCE, draw};
use crate::backends::postgres::connect::{Connector, NoAnswer};
use crate::backends::postgres::line::Line;
use crate::error::BackendError;

type Drawn = Result<Token, BackendError>;

pub(super) struct Draws {
    connector: Connector,
    knows_log: bool,
    queue: Mutex<Queue>,
    /// Locked by the caller that draws.
    line: tokio::sync::Mutex<Option<Drawing>>,
}

#[derive(Default)]
struct Queue {
    /// Whether a caller draws. The first waiting caller is next, unless it has been served by then.
    is_drawn: bool,
    waiting: Vec<oneshot::Sender<Option<Drawn>>>,
}

/// A connection for drawing.
struct Drawing {
    line: Line,
    /// The prepared statement, on a direct connection only.
    prepared: Option<Statement>,
}

/// The turn to draw; on drop it passes to the first waiting caller.
struct Turn<'a>(&'a Draws);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        while !queue.waiting.is_empty() {
            if queue.waiting.remove(0).send(None).is_ok() {
                return;
            }
        }
        queue.is_drawn = false;
    }
}

impl Draws {
    pub(super) fn new(connector: Connector, knows_log: bool) -> Self {
        Self { connector, knows_log, queue: Mutex::default(), line: tokio::sync::Mutex::default() }
    }

    /// Draws a durable token, greater than every token drawn before this call.
    ///
    /// # Errors
    /// The server is unreachable, or refuses.
    pub(super) async fn draw(&self) -> Drawn {
        let others = {
            let mut queue = self.queue();
            std::mem::replace(&mut queue.is_drawn, true).then(|| {
                let (told, tells) = oneshot::channel();
                queue.waiting.push(told);
                tells
            })
        };
        if let Some(others) = others
            && let Ok(Some(drawn)) = others.await
        {
            return drawn;
        }
        let _turn = Turn(self);
        let mut drawing = self.line.lock().await;
        let served = std::mem::take(&mut self.queue().waiting);
        match self.tokens(&mut drawing, served.len() + 1).await {
            Ok(mut tokens) => {
                let mine = tokens.pop();
                for (waits, token) in served.into_iter().zip(tokens) {
                    // A cancelled caller leaves a gap, like any unused token.
                    let _ = waits.send(Some(Ok(token)));
                }
                mine.ok_or_else(|| unreadable("draw tokens"))
            }
            Err(error) => {
                for waits in served {
                    let _ = waits.send(Some(Err(error.clone())));
                }
                Err(error)
            }
        }
    }

    /// Draws `count` tokens on the existing connection or a new one. If an existing one has ended, retries once.
    async fn tokens(&self, drawing: &mut Option<Drawing>, count: usize) -> Result<Vec<Token>, BackendError> {
        let doing = "draw tokens";
        let was_there = drawing.is_some();
        let rows = match self.ask(drawing, count).await? {
            Err(NoAnswer::Ended(_)) if was_there => self.ask(drawing, count).await?,
            asked => asked,
        };
        let words = rows.map_err(|none| none.explained(doing))?.ok_or_else(|| unreadable(doing))?;
        let tokens: Vec<Token> =
            words.split(' ').filter_map(|token| token.parse().ok()).filter_map(Token::new).collect();
        if tokens.len() == count { Ok(tokens) } else { Err(unreadable(doing)) }
    }

    async fn ask(
        &self,
        drawing: &mut Option<Drawing>,
        count: usize,
    ) -> Result<Result<Option<String>, NoAnswer>, BackendError> {
        let mut used = match drawing.take() {
            Some(made) => made,
            None => Box::pin(self.make()).await?,
        };
        let many = i32::try_from(count).unwrap_or(i32::MAX);
        let asked = match &used.prepared {
            Some(prepared) => {
                let rows = used.line.run(prepared, &[&many]).await;
                rows.map(|rows| rows.first()?.try_get(0).ok())
            }
            None => {
                let rows = used.line.ask(&draw(&many.to_string(), self.knows_log)).await;
                rows.map(|rows| rows.first()?.get(0).map(str::to_owned))
            }
        };
        if matches!(asked, Ok(_) | Err(NoAnswer::Refused(_))) {
            *drawing = Some(used);
        }
        Ok(asked)
    }

    async fn make(&self) -> Result<Drawing, BackendError> {
        let doing = "prepare a connection for tokens";
        let mut line = self.connector.line(IDLE).await?;
        let rows = line.ask(PID).await.map_err(|none| none.explained(doing))?;
        let pid: Option<i32> = rows.first().and_then(|row| row.get(0)?.parse().ok());
        let mut prepared = None;
        if pid.is_some() && line.cancel().process().await == pid {
            line.ask(PLAN_ONCE).await.map_err(|none| none.explained(doing))?;
            let statement = line.prepare(&draw("$1::integer", self.knows_log)).await;
            prepared = Some(statement.map_err(|none| none.explained(doing))?);
        }
        Ok(Drawing { line, prepared })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
