//! The statements of advisory locks. All are of the simple protocol, one message for one round trip; what is asked of
//! the server beside the lock stands in the same message.

use super::note::{Badge, IDLE, Note};
use crate::backends::postgres::keys::AdvisoryKey;

/// What holds: the session or the transaction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Session,
    Transaction,
}

/// Draws a token.
pub(in super::super) const TOKEN: &str = "pg_catalog.nextval('lockkeeper.token')";
/// Makes the transaction one that is synced to the disk at its end: a sequence logs only every 32nd value, and a token
/// that somebody else's unfinished transaction covers could come again after a crash.
const SYNC: &str = "pg_catalog.pg_logical_emit_message(true, 'lockkeeper'::text, ''::text)";

/// Draws a token in a transaction of its own. Its row: the token.
pub(super) fn draw() -> String {
    format!("select {TOKEN}, {SYNC}")
}

/// What a transaction must not be ended by: it holds for as long as its holder likes.
const PATIENT: &[&str] = &["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];
/// The first version with a limit for whole transactions.
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;
/// The first version with a limit for idle sessions.
const SESSION_TIMEOUT_SINCE: u32 = 140_000;

/// Everything one request says to the server.
pub(super) struct Statements {
    pub(super) scope: Scope,
    pub(super) key: AdvisoryKey,
    pub(super) shared: bool,
    /// Whether there is a sequence to draw tokens from.
    pub(super) tokens: bool,
    pub(super) badge: Badge,
    /// Of the server: `server_version_num` and `track_activity_query_size`.
    pub(super) version: u32,
    pub(super) shown_bytes: usize,
}

impl Statements {
    /// One try. Its last row: the server process, whether it holds, the token; and of a session at the end, whether
    /// the server process had this lock before it was asked for. That is asked in the same statement, since a pooler
    /// may give the next one to another process.
    pub(super) fn try_lock(&self, note: &Note) -> String {
        let (comment, waiting, name) =
            (note.comment(self.shown_bytes), self.badge.waiting(), self.function("pg_try_advisory"));
        let lock = self.locked(&format!("{name}({})", self.key.arguments()));
        match self.scope {
            Scope::Session => {
                format!("{comment}select pg_catalog.set_config('application_name', {waiting}, false); {lock}")
            }
            // Not read-only: some poolers send what only reads to a standby, whose locks exclude nobody here. Nor
            // serializable: that would keep a snapshot, and with it every dead row, for as long as the hold lasts.
            Scope::Transaction => format!(
                "{comment}begin isolation level read committed read write; {}\
                 select pg_catalog.set_config('application_name', {waiting}, true); {lock}",
                self.patience()
            ),
        }
    }

    /// Waits for as long as it takes. Its row is that of [`Self::try_lock`].
    pub(super) fn wait(&self, note: &Note) -> String {
        let (comment, name) = (note.comment(self.shown_bytes), self.function("pg_advisory"));
        let lock = self.locked(&format!("{name}({}) is not null", self.key.arguments()));
        format!("{comment}{lock}")
    }

    /// The lock and, for a session, all that belongs to a grant. The subqueries are kept apart by their `offset`, so
    /// that the token is drawn after the lock is held.
    fn locked(&self, lock: &str) -> String {
        if self.scope == Scope::Transaction {
            return format!(
                "select pg_catalog.pg_backend_pid(), held, null from (select {lock} as held offset 0) as l"
            );
        }
        // To one server process a lock that it has is free, whichever of a pooler's clients took it.
        let lock = format!(
            "select before, case when before then false else {lock} end as held from (select {} as before offset 0) as b \
             offset 0",
            is_held_in_any_mode(self.key)
        );
        let (token, sync) = if self.tokens { (TOKEN, SYNC) } else { ("null::bigint", "null") };
        let badge = self.badge.held("token");
        format!(
            "select pg_catalog.pg_backend_pid(), held, token, \
             case when held then pg_catalog.set_config('application_name', {badge}, false) end, synced, before \
             from (select before, held, case when held then {token} end as token, case when held then {sync} end as synced \
             from ({lock}) as l offset 0) as g"
        )
    }

    fn function(&self, family: &str) -> String {
        let scope = if self.scope == Scope::Session { "" } else { "_xact" };
        let shared = if self.shared { "_shared" } else { "" };
        format!("pg_catalog.{family}{scope}_lock{shared}")
    }

    fn patience(&self) -> String {
        let newer = (self.version >= TRANSACTION_TIMEOUT_SINCE).then_some("transaction_timeout");
        PATIENT.iter().copied().chain(newer).map(|setting| format!("set local {setting} = 0; ")).collect()
    }

    /// Asks for a sign of life. Its last row: the server process, and whether it is known there as a holder. Through a
    /// transaction pooler both may be another's.
    pub(super) fn probe(&self, note: &Note) -> String {
        format!("{}select pg_catalog.pg_backend_pid(), {}", note.comment(self.shown_bytes), self.is_held())
    }

    /// As [`Self::probe`]; from here on the connection wears its token. For a transaction, which can't by itself.
    pub(super) fn probe_with_token(&self, note: &Note, token: Option<u64>) -> String {
        let token = token.map_or_else(|| "null".to_owned(), |token| token.to_string());
        let badge = self.badge.held(&token);
        format!("{}, pg_catalog.set_config('application_name', {badge}, true)", self.probe(note))
    }

    fn is_held(&self) -> String {
        is_held(self.key, self.shared)
    }

    /// Gives the lock back. Its first row: whether it was held until now.
    pub(super) fn unlock(&self) -> String {
        match self.scope {
            Scope::Session => {
                let shared = if self.shared { "_shared" } else { "" };
                format!(
                    "select pg_catalog.pg_advisory_unlock{shared}({}), \
                     pg_catalog.set_config('application_name', '{IDLE}', false)",
                    self.key.arguments()
                )
            }
            Scope::Transaction => format!("select {}; commit", self.is_held()),
        }
    }

    /// After a try that brought nothing: the connection is as before.
    pub(super) fn give_up(&self) -> String {
        match self.scope {
            Scope::Session => format!("select pg_catalog.set_config('application_name', '{IDLE}', false)"),
            Scope::Transaction => "rollback".to_owned(),
        }
    }
}

/// An expression: whether the connection that asks has this lock.
pub(super) fn is_held(key: AdvisoryKey, shared: bool) -> String {
    let mode = if shared { "ShareLock" } else { "ExclusiveLock" };
    format!(
        "exists (select from pg_catalog.pg_locks where {} and granted and mode = '{mode}' \
         and pid = pg_catalog.pg_backend_pid())",
        is_locked(key)
    )
}

/// An expression: whether the connection that asks has this lock, shared or exclusive.
fn is_held_in_any_mode(key: AdvisoryKey) -> String {
    format!(
        "exists (select from pg_catalog.pg_locks where {} and granted and pid = pg_catalog.pg_backend_pid())",
        is_locked(key)
    )
}

/// A condition on `pg_stat_activity`: this server process, as long as it has this lock.
pub(super) fn is_holder(pid: i32, key: AdvisoryKey) -> String {
    format!(
        "pid = {pid} and pid in (select pid from pg_catalog.pg_locks where {} and granted)",
        is_locked(key)
    )
}

/// A condition on `pg_locks`: this key, in this database.
pub(super) fn is_locked(key: AdvisoryKey) -> String {
    let (class, object, sub) = key.in_pg_locks();
    format!(
        "{IN_THIS_DATABASE} and classid = '{class}'::oid and objid = '{object}'::oid and objsubid = {sub}"
    )
}

/// A condition on `pg_locks`: an advisory lock of this database.
pub(super) const IN_THIS_DATABASE: &str = "locktype = 'advisory' and database = \
    (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())";

/// Makes a new connection fit to hold for long: no limit of the role or the database may end its statements, and the
/// server asks it whether it lives, so that a machine that vanished keeps its locks for half a minute and not for hours
/// (madelson #230). Its row: the server process, and when that began.
pub(super) fn prepare_session(version: u32) -> String {
    let newer = (version >= SESSION_TIMEOUT_SINCE).then_some("idle_session_timeout");
    let patient = PATIENT.iter().copied().chain(newer).map(|setting| (setting, "0"));
    // The last is for a network that is cut while an answer is on its way.
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
        "select pg_catalog.pg_backend_pid(), (select extract(epoch from backend_start) \
         from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())){settings}, \
         case when pg_catalog.current_setting('synchronous_commit') = 'off' \
         then pg_catalog.set_config('synchronous_commit', 'local', false) end"
    )
}

/// Where the holder on a connection hears of a break.
pub(super) fn channel(pid: i32) -> String {
    format!("lockkeeper_{pid}")
}
