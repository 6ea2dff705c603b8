//! The SQL of advisory locks, in the simple protocol: one message per round trip, which works through every
//! pooler.
//!
//! Planning the statement that takes a lock costs the server more than executing it. So a direct connection
//! (without a pooler) prepares the statement once ([`Common::prepare`]), and executes it with each request's
//! comment before it.

use lockkeeper_backend::{BackendError, BackendErrorKind};
use lockkeeper_core::Token;
use tokio_postgres::SimpleQueryRow;

use super::note::{Badge, IDLE, Note, Words};
use crate::keys::AdvisoryKey;

/// SQL expression: draws a token.
const TOKEN: &str = "pg_catalog.nextval('lockkeeper.token')";

/// SQL expression: makes `token` durable at the end of the transaction. A sequence writes only every 32nd
/// value to the WAL. If another, unfinished transaction wrote the WAL record that covers this token, a crash
/// could lose the record, and the token would be issued again. So a message is written to the WAL, with which
/// the commit of this transaction syncs all of the WAL up to the message. The message is omitted if the whole
/// WAL up to now is synced already and no synchronous standby is configured.
fn synced(token: &str, knows_log: bool) -> String {
    const SYNC: &str = "pg_catalog.pg_logical_emit_message(true, 'lockkeeper'::text, ''::text)";
    const UNSYNCED: &str = "(pg_catalog.pg_current_wal_flush_lsn() < pg_catalog.pg_current_wal_insert_lsn() \
        or pg_catalog.current_setting('synchronous_standby_names') <> '')";
    let unsynced = if knows_log { UNSYNCED } else { "true" };
    format!("case when {token} is not null and {unsynced} then {SYNC} end")
}

/// Fails if the server does not report its WAL flush position, which servers with a storage layer of their
/// own may refuse to do.
pub(super) const KNOWS_LOG: &str =
    "select pg_catalog.pg_current_wal_flush_lsn() <= pg_catalog.pg_current_wal_insert_lsn()";

/// A statement that draws a token in the caller's own transaction; the token is the row's first column, and
/// durable once the transaction is committed. The WAL message is always written: the server may refuse to
/// report its flush position, and an error would abort the caller's transaction.
pub(in super::super) fn draw_in_transaction() -> String {
    // The commit of this transaction waits for the disk even with `synchronous_commit = off`.
    const COMMIT_WAITS: &str = "case when pg_catalog.current_setting('synchronous_commit') = 'off' \
        then pg_catalog.set_config('synchronous_commit', 'local', true) end";
    let sync = synced("token", false);
    format!("select token, {sync}, {COMMIT_WAITS} from (select {TOKEN} as token offset 0) as t")
}

/// Timeouts to disable, so that they do not end a hold or a wait.
const PATIENT: &[&str] = &["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];
/// Further timeouts to disable, and the first version that has each.
const PATIENT_SINCE: &[(&str, u32)] = &[("idle_session_timeout", 140_000), ("transaction_timeout", 170_000)];

/// Name of the prepared statement that tries a lock.
const TRY: &str = "lockkeeper_try";

/// Properties of the server.
#[derive(Clone, Copy)]
pub(super) struct Common {
    /// Whether there is a sequence to draw tokens from.
    pub(super) tokens: bool,
    /// Whether the server answers [`KNOWS_LOG`].
    pub(super) knows_log: bool,
    /// `server_version_num`.
    pub(super) version: u32,
    /// `track_activity_query_size`.
    pub(super) shown_bytes: usize,
}

/// The statements of one request.
pub(super) struct Statements {
    pub(super) common: Common,
    pub(super) key: AdvisoryKey,
    pub(super) shared: bool,
    pub(super) badge: Badge,
    /// Whether the connection leads to the server process without a pooler, and has executed
    /// [`Common::prepare`].
    pub(super) direct: bool,
}

/// Outcome of a try or a wait.
pub(super) struct Tried {
    pub(super) held: bool,
    pub(super) token: Option<Token>,
    /// The server process that answered.
    pub(super) pid: i32,
    /// Whether the server process already had the lock before the statement.
    pub(super) before: bool,
}

fn function(family: &str, shared: bool) -> String {
    format!("pg_catalog.{family}{}", if shared { "_shared" } else { "" })
}

/// SQL expression: sets the connection's `application_name`.
fn set_name(name: &str) -> String {
    format!("pg_catalog.set_config('application_name', {name}, false)")
}

/// SQL expression: sets the `application_name` of a connection without a request.
fn set_name_idle() -> String {
    set_name(&format!("'{IDLE}'"))
}

impl Common {
    /// Statements that prepare [`TRY`] on a direct connection.
    pub(super) fn prepare(&self) -> String {
        let try_lock = |shared: bool| {
            let function = function("pg_try_advisory_lock", shared);
            format!("case when $1 is null then {function}($2, $3) else {function}($1) end")
        };
        let lock = format!("case when $4 then {} else {} end", try_lock(true), try_lock(false));
        let take = self.take(&lock, "false", Words { id: "$5", label: "$6" }, "");
        format!(
            "set plan_cache_mode = force_generic_plan; \
             prepare {TRY} (bigint, integer, integer, boolean, text, text) as {take}"
        )
    }

    /// The statement that takes a lock, draws its token, and sets the holder's badge. Its row: whether the
    /// lock was taken, the token, the server process, and whether that process had the lock before.
    ///
    /// `before` and `lock` are SQL expressions. `before`: whether the server process has the lock already;
    /// then the lock is not taken. It belongs to the same statement, since a pooler may send the next
    /// statement to another process. `lock`: takes the lock; returns whether it is held. `first`: further
    /// expressions for the innermost subquery, which is executed first. `offset 0` keeps the planner from
    /// merging the subqueries, so that the token is drawn after the lock is held.
    fn take(&self, lock: &str, before: &str, badge: Words<'_>, first: &str) -> String {
        let (token, sync) = match self.tokens {
            true => (TOKEN, synced("token", self.knows_log)),
            false => ("null::bigint", "null".to_owned()),
        };
        let named = set_name(&badge.held("token", "pg_catalog.clock_timestamp()"));
        format!(
            "select held, token, pg_catalog.pg_backend_pid(), before, case when held then {named} end, {sync} \
             from (select before, held, case when held then {token} end as token \
             from (select before, case when before then false else {lock} end as held \
             from (select {before} as before{first} offset 0) as b offset 0) as l offset 0) as g"
        )
    }
}

impl Statements {
    /// Tries the lock once. [`Tried`] reads its row.
    pub(super) fn try_lock(&self, note: &Note) -> String {
        if !self.direct {
            return self.take("pg_try_advisory_lock", note);
        }
        let (id, label) = self.badge.words();
        let comment = note.comment(self.common.shown_bytes);
        format!("{comment}execute {TRY}({}, {}, {id}, {label})", self.key.either(), self.shared)
    }

    /// Waits for the lock without a time limit. [`Tried`] reads its row.
    pub(super) fn wait(&self, note: &Note) -> String {
        self.take("pg_advisory_lock", note)
    }

    fn take(&self, family: &str, note: &Note) -> String {
        let (id, label) = self.badge.words();
        let words = Words { id: &id, label: &label };
        // A server process that has the lock can take it once more, even if it took the lock for another
        // client of a pooler.
        let before = if self.direct { "false".to_owned() } else { is_held(self.key, None) };
        let call = self.call(&function(family, self.shared));
        // A function that waits returns void, which is not null.
        let lock = if family.contains("try") { call } else { format!("{call} is not null") };
        let first = format!(", {}", set_name(&words.waiting()));
        let comment = note.comment(self.common.shown_bytes);
        format!("{comment}{}", self.common.take(&lock, &before, words, &first))
    }

    fn call(&self, function: &str) -> String {
        format!("{function}({})", self.key.arguments())
    }

    /// Checks a hold. The row: the server process, and whether that process has the lock. Through a
    /// transaction pooler the process may be another client's. The comment replaces the note shown before.
    pub(super) fn verify(&self, note: &Note) -> String {
        let comment = note.comment(self.common.shown_bytes);
        format!("{comment}select pg_catalog.pg_backend_pid(), {}", is_held(self.key, Some(self.shared)))
    }

    /// Releases the lock. Its row: whether it was held until now.
    pub(super) fn unlock(&self) -> String {
        let unlock = function("pg_advisory_unlock", self.shared);
        format!("select {}, {}", self.call(&unlock), set_name_idle())
    }

    /// Prefix of the next statement after a failed try: removes the badge. Empty on a direct connection,
    /// where a failed try sets no badge.
    pub(super) fn give_up(&self) -> String {
        if self.direct { String::new() } else { format!("select {}; ", set_name_idle()) }
    }
}

impl Tried {
    /// `None` if the answer is unreadable.
    pub(super) fn read(rows: &[SimpleQueryRow]) -> Option<Self> {
        let row = rows.last()?;
        let text = |column: usize| row.try_get(column).ok().flatten();
        let token = text(1).and_then(|token| token.parse().ok()).and_then(Token::new);
        Some(Self { held: text(0)? == "t", token, pid: text(2)?.parse().ok()?, before: text(3)? == "t" })
    }
}

/// The mode of a lock, as shown in `pg_locks`.
pub(super) fn mode(shared: bool) -> &'static str {
    if shared { "ShareLock" } else { "ExclusiveLock" }
}

/// SQL expression: whether the current server process has this lock in the given mode, or in any mode if
/// `shared` is `None`.
pub(super) fn is_held(key: AdvisoryKey, shared: Option<bool>) -> String {
    let mode = shared.map(|shared| format!(" and mode = '{}'", mode(shared))).unwrap_or_default();
    format!(
        "exists (select from pg_catalog.pg_locks where {} and granted{mode} and pid = pg_catalog.pg_backend_pid())",
        is_locked(key)
    )
}

/// Condition on `pg_stat_activity`: this server process, as long as it has this lock.
pub(super) fn is_holder(pid: i32, key: AdvisoryKey) -> String {
    format!(
        "pid = {pid} and pid in (select pid from pg_catalog.pg_locks where {} and granted)",
        is_locked(key)
    )
}

/// Condition on `pg_locks`: this key, in this database.
pub(super) fn is_locked(key: AdvisoryKey) -> String {
    let (class, object, sub) = key.in_pg_locks();
    format!(
        "{IN_THIS_DATABASE} and classid = '{class}'::oid and objid = '{object}'::oid and objsubid = {sub}"
    )
}

/// Condition on `pg_locks`: an advisory lock of this database.
pub(super) const IN_THIS_DATABASE: &str = "locktype = 'advisory' and database = \
    (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())";

/// SQL expression on `pg_stat_activity`: the start of a server process. Pids repeat after a fail-over or a
/// restart.
pub(super) const BEGAN: &str = "extract(epoch from backend_start)::text";

/// Condition on `pg_stat_activity`: this server process, and no later one with the same pid.
pub(super) fn is_process(pid: i32, began: &str) -> String {
    format!("pid = {pid} and {BEGAN} = '{began}'")
}

/// Prepares a new connection for long holds: no timeout of the role or the database may end its statements,
/// and the server sends TCP keep-alives, so that a vanished machine keeps its locks for half a minute and not
/// for hours (DistributedLock issue 230). Commits wait for the disk even with `synchronous_commit = off`. The
/// row: the server process, and its start time.
pub(super) fn prepare_session(version: u32) -> String {
    let newer = PATIENT_SINCE.iter().filter(|(_, since)| version >= *since).map(|(setting, _)| *setting);
    let patient = PATIENT.iter().copied().chain(newer).map(|setting| (setting, "0"));
    // `tcp_user_timeout` covers a network that is cut while an answer is in flight.
    let watchful = [
        ("tcp_keepalives_idle", "10"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_keepalives_count", "3"),
        ("tcp_user_timeout", "25000"),
    ];
    let settings: String = patient
        .chain(watchful)
        .map(|(setting, value)| format!(", pg_catalog.set_config('{setting}', '{value}', false)"))
        .collect();
    format!(
        "select pg_catalog.pg_backend_pid(), \
         (select {BEGAN} from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())){settings}, \
         case when pg_catalog.current_setting('synchronous_commit') = 'off' \
         then pg_catalog.set_config('synchronous_commit', 'local', false) end"
    )
}

/// The error for an unreadable answer.
pub(super) fn unreadable(doing: &str) -> BackendError {
    let what = format!("the server's answer can't be read when asked to {doing}; is it PostgreSQL?");
    BackendError::new(BackendErrorKind::Operator, what)
}
