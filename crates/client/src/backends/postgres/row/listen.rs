//! Hearing that it may be one's turn: a connection that listens, and whether it hears at all.
//!
//! Behind a transaction pooler a LISTEN stays with a connection that is somebody else's a moment later. Nobody says so;
//! so a word to ourselves is sent by another connection. If it comes back, nothing lies between, and releases wake our
//! waiters. If not, they look again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio_postgres::Notification;
use tokio_util::sync::CancellationToken;

use super::calls::{CLEAN, NOTIFY, column};
use super::pool::{Link, Params, Pool};
use crate::backends::leased::{EntryId, Wake, Wakes};

/// What is known of our listening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hearing {
    /// A word to ourselves is on its way, or there is no connection.
    Unknown,
    Hears,
    /// It did not come back.
    Deaf,
}

/// How long a word to ourselves may take.
const ECHO: Duration = Duration::from_secs(2);
/// How often we offer to remove what nobody needs any more. The database does it once for all clients.
const CLEANING: Duration = Duration::from_secs(30);
/// How many locks are looked at then: some milliseconds of work.
const CLEANED: i32 = 500;

pub(super) struct Listener {
    /// For the calls: words to ourselves, and cleaning.
    pub(super) pool: Pool,
    /// The one connection that listens.
    pub(super) own: Pool,
    pub(super) channel: String,
    pub(super) notices: UnboundedReceiver<Notification>,
    pub(super) wakes: Wakes,
    pub(super) hearing: watch::Sender<Hearing>,
    pub(super) direct: Arc<AtomicBool>,
}

impl Listener {
    /// Listens until `stop`, over as many connections as it takes.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let pool = self.pool.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = clean(pool) => {}
            () = async { loop { self.one_connection().await } } => {}
        }
    }

    async fn one_connection(&mut self) {
        let link = self.own.link().await;
        // While nobody listened, anything may have been said.
        self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
        self.listen(&link).await;
        self.hearing.send_replace(Hearing::Unknown);
        // Who counted on being woken looks for itself.
        self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
    }

    async fn listen(&mut self, link: &Link) {
        let echo = format!("echo {:016x}", super::random());
        let pool = self.pool.clone();
        let channel = self.channel.clone();
        let params: Params<'_> = &[&channel, &echo];
        // Deaf is who hears nothing although it was said.
        let not_heard = async {
            while pool.call(ECHO, &NOTIFY, params).await.is_err() {
                tokio::time::sleep(ECHO).await;
            }
            tokio::time::sleep(ECHO).await;
        };
        tokio::pin!(not_heard);
        loop {
            tokio::select! {
                () = link.over() => return,
                notice = self.notices.recv() => match notice {
                    Some(notice) => self.heard(notice.payload(), &echo),
                    None => return,
                },
                () = &mut not_heard, if *self.hearing.borrow() == Hearing::Unknown => {
                    self.hearing.send_replace(Hearing::Deaf);
                }
            }
        }
    }

    fn heard(&self, said: &str, echo: &str) {
        match said.split_once(' ') {
            Some(("try", id)) => self.wakes.deliver(&EntryId(id.to_owned()), Wake::Try(Duration::ZERO)),
            Some(("revoked", id)) => self.wakes.deliver(&EntryId(id.to_owned()), Wake::Revoked),
            _ if said == echo => {
                self.direct.store(true, Ordering::Relaxed);
                self.hearing.send_replace(Hearing::Hears);
                // Whoever waits already says with its next try where it can be woken.
                self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
            }
            _ => {}
        }
    }
}

/// Offers to clean up, for as long as it runs, and goes on at once while there is something to remove. Whether it worked
/// matters to nobody: the next one does.
async fn clean(pool: Pool) {
    let mut again = false;
    loop {
        let removed = match pool.call(ECHO, &CLEAN, &[&CLEANED, &again]).await {
            Ok(rows) => column::<i32>(rows.first(), 0).unwrap_or(0),
            Err(failure) => {
                tracing::debug!(?failure, "postgres: nothing was cleaned up");
                0
            }
        };
        again = removed > 0;
        if !again {
            tokio::time::sleep(CLEANING).await;
        }
    }
}
