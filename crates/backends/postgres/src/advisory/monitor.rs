//! Detects losses of all holds of a client, on the lease thread: a holder's runtime may stall or end.
//!
//! Each probe is one query for all holds. The query connection also receives the breaks. The end of a held
//! connection is reported by the connection itself. Without holds nothing is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_backend::BackendError;
use lockkeeper_core::Token;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{Notification, SimpleQueryRow};

use super::connection::QueryConnection;
use super::note::{Contact, Letter};
use super::request::AdvisoryRequest;
use super::sql::{BEGAN, IN_THIS_DATABASE, mode};
use crate::connect::{Connection, NoAnswer};
use crate::keys::AdvisoryKey;

/// Pause between attempts of a probe.
const ASK_AGAIN: Duration = Duration::from_millis(50);

pub(super) struct Monitor {
    queries: Arc<QueryConnection>,
    probe: Duration,
    last_number: AtomicU64,
    holds: Mutex<Holds>,
    /// Notified when the first hold is added.
    first: Notify,
}

#[derive(Default)]
struct Holds {
    by_number: BTreeMap<u64, Watched>,
    /// Whether the probing task waits for the first hold.
    rests: bool,
}

/// A watched hold.
pub(super) struct Watched {
    /// The id of its connection.
    pub(super) connection: String,
    pub(super) pid: i32,
    pub(super) began: String,
    pub(super) key: AdvisoryKey,
    pub(super) shared: bool,
    pub(super) token: Option<Token>,
    pub(super) request: Arc<AdvisoryRequest>,
}

impl Monitor {
    pub(super) fn new(queries: Arc<QueryConnection>, probe: Duration) -> Self {
        let (holds, first) = (Mutex::default(), Notify::new());
        Self { queries, probe, last_number: AtomicU64::new(0), holds, first }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new id for a hold, to pass to [`Self::watch`].
    pub(super) fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn watch(&self, number: u64, watched: Watched) {
        let mut holds = self.holds();
        holds.by_number.insert(number, watched);
        if std::mem::take(&mut holds.rests) {
            self.first.notify_one();
        }
    }

    /// Stops watching a hold that is released.
    pub(super) fn forget(&self, number: u64) {
        let forgotten = self.holds().by_number.remove(&number);
        drop(forgotten);
    }

    pub(super) fn lose(&self, number: u64, why: &str) {
        let lost = self.holds().by_number.remove(&number);
        if let Some(lost) = lost {
            lost.request.lose(why);
        }
    }

    /// Called when the connection with this id has ended: a hold on it is lost.
    pub(super) fn connection_ended(&self, id: &str, why: &str) {
        let of_connection = |watched: &Watched| watched.connection == id;
        let number =
            self.holds().by_number.iter().find(|(_, watched)| of_connection(watched)).map(|(n, _)| *n);
        if let Some(number) = number {
            self.lose(number, why);
        }
    }

    /// Receives breaks of this client's holds.
    pub(super) async fn receive(&self, contact: &Contact, mut notices: UnboundedReceiver<Notification>) {
        while let Some(notice) = notices.recv().await {
            if let Some((request, letter)) = self.broken_by(&notice, contact) {
                request.revoke(letter.revocation);
            }
        }
    }

    /// The request of the hold that a notification breaks. The notification must contain the hold's token, so
    /// that it never hits a later hold (P4), and the client's key, as any client can write to the channel.
    fn broken_by(&self, notice: &Notification, contact: &Contact) -> Option<(Arc<AdvisoryRequest>, Letter)> {
        let letter: Letter = serde_json::from_str(notice.payload()).ok()?;
        let token = Some(letter.revocation.token).filter(|_| letter.key == contact.key)?;
        let holds = self.holds();
        let mut holds = holds.by_number.values();
        let broken = holds.find(|watched| watched.token.map(Token::get) == Some(token))?;
        Some((broken.request.clone(), letter))
    }

    /// Probes in regular intervals while there are holds; at once when the query connection has ended.
    pub(super) async fn run(&self) {
        loop {
            self.until_held().await;
            while self.has_holds() {
                // Breaks arrive only on an open query connection, so it is replaced as soon as it ends. If
                // none can be opened, the next probe tries again.
                let ended = async {
                    match self.queries.connection().await {
                        Ok(connection) => connection.ended().cancelled().await,
                        Err(_) => pending().await,
                    }
                };
                let _ = timeout(self.probe, ended).await;
                self.probe(None).await;
            }
        }
    }

    fn has_holds(&self) -> bool {
        !self.holds().by_number.is_empty()
    }

    async fn until_held(&self) {
        loop {
            {
                let mut holds = self.holds();
                if !holds.by_number.is_empty() {
                    return;
                }
                holds.rests = true;
            }
            self.first.notified().await;
        }
    }

    /// Checks all holds, or one, and reports those that are lost.
    pub(super) async fn probe(&self, only: Option<u64>) {
        let (numbers, statement) = {
            let holds = self.holds();
            let asked = holds.by_number.iter().filter(|(number, _)| only.is_none_or(|only| only == **number));
            let asked: Vec<(u64, &Watched)> = asked.map(|(number, watched)| (*number, watched)).collect();
            if asked.is_empty() {
                return;
            }
            let numbers: Vec<u64> = asked.iter().map(|(number, _)| *number).collect();
            (numbers, held_of(&asked))
        };
        let (held, why) = match self.ask(&statement).await {
            Ok(rows) => {
                let number = |row: &SimpleQueryRow| row.get(0)?.parse::<u64>().ok();
                let why = "the server process that held it is gone, or does not hold it any more".to_owned();
                (rows.iter().filter_map(number).collect(), why)
            }
            Err(error) => (BTreeSet::new(), error.to_string()),
        };
        for lost in numbers.iter().filter(|number| !held.contains(number)) {
            self.lose(*lost, &why);
        }
    }

    /// The answer to a probe's statement, within the probe's time limit. If there is none after half of that
    /// time, the query connection is replaced, and the statement is sent again.
    async fn ask(&self, statement: &str) -> Result<Vec<SimpleQueryRow>, BackendError> {
        let doing = "confirm its locks";
        let (since, limit) = (Instant::now(), answer_within(self.probe));
        let mut silent: Option<Arc<Connection>> = None;
        let mut why = None;
        for until in [since + limit / 2, since + limit] {
            let answer = async {
                if let Some(silent) = silent.take() {
                    self.queries.close(&silent).await;
                }
                loop {
                    let error = match self.queries.connection().await {
                        Ok(connection) => {
                            silent = Some(connection.clone());
                            match connection.ask(statement).await {
                                Ok(rows) => return rows,
                                Err(none) => none.explained(doing),
                            }
                        }
                        Err(error) => error,
                    };
                    why = Some(error);
                    sleep(ASK_AGAIN).await;
                }
            };
            if let Ok(rows) = timeout_at(until, answer).await {
                return Ok(rows);
            }
        }
        Err(why.unwrap_or_else(|| NoAnswer::Silent(limit).explained(doing)))
    }
}

/// The query that returns the numbers of those holds whose server processes live and have their locks.
fn held_of(holds: &[(u64, &Watched)]) -> String {
    let array = |column: &dyn Fn(u64, &Watched) -> String| {
        let items: Vec<String> = holds.iter().map(|(number, watched)| column(*number, watched)).collect();
        items.join(",")
    };
    let in_pg_locks = |watched: &Watched| watched.key.in_pg_locks();
    // `unnest` is not qualified with its schema: PostgreSQL accepts several arrays only for the unqualified
    // name, and then always calls its own `unnest`.
    format!(
        "select number from unnest('{{{}}}'::bigint[], '{{{}}}'::integer[], '{{{}}}'::text[], '{{{}}}'::oid[], \
         '{{{}}}'::oid[], '{{{}}}'::smallint[], '{{{}}}'::text[]) \
         as held (number, pid, began, class, object, sub, mode) \
         where exists (select from pg_catalog.pg_stat_activity where pid = held.pid and {BEGAN} = held.began) \
         and exists (select from pg_catalog.pg_locks where {IN_THIS_DATABASE} and granted and pid = held.pid \
         and classid = held.class and objid = held.object and objsubid = held.sub and mode = held.mode)",
        array(&|number, _| number.to_string()),
        array(&|_, watched| watched.pid.to_string()),
        array(&|_, watched| watched.began.clone()),
        array(&|_, watched| in_pg_locks(watched).0.to_string()),
        array(&|_, watched| in_pg_locks(watched).1.to_string()),
        array(&|_, watched| in_pg_locks(watched).2.to_string()),
        array(&|_, watched| mode(watched.shared).to_owned()),
    )
}

/// Time limit for the answer to a probe; after it the connection counts as lost.
pub(super) fn answer_within(probe: Duration) -> Duration {
    probe.max(Duration::from_secs(1))
}
