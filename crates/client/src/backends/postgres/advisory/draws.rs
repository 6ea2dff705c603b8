//! Tokens for holds that can't draw their own: those of transactions.
//!
//! What waits for a token while others are drawn is drawn for at once, by one statement that is synced once. Each token
//! is drawn after its lock is held, since only who holds comes here; and two holds that exclude each other never wait here
//! at the same time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::Token;
use tokio::sync::oneshot;

use super::Shared;
use super::pool::unreadable;
use super::sql::draw;
use crate::error::BackendError;

type Drawn = Result<Token, BackendError>;

/// Those who wait for tokens.
#[derive(Default)]
pub(super) struct Draws {
    waiting: Mutex<Vec<oneshot::Sender<Drawn>>>,
    /// One draws at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Draws {
    /// A token that is durable, and above each that was drawn before this call.
    ///
    /// # Errors
    /// The server is out of reach, or refuses.
    pub(super) async fn draw(&self, shared: &Shared) -> Drawn {
        let (waits, mut mine) = oneshot::channel();
        self.waiting().push(waits);
        let _turn = self.turn.lock().await;
        if let Ok(drawn) = mine.try_recv() {
            return drawn;
        }
        let served = std::mem::take(&mut *self.waiting());
        match self.tokens(shared, served.len()).await {
            Ok(tokens) => {
                for (waits, token) in served.into_iter().zip(tokens) {
                    // Who is gone leaves a gap, as any token does that nobody uses.
                    let _ = waits.send(Ok(token));
                }
            }
            Err(error) => {
                for waits in served {
                    let _ = waits.send(Err(error.clone()));
                }
            }
        }
        mine.try_recv().unwrap_or_else(|_| Err(unreadable("draw a token")))
    }

    async fn tokens(&self, shared: &Shared, count: usize) -> Result<Vec<Token>, BackendError> {
        let doing = "draw tokens";
        let rows = shared.desk.ask(&draw(count, shared.common.knows_log), doing).await?;
        let words = rows.first().and_then(|row| row.get(0)).ok_or_else(|| unreadable(doing))?;
        let tokens: Vec<Token> =
            words.split(' ').filter_map(|token| token.parse().ok()).filter_map(Token::new).collect();
        if tokens.len() == count { Ok(tokens) } else { Err(unreadable(doing)) }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<oneshot::Sender<Drawn>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
