//! Wake-ups of waiters: one connection that LISTENs, and a check whether its notifications arrive.
//!
//! Behind a transaction pooler, LISTEN takes effect in a server process that soon serves another client,
//! without an error. So this client sends itself a notification (the *echo*) over another connection. If the
//! echo arrives, there is no transaction pooler, and releases wake this client's waiters. Otherwise waiters
//! poll.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::BackendError;
use lockkeeper_backend::leased::{EntryId, Wake, Wakes};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::Notification;

use super::calls::{CLEAN, NOTIFY, column};
use super::database::{Database, Params, RowConnection};

/// The listening connection, and whether notifications arrive on it.
#[derive(Clone, Default)]
pub(super) struct Listening {
    /// Renewals use it too. `None` while there is none.
    pub(super) connection: Option<Arc<RowConnection>>,
    pub(super) hearing: Hearing,
}

/// Whether notifications arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Hearing {
    /// The echo was not sent yet or is in flight, or there is no connection.
    #[default]
    Unknown,
    Hears,
    /// The echo did not arrive in time.
    Deaf,
}

/// Time limit for the echo.
const ECHO: Duration = Duration::from_secs(2);
/// Shortest and longest pause before another listening connection is opened.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Interval at which this client asks the database to remove stale rows. `row_clean` does nothing if it ran
/// for any client in the last ten seconds.
const CLEANING: Duration = Duration::from_secs(30);
/// Maximum locks cleaned per run, of up to 20 times as many examined: a few milliseconds of work.
const CLEANED: i32 = 500;

/// Listens for wake-ups and cleans up, on the lease thread.
pub(super) struct Listener {
    pub(super) database: Arc<Database>,
    pub(super) channel: String,
    pub(super) wakes: Wakes,
    pub(super) listening: watch::Sender<Listening>,
}

impl Listener {
    /// Listens on one connection after the other, and cleans up, until all receivers of `listening` are
    /// dropped.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.listening.closed() => {}
            () = clean(&self.database) => {}
            () = self.keep_listening() => {}
        }
    }

    async fn keep_listening(&self) {
        let mut pause = PAUSES.0;
        loop {
            match self.one_connection().await {
                Ok(()) => pause = PAUSES.0,
                Err(error) => tracing::debug!(%error, "postgres: no connection for wake-ups"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn one_connection(&self) -> Result<(), BackendError> {
        let (sender, notices) = unbounded_channel();
        let connection = Arc::new(self.database.listening(&self.channel, sender).await?);
        self.listening
            .send_replace(Listening { connection: Some(connection.clone()), ..Listening::default() });
        // Notifications sent while no connection listened are lost, so all waiters try.
        self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
        self.listen(&connection, notices).await;
        self.listening.send_replace(Listening::default());
        // All waiters try again, and poll from then on: there are no notifications now.
        self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
        Ok(())
    }

    /// Delivers notifications until the connection ends, or is given up.
    async fn listen(&self, connection: &RowConnection, mut notices: UnboundedReceiver<Notification>) {
        let echo = format!("echo {:016x}", super::random());
        let params: Params<'_> = &[&self.channel, &echo];
        // The result is `Deaf` only if the echo was sent successfully and did not arrive.
        let not_heard = async {
            while self.database.call(ECHO, &NOTIFY, params).await.is_err() {
                sleep(ECHO).await;
            }
            sleep(ECHO).await;
        };
        tokio::pin!(not_heard);
        loop {
            tokio::select! {
                () = connection.given_up() => return,
                notice = notices.recv() => match notice {
                    Some(notice) => self.heard(notice.payload(), &echo),
                    None => return,
                },
                () = &mut not_heard, if self.listening.borrow().hearing == Hearing::Unknown => {
                    self.hears(Hearing::Deaf);
                }
            }
        }
    }

    fn hears(&self, hearing: Hearing) {
        self.listening.send_modify(|listening| listening.hearing = hearing);
    }

    fn heard(&self, said: &str, echo: &str) {
        match said.split_once(' ') {
            Some(("try", id)) => self.wakes.deliver(&EntryId(id.to_owned()), Wake::Try(Duration::ZERO)),
            Some(("revoked", id)) => self.wakes.deliver(&EntryId(id.to_owned()), Wake::Revoked),
            _ if said == echo => {
                self.database.set_direct();
                self.hears(Hearing::Hears);
                // Each waiter tries again, and so stores the channel on which it can be notified.
                self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
            }
            _ => {}
        }
    }
}

/// Calls `row_clean` periodically, and again at once while it removes rows. Failures are ignored: a later
/// call makes up for them.
async fn clean(database: &Database) {
    let mut again = false;
    loop {
        let removed = match database.call(ECHO, &CLEAN, &[&CLEANED, &again]).await {
            Ok(rows) => column::<i32>(rows.first(), 0).unwrap_or(0),
            Err(failure) => {
                tracing::debug!(?failure, "postgres: nothing was cleaned up");
                0
            }
        };
        again = removed > 0;
        if !again {
            sleep(CLEANING).await;
        }
    }
}
