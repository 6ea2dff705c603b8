//! The statements of advisory locks. All are of the simple protocol, one message for one round trip; what is asked of
//! the server beside the lock stands in the same message.
//!
//! To plan such a statement costs the server more than to execute it. So where no pooler lies between, each connection
//! prepares the usual ones once ([`prepare`]), in SQL, and executes them under each request's own comment.

use lockkeeper_core::Token;

use super::note::{Badge, IDLE, Note, Words};
use crate::backends::postgres::keys::AdvisoryKey;

/// What holds: the session or the transaction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Session,
    Transaction,
}

/// Draws a token.
pub(in super::super) const TOKEN: &str = "pg_catalog.nextval('lockkeeper.token')";

/// An expression: `token` is durable once the transaction is over. A sequence logs only every 32nd value, and a token
/// that somebody else's unfinished transaction covers could come again after a crash. A message in the log makes the
/// transaction one that is synced to the disk at its end. It can be spared where all that was logged until now, and with
/// it what covers the token, has been synced, and no standby need have it too.
fn synced(token: &str, knows_log: bool) -> String {
    const SYNC: &str = "pg_catalog.pg_logical_emit_message(true, 'lockkeeper'::text, ''::text)";
    const UNSYNCED: &str = "(pg_catalog.pg_current_wal_flush_lsn() < pg_catalog.pg_current_wal_insert_lsn() \
        or pg_catalog.current_setting('synchronous_standby_names') <> '')";
    let unsynced = if knows_log { UNSYNCED } else { "true" };
    format!("case when {token} is not null and {unsynced} then {SYNC} end")
}

/// Whether the server says what of its log is synced: where storage is not its own it may refuse to.
pub(super) const KNOWS_LOG: &str =
    "select pg_catalog.pg_current_wal_flush_lsn() <= pg_catalog.pg_current_wal_insert_lsn()";

/// Draws tokens in a transaction of its own. Its row: them, with blanks between.
pub(super) fn draw(count: usize, knows_log: bool) -> String {
    // The subquery is kept apart by its `offset`, so that the log is looked at after the tokens are drawn.
    format!(
        "select tokens, {} from (select pg_catalog.string_agg({TOKEN}::text, ' ') as tokens \
         from pg_catalog.generate_series(1, {count}) offset 0) as t",
        synced("tokens", knows_log)
    )
}

/// What a transaction must not be ended by: it holds for as long as its holder likes.
const PATIENT: &[&str] = &["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];
/// The first version with a limit for whole transactions.
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;
/// The first version with a limit for idle sessions.
const SESSION_TIMEOUT_SINCE: u32 = 140_000;

/// Where a transaction of ours keeps the number of its request: there for as long as it lasts, and with it its lock.
const MARK: &str = "lockkeeper.hold";

/// What the statements of all requests have in common.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) scope: Scope,
    /// Whether there is a sequence to draw tokens from.
    pub(super) tokens: bool,
    /// Of the server: whether [`KNOWS_LOG`] is answered, `server_version_num`, and `track_activity_query_size`.
    pub(super) knows_log: bool,
    pub(super) version: u32,
    pub(super) shown_bytes: usize,
}

/// Everything one request says to the server.
pub(super) struct Statements {
    pub(super) common: Common,
    pub(super) key: AdvisoryKey,
    pub(super) shared: bool,
    pub(super) badge: Badge,
    /// Its connection has executed [`prepare`].
    pub(super) prepared: bool,
}

/// The names of what [`prepare`] prepares.
const TRY: &str = "lockkeeper_try";
const NAME: &str = "lockkeeper_name";
const UNLOCK: &str = "lockkeeper_unlock";

/// Prepares what is asked for every lock, on a connection to a server process that is its own.
pub(super) fn prepare(common: &Common) -> String {
    let key =
        |function: &str| format!("case when $1 is null then {function}($2, $3) else {function}($1) end");
    let either = |function: &dyn Fn(bool) -> String| {
        format!("case when $4 then {} else {} end", key(&function(true)), key(&function(false)))
    };
    let badge = Words { id: "$5", label: "$6" };
    let lock =
        common.locked(&either(&|shared| common.function("pg_try_advisory", shared)), "false", badge, true);
    let with_key = "bigint, integer, integer, boolean, text, text";
    let more = match common.scope {
        Scope::Session => {
            let unlock = either(&|shared| unlock_function(shared).to_owned());
            format!(
                "prepare {UNLOCK} (bigint, integer, integer, boolean) as select {unlock}, {}",
                named_idle()
            )
        }
        Scope::Transaction => {
            let name = common.named(Words { id: "$1", label: "$2" }, "$3");
            format!(
                "prepare {NAME} (text, text, bigint) as {name}; prepare {UNLOCK} (text) as select {}",
                is_marked("$1")
            )
        }
    };
    // Planned once for all arguments.
    format!("set plan_cache_mode = force_generic_plan; prepare {TRY} ({with_key}) as {lock}; {more}")
}

fn unlock_function(shared: bool) -> &'static str {
    if shared { "pg_catalog.pg_advisory_unlock_shared" } else { "pg_catalog.pg_advisory_unlock" }
}

fn named_idle() -> String {
    format!("pg_catalog.set_config('application_name', '{IDLE}', false)")
}

/// Whether this is still the transaction that marked itself.
fn is_marked(id: &str) -> String {
    format!("pg_catalog.current_setting('{MARK}', true) is not distinct from {id}")
}

impl Common {
    /// Not read-only: some poolers send what only reads to a standby, whose locks exclude nobody here. Nor serializable:
    /// that would keep a snapshot, and with it every dead row, for as long as the hold lasts.
    const BEGIN: &str = "begin isolation level read committed read write; ";

    fn function(&self, family: &str, shared: bool) -> String {
        let scope = if self.scope == Scope::Session { "" } else { "_xact" };
        let shared = if shared { "_shared" } else { "" };
        format!("pg_catalog.{family}{scope}_lock{shared}")
    }

    /// Takes a lock, by the expressions `before` and `lock`, and does all that belongs to a try or a grant. Its row: the
    /// server process, whether it holds, the token, and whether the process had this lock before it was asked for. That
    /// is asked in the same statement, since a pooler may give the next one to another process.
    ///
    /// `anew`: the connection has to be told whose it is now. The subqueries are kept apart by their `offset`, so that
    /// the token is drawn after the lock is held.
    fn locked(&self, lock: &str, before: &str, badge: Words<'_>, anew: bool) -> String {
        let in_transaction = self.scope == Scope::Transaction;
        let named =
            |name: &str| format!("pg_catalog.set_config('application_name', {name}, {in_transaction})");
        let mut first = String::new();
        if anew {
            first = format!(", {}", named(&badge.waiting()));
            if in_transaction {
                let newer = (self.version >= TRANSACTION_TIMEOUT_SINCE).then_some("transaction_timeout");
                for setting in PATIENT.iter().copied().chain(newer) {
                    first += &format!(", pg_catalog.set_config('{setting}', '0', true)");
                }
                first += &format!(", pg_catalog.set_config('{MARK}', {}, true)", badge.id);
            }
        }
        // What a transaction has drawn itself is durable only at its end: it is named when it has its token.
        let draws = self.tokens && !in_transaction;
        let token = if draws { TOKEN } else { "null::bigint" };
        let sync = if draws { synced("token", self.knows_log) } else { "null".to_owned() };
        let named = match self.tokens && in_transaction {
            true => "null".to_owned(),
            false => format!("case when held then {} end", named(&badge.held("token"))),
        };
        format!(
            "select pg_catalog.pg_backend_pid(), held, token, before, {named}, {sync} \
             from (select before, held, case when held then {token} end as token \
             from (select before, case when before then false else {lock} end as held \
             from (select {before} as before{first} offset 0) as b offset 0) as l offset 0) as g"
        )
    }

    /// As a probe of a transaction; from here on the connection wears its token.
    fn named(&self, badge: Words<'_>, token: &str) -> String {
        format!(
            "select pg_catalog.pg_backend_pid(), {}, pg_catalog.set_config('application_name', {}, true)",
            is_marked(badge.id),
            badge.held(token)
        )
    }
}

impl Statements {
    /// One try. Its last row: the server process, whether it holds, the token, and whether the process had this lock
    /// before.
    pub(super) fn try_lock(&self, note: &Note) -> String {
        let (id, label) = self.badge.words();
        let lock = if self.prepared {
            format!("execute {TRY}({}, {}, {id}, {label})", self.key.either(), self.shared)
        } else {
            let lock = self.call(&self.common.function("pg_try_advisory", self.shared));
            self.common.locked(&lock, &self.before(), Words { id: &id, label: &label }, true)
        };
        let begin = if self.common.scope == Scope::Transaction { Common::BEGIN } else { "" };
        format!("{}{begin}{lock}", note.comment(self.common.shown_bytes))
    }

    /// Waits for as long as it takes. Its row is that of [`Self::try_lock`].
    pub(super) fn wait(&self, note: &Note) -> String {
        let (id, label) = self.badge.words();
        let lock = format!("{} is not null", self.call(&self.common.function("pg_advisory", self.shared)));
        let lock = self.common.locked(&lock, &self.before(), Words { id: &id, label: &label }, false);
        format!("{}{lock}", note.comment(self.common.shown_bytes))
    }

    fn call(&self, function: &str) -> String {
        format!("{function}({})", self.key.arguments())
    }

    /// To one server process a lock that it has is free, whichever of a pooler's clients took it. A transaction pooler
    /// hands on no process that still has a transaction's.
    fn before(&self) -> String {
        match self.common.scope {
            Scope::Session if !self.prepared => is_held_in_any_mode(self.key),
            _ => "false".to_owned(),
        }
    }

    /// Asks for a sign of life. Its last row: the server process, and whether it is known there as a holder. Through a
    /// transaction pooler both may be another's.
    pub(super) fn probe(&self, note: &Note) -> String {
        let comment = note.comment(self.common.shown_bytes);
        format!("{comment}select pg_catalog.pg_backend_pid(), {}", self.is_held())
    }

    /// As [`Self::probe`]; from here on the connection wears its token. For a transaction, which can't by itself.
    pub(super) fn probe_with_token(&self, note: &Note, token: Token) -> String {
        let ((id, label), token) = (self.badge.words(), token.get().to_string());
        let named = if self.prepared {
            format!("execute {NAME}({id}, {label}, {token})")
        } else {
            self.common.named(Words { id: &id, label: &label }, &token)
        };
        format!("{}{named}", note.comment(self.common.shown_bytes))
    }

    fn is_held(&self) -> String {
        match self.common.scope {
            Scope::Session => is_held(self.key, self.shared),
            // A transaction keeps its locks for as long as it lasts.
            Scope::Transaction => is_marked(&self.badge.words().0),
        }
    }

    /// Gives the lock back. Its first row: whether it was held until now.
    pub(super) fn unlock(&self) -> String {
        let key = self.key.either();
        match (self.common.scope, self.prepared) {
            (Scope::Session, true) => format!("execute {UNLOCK}({key}, {})", self.shared),
            (Scope::Session, false) => {
                format!("select {}, {}", self.call(unlock_function(self.shared)), named_idle())
            }
            (Scope::Transaction, true) => format!("execute {UNLOCK}({}); commit", self.badge.words().0),
            (Scope::Transaction, false) => format!("select {}; commit", self.is_held()),
        }
    }

    /// After a try that brought nothing: the connection is as before.
    pub(super) fn give_up(&self) -> String {
        match self.common.scope {
            Scope::Session => format!("select {}", named_idle()),
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
