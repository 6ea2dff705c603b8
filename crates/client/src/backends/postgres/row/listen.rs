//! Wake-ups of waiters: one connection that LISTENs, and a check whether its notifications arrive.
//!
//! Behind a transaction pooler a LISTEN stays with a server process that serves another client a moment later, and no
//! error reports it. So another connection of ours sends an echo notification. If it arrives, the connection is direct,
//! and releases wake our waiters. If not, waiters poll.

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

/// Whether notifications arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hearing {
    /// The echo is in flight, or there is no connection.
    Unknown,
    Hears,
    /// The echo did not arrive in time.
    Deaf,
}

/// Time limit for the echo.
const ECHO: Duration = Duration::from_secs(2);
/// Interval at which this client offers to remove stale rows. The database accepts one offer of all clients per ten
/// seconds.
const CLEANING: Duration = Duration::from_secs(30);
/// Maximum locks cleaned per run, of up to 20 times as many examined: a few milliseconds of work.
const CLEANED: i32 = 500;

pub(super) struct Listener {
    /// For echo notifications and cleaning.
    pub(super) pool: Pool,
    /// The one listening connection.
    pub(super) own: Pool,
    pub(super) channel: String,
    pub(super) notices: UnboundedReceiver<Notification>,
    pub(super) wakes: Wakes,
    pub(super) hearing: watch::Sender<Hearing>,
    pub(super) direct: Arc<AtomicBool>,
}

impl Listener {
    /// Runs until `stop`, and replaces connections that end.
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
        // Notifications sent while no connection listened are lost, so all waiters try.
        self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
        self.listen(&link).await;
        self.hearing.send_replace(Hearing::Unknown);
        // Waiters that relied on notifications fall back to polling.
        self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
    }

    async fn listen(&mut self, link: &Link) {
        let echo = format!("echo {:016x}", super::random());
        let pool = self.pool.clone();
        let channel = self.channel.clone();
        let params: Params<'_> = &[&channel, &echo];
        // `Deaf` requires an echo that was sent successfully and did not arrive.
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
                // The next try of each waiter registers where it can be notified.
                self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
            }
            _ => {}
        }
    }
}

/// Offers to clean up periodically, and continues at once while rows are removed. Failures are ignored: the next run
/// makes up for them.
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
