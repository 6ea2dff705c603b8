//! The SQL of advisory locks. Most statements use the simple protocol, one message per round trip; further queries for
//! the server go into the same message. On direct connections repeated tries, a session's unlock and draws of tokens
//! are prepared in the protocol.
//!
//! Without a pooler a connection has its own server process. Then a try and a release contain only the lock, common
//! settings are set once ([`prepare`]), and a statement that costs the server more to plan than to execute is prepared
//! once in SQL, and executed under each request's own comment.

use std::time::Duration;

use lockkeeper_core::Token;
use tokio_postgres::{Row, SimpleQueryRow};

use super::note::{Badge, IDLE, Note, Words};
use crate::backends::postgres::keys::AdvisoryKey;

/// Lifetime of an advisory lock: a connection's session or transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Session,
    Transaction,
}

/// SQL expression: draws a token.
const TOKEN: &str = "pg_catalog.nextval('lockkeeper.token')";

/// SQL expression: makes `token` durable at the end of the transaction. A sequence writes only every 32nd value to the
/// WAL, so a token covered by another, unfinished transaction could be issued again after a crash. A message in the WAL
/// forces the transaction to sync at its end. It is omitted if the whole WAL up to now, including what covers the
/// token, is synced already and no synchronous standby is configured.
fn synced(token: &str, knows_log: bool) -> String {
    const SYNC: &str = "pg_catalog.pg_logical_emit_message(true, 'lockkeeper'::text, ''::text)";
    const UNSYNCED: &str = "(pg_catalog.pg_current_wal_flush_lsn() < pg_catalog.pg_current_wal_insert_lsn() \
        or pg_catalog.current_setting('synchronous_standby_names') <> '')";
    let unsynced = if knows_log { UNSYNCED } else { "true" };
    format!("case when {token} is not null and {unsynced} then {SYNC} end")
}

/// Checks whether the server reports its WAL flush position; servers with foreign storage may refuse to.
pub(super) const KNOWS_LOG: &str =
    "select pg_catalog.pg_current_wal_flush_lsn() <= pg_catalog.pg_current_wal_insert_lsn()";

/// SQL expression: makes the commit of this transaction wait for the disk even with `synchronous_commit = off`.
const COMMIT_WAITS: &str = "case when pg_catalog.current_setting('synchronous_commit') = 'off' \
    then pg_catalog.set_config('synchronous_commit', 'local', true) end";

/// Draws a token in the caller's own transaction, durable once that is committed; the row's first column. It always
/// writes the WAL message, since the server may refuse its flush position, and an error would abort the transaction.
pub(in super::super) fn draw_in_transaction() -> String {
    let sync = synced("token", false);
    format!("select token, {sync}, {COMMIT_WAITS} from (select {TOKEN} as token offset 0) as t")
}

/// Draws tokens in a transaction of its own; `count` is an SQL expression. Its row: the tokens, separated by blanks.
pub(super) fn draw(count: &str, knows_log: bool) -> String {
    // The subquery's `offset` is an optimization fence: the WAL position is read after the tokens are drawn.
    format!(
        "select tokens, {}, {COMMIT_WAITS} from (select pg_catalog.string_agg({TOKEN}::text, ' ') as tokens \
         from pg_catalog.generate_series(1, {count}) offset 0) as t",
        synced("tokens", knows_log)
    )
}

/// One plan for all arguments of a prepared statement.
pub(super) const PLAN_ONCE: &str = "set plan_cache_mode = force_generic_plan";

/// Timeouts to disable, so that they do not end a hold or a wait.
const PATIENT: &[&str] = &["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];
/// The first version with a limit for whole transactions.
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;
/// The first version with a limit for idle sessions.
const SESSION_TIMEOUT_SINCE: u32 = 140_000;

/// Setting in which a transaction stores the id of its connection. It ends with the transaction, as the lock does.
const MARK: &str = "lockkeeper.hold";

/// Parameters common to the statements of all requests.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) scope: Scope,
    /// Whether there is a sequence to draw tokens from.
    pub(super) tokens: bool,
    /// Properties of the server: whether it answers [`KNOWS_LOG`], `server_version_num`, and
    /// `track_activity_query_size`.
    pub(super) knows_log: bool,
    pub(super) version: u32,
    pub(super) shown_bytes: usize,
}

/// The statements of one request.
pub(super) struct Statements {
    pub(super) common: Common,
    pub(super) key: AdvisoryKey,
    pub(super) shared: bool,
    pub(super) badge: Badge,
    /// Whether its connection has its own server process, and has executed [`prepare`].
    pub(super) direct: bool,
    /// Start of its transaction by the server's clock, where that identifies the transaction ([`is_since`]).
    pub(super) began: Option<i64>,
}

/// Outcome of a try or a wait.
pub(super) struct Tried {
    pub(super) held: bool,
    pub(super) token: Option<Token>,
    /// The server process that answered. Not queried on a direct connection.
    pub(super) pid: Option<i32>,
    /// Whether the server process already had the lock before the statement.
    pub(super) before: bool,
    /// [`Statements::began`].
    pub(super) began: Option<i64>,
    /// Whether the connection has a holder's badge.
    pub(super) named: bool,
}

/// Name of the prepared try.
const TRY: &str = "lockkeeper_try";

/// Prepares a direct connection. May be empty.
pub(super) fn prepare(common: &Common) -> String {
    match (common.scope, common.tokens) {
        (Scope::Session, false) => String::new(),
        (Scope::Session, true) => {
            let key = |shared: bool| {
                let function = common.function("pg_try_advisory", shared);
                format!("case when $1 is null then {function}($2, $3) else {function}($1) end")
            };
            let lock = format!("case when $4 then {} else {} end", key(true), key(false));
            let drawn = common.locked_alone(&lock, Words { id: "$5", label: "$6" });
            format!("{PLAN_ONCE}; prepare {TRY} (bigint, integer, integer, boolean, text, text) as {drawn}")
        }
        (Scope::Transaction, _) => {
            // In each `begin` these settings would cost the server half as much as the lock.
            let same = [
                ("default_transaction_isolation", "read committed"),
                ("default_transaction_read_only", "off"),
            ];
            let settings: Vec<String> = same
                .into_iter()
                .chain(common.patient().map(|setting| (setting, "0")))
                .map(|(setting, value)| set(setting, &format!("'{value}'"), false))
                .collect();
            let lock = common.function("pg_try_advisory", false);
            format!(
                "select {}; {PLAN_ONCE}; prepare {TRY} (bigint) as select {lock}($1), {BEGAN}",
                settings.join(", ")
            )
        }
    }
}

/// Releases a session's exclusive lock with a number as key. Prepared in the protocol, on a direct connection only: it
/// needs no comment. Its row: whether the lock was held until now. If a try sets the badge, this resets it.
pub(super) fn unlock_prepared(common: &Common) -> String {
    let idle = if common.tokens { format!(", {}", named_idle()) } else { String::new() };
    format!("select {}($1){idle}", unlock_function(false))
}

fn unlock_function(shared: bool) -> &'static str {
    if shared { "pg_catalog.pg_advisory_unlock_shared" } else { "pg_catalog.pg_advisory_unlock" }
}

fn set(setting: &str, value: &str, in_transaction: bool) -> String {
    format!("pg_catalog.set_config('{setting}', {value}, {in_transaction})")
}

fn set_name(name: &str, in_transaction: bool) -> String {
    set("application_name", name, in_transaction)
}

fn named_idle() -> String {
    set_name(&format!("'{IDLE}'"), false)
}

/// SQL expression: whether this is still the transaction that set the mark.
fn is_marked(id: &str) -> String {
    format!("pg_catalog.current_setting('{MARK}', true) is not distinct from {id}")
}

/// SQL expression: start of the transaction, in microseconds of the Unix epoch.
const BEGAN: &str = "(pg_catalog.date_part('epoch', pg_catalog.now()) * 1000000)::bigint";
/// SQL expression: the current time.
const NOW: &str = "pg_catalog.clock_timestamp()";

/// SQL expression: whether this is still the transaction that began then. For direct connections only.
fn is_since(began: i64) -> String {
    format!("{BEGAN} = {began}")
}

impl Common {
    /// Not read-only: some poolers route read-only transactions to a standby, whose locks exclude no client of the
    /// primary. Nor serializable: its snapshot would keep all dead rows from vacuum for as long as the hold lasts.
    const BEGIN: &str = "begin isolation level read committed read write; ";

    fn function(&self, family: &str, shared: bool) -> String {
        let scope = if self.scope == Scope::Session { "" } else { "_xact" };
        let shared = if shared { "_shared" } else { "" };
        format!("pg_catalog.{family}{scope}_lock{shared}")
    }

    fn in_transaction(&self) -> bool {
        self.scope == Scope::Transaction
    }

    /// The timeouts that a transaction must disable.
    fn patient(&self) -> impl Iterator<Item = &'static str> {
        let newer = (self.version >= TRANSACTION_TIMEOUT_SINCE).then_some("transaction_timeout");
        PATIENT.iter().copied().chain(newer)
    }

    /// Takes a lock, by the SQL expressions `before` and `lock`, including all side effects of a try or a grant. Its
    /// row: whether it holds, the token, the server process, and whether that process already had this lock. That is
    /// queried in the same statement, since a pooler may send the next one to another process.
    ///
    /// `first` is executed before. The subqueries' `offset` is an optimization fence: the token is drawn after the lock
    /// is held.
    fn locked(&self, lock: &str, before: &str, badge: Words<'_>, first: &[String]) -> String {
        // A token that a transaction draws itself is durable only once it commits; the badge is set when it has its
        // token.
        let draws = self.tokens && !self.in_transaction();
        let token = if draws { TOKEN } else { "null::bigint" };
        let sync = if draws { synced("token", self.knows_log) } else { "null".to_owned() };
        let named = match self.tokens && self.in_transaction() {
            true => "null".to_owned(),
            false => {
                let named = set_name(&badge.held("token", NOW), self.in_transaction());
                format!("case when held then {named} end")
            }
        };
        let first: String = first.iter().map(|first| format!(", {first}")).collect();
        format!(
            "select held, token, pg_catalog.pg_backend_pid(), before, {named}, {sync} \
             from (select before, held, case when held then {token} end as token \
             from (select before, case when before then false else {lock} end as held \
             from (select {before} as before{first} offset 0) as b offset 0) as l offset 0) as g"
        )
    }

    /// Like [`Self::locked`], for a session on a direct connection. Its row: whether it holds, and the token.
    fn locked_alone(&self, lock: &str, badge: Words<'_>) -> String {
        let named = set_name(&badge.held("token", NOW), false);
        let sync = synced("token", self.knows_log);
        format!(
            "select held, token, case when held then {named} end, {sync} \
             from (select held, case when held then {TOKEN} end as token \
             from (select {lock} as held offset 0) as l offset 0) as g"
        )
    }
}

impl Statements {
    /// Tries the lock once.
    pub(super) fn try_lock(&self, note: &Note) -> String {
        let function = self.common.function("pg_try_advisory", self.shared);
        let lock = match (self.direct, self.common.scope) {
            (true, Scope::Session) if self.common.tokens => {
                let (id, label) = self.badge.words();
                format!("execute {TRY}({}, {}, {id}, {label})", self.key.either(), self.shared)
            }
            (true, Scope::Session) => format!("select {}", self.call(&function)),
            (true, Scope::Transaction) => match self.key {
                AdvisoryKey::Number(number) if !self.shared => format!("execute {TRY}('{number}')"),
                _ => format!("select {}, {BEGAN}", self.call(&function)),
            },
            (false, _) => self.locked(&self.call(&function), true),
        };
        let begin = match (self.common.scope, self.direct) {
            (Scope::Session, _) => "",
            (Scope::Transaction, true) => "begin; ",
            (Scope::Transaction, false) => Common::BEGIN,
        };
        format!("{}{begin}{lock}", note.comment(self.common.shown_bytes))
    }

    /// The same try, as a statement to prepare in the protocol. Its row: whether it holds, and the token if tokens are
    /// available. `None` through a pooler and for transactions.
    pub(super) fn repeated_try(&self, note: &Note) -> Option<String> {
        if !self.direct || self.common.in_transaction() {
            return None;
        }
        let lock = self.call(&self.common.function("pg_try_advisory", self.shared));
        let (id, label) = self.badge.words();
        let select = match self.common.tokens {
            true => self.common.locked_alone(&lock, Words { id: &id, label: &label }),
            false => format!("select {lock}"),
        };
        Some(format!("{}{select}", note.comment(self.common.shown_bytes)))
    }

    /// The outcome of [`Self::try_lock`]; `None` if the answer is unreadable.
    pub(super) fn tried(&self, rows: &[SimpleQueryRow]) -> Option<Tried> {
        let row = rows.last()?;
        if !self.direct {
            return Tried::read(row);
        }
        let (held, second) = (row.get(0)? == "t", row.try_get(1).ok().flatten());
        let (token, began) = match self.common.scope {
            Scope::Session => (second.and_then(|token| token.parse().ok()).and_then(Token::new), None),
            Scope::Transaction => (None, Some(second?.parse().ok()?)),
        };
        Some(Tried { held, token, pid: None, before: false, began, named: token.is_some() })
    }

    /// Waits for the lock without a time limit, after a try.
    pub(super) fn wait(&self, note: &Note) -> String {
        let lock = format!("{} is not null", self.call(&self.common.function("pg_advisory", self.shared)));
        format!("{}{}", note.comment(self.common.shown_bytes), self.locked(&lock, self.direct))
    }

    /// The outcome of [`Self::wait`].
    pub(super) fn waited(&self, rows: &[SimpleQueryRow]) -> Option<Tried> {
        Tried::read(rows.last()?)
    }

    /// `anew`: the connection does not have this request's badge yet.
    fn locked(&self, lock: &str, anew: bool) -> String {
        let (id, label) = self.badge.words();
        let (words, in_transaction) = (Words { id: &id, label: &label }, self.common.in_transaction());
        let mut first = Vec::new();
        if anew {
            first.push(set_name(&words.waiting(), in_transaction));
        }
        if !self.direct && anew && in_transaction {
            first.extend(self.common.patient().map(|setting| set(setting, "'0'", true)));
            first.push(set(MARK, &id, true));
        }
        // A server process can take a lock again that it already has, even if another client of a pooler took it. A
        // transaction pooler passes on no process with an open transaction.
        let before = match self.common.scope {
            Scope::Session if !self.direct => is_held_in_any_mode(self.key),
            _ => "false".to_owned(),
        };
        self.common.locked(lock, &before, words, &first)
    }

    fn call(&self, function: &str) -> String {
        format!("{function}({})", self.key.arguments())
    }

    /// Probes the connection. Its last row: the server process, and whether that process holds. Through a transaction
    /// pooler both may be another client's.
    pub(super) fn probe(&self, note: &Note) -> String {
        let comment = note.comment(self.common.shown_bytes);
        format!("{comment}select pg_catalog.pg_backend_pid(), {}", self.is_held())
    }

    /// Like [`Self::probe`], and sets the badge of a holder since `held_for`, without a token.
    pub(super) fn name(&self, note: &Note, held_for: Duration) -> String {
        let (id, label) = self.badge.words();
        let since = format!("{NOW} - interval '{} milliseconds'", held_for.as_millis());
        let named = Words { id: &id, label: &label }.held("null", &since);
        format!("{}, {}", self.probe(note), set_name(&named, self.common.in_transaction()))
    }

    /// Like [`Self::probe`], and sets the badge with a token. For transactions, which can't draw their own.
    pub(super) fn probe_with_token(&self, note: &Note, token: Token) -> String {
        let (id, label) = self.badge.words();
        let named = Words { id: &id, label: &label }.held(&token.get().to_string(), NOW);
        format!("{}, {}", self.probe(note), set_name(&named, true))
    }

    /// Like [`Self::probe_with_token`], if nothing else can have ended the transaction: any answer but an error
    /// confirms it. `None` if the process may be another client's.
    pub(super) fn name_with_token(&self, note: &Note, token: Token) -> Option<String> {
        let began = self.began.filter(|_| self.direct)?;
        let name = self.badge.held(token, began / 1_000_000);
        Some(format!("{}set local application_name = {name}", note.comment(self.common.shown_bytes)))
    }

    fn is_held(&self) -> String {
        match (self.common.scope, self.began) {
            (Scope::Session, _) => is_held(self.key, self.shared),
            // A transaction keeps its locks until it ends.
            (Scope::Transaction, Some(began)) => is_since(began),
            (Scope::Transaction, None) => is_marked(&self.badge.words().0),
        }
    }

    /// Releases the lock. Its first row: whether it was held until now. `named`: the connection has a holder's badge.
    pub(super) fn unlock(&self, named: bool) -> String {
        if self.common.in_transaction() {
            return format!("select {}; commit", self.is_held());
        }
        let idle = if named { format!(", {}", named_idle()) } else { String::new() };
        format!("select {}{idle}", self.call(unlock_function(self.shared)))
    }

    /// Resets the connection after a failed try. A prefix of the next statement.
    pub(super) fn give_up(&self) -> String {
        match self.common.scope {
            Scope::Session if self.direct => String::new(),
            Scope::Session => format!("select {}; ", named_idle()),
            Scope::Transaction => "rollback; ".to_owned(),
        }
    }
}

impl Tried {
    /// The outcome of [`Statements::repeated_try`].
    pub(super) fn of_repeated(row: &Row) -> Option<Self> {
        let held = row.try_get(0).ok()?;
        let token: Option<i64> = if row.len() > 1 { row.try_get(1).ok()? } else { None };
        let token = token.and_then(|token| u64::try_from(token).ok()).and_then(Token::new);
        Some(Self { held, token, pid: None, before: false, began: None, named: token.is_some() })
    }

    fn read(row: &SimpleQueryRow) -> Option<Self> {
        let text = |column: usize| row.try_get(column).ok().flatten();
        let token = text(1).and_then(|token| token.parse().ok()).and_then(Token::new);
        let before = text(3) == Some("t");
        let pid = Some(text(2)?.parse().ok()?);
        Some(Self { held: text(0)? == "t", token, pid, before, began: None, named: true })
    }
}

/// SQL expression: whether the current connection has this lock.
pub(super) fn is_held(key: AdvisoryKey, shared: bool) -> String {
    let mode = if shared { "ShareLock" } else { "ExclusiveLock" };
    format!(
        "exists (select from pg_catalog.pg_locks where {} and granted and mode = '{mode}' \
         and pid = pg_catalog.pg_backend_pid())",
        is_locked(key)
    )
}

/// SQL expression: whether the current connection has this lock, shared or exclusive.
fn is_held_in_any_mode(key: AdvisoryKey) -> String {
    format!(
        "exists (select from pg_catalog.pg_locks where {} and granted and pid = pg_catalog.pg_backend_pid())",
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

/// Condition on `pg_stat_activity`: this server process, and no later one with the same pid.
pub(super) fn is_process(pid: i32, began: &str) -> String {
    format!("pid = {pid} and extract(epoch from backend_start)::text = '{began}'")
}

/// Its row: the server process, and its start time.
pub(super) fn process() -> String {
    "select pg_catalog.pg_backend_pid(), (select extract(epoch from backend_start) \
     from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))"
        .to_owned()
}

/// Prepares a new connection for long holds: no timeout of the role or the database may end its statements, and the
/// server sends TCP keep-alives, so that a vanished machine keeps its locks for half a minute and not for hours
/// (madelson #230). Its row is that of [`process`].
pub(super) fn prepare_session(version: u32) -> String {
    let newer = (version >= SESSION_TIMEOUT_SINCE).then_some("idle_session_timeout");
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
        "{}{settings}, case when pg_catalog.current_setting('synchronous_commit') = 'off' \
         then pg_catalog.set_config('synchronous_commit', 'local', false) end",
        process()
    )
}

/// The notification channel on which the holder on a connection receives breaks.
pub(super) fn channel(pid: i32) -> String {
    format!("lockkeeper_{pid}")
}
