//! The statements of advisory locks. All but one are of the simple protocol, one message for one round trip; what is asked
//! of the server beside the lock stands in the same message.
//!
//! Where no pooler lies between, a connection has its server process for itself. Then a try and a release ask for no more
//! than the lock, what must hold for each of them is set once ([`prepare`]), and what costs the server more to plan than to
//! execute is prepared once too, in SQL, and executed under each request's own comment.

use std::time::Duration;

use lockkeeper_core::Token;
use tokio_postgres::{Row, SimpleQueryRow};

use super::note::{Badge, IDLE, Note, Words};
use crate::backends::postgres::keys::AdvisoryKey;

/// What holds: the session or the transaction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Session,
    Transaction,
}

/// Draws a token.
const TOKEN: &str = "pg_catalog.nextval('lockkeeper.token')";

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

/// An expression: the commit of this transaction waits for the disk, where `synchronous_commit = off` would let it go ahead.
const COMMIT_WAITS: &str = "case when pg_catalog.current_setting('synchronous_commit') = 'off' \
    then pg_catalog.set_config('synchronous_commit', 'local', true) end";

/// Draws a token in the caller's own transaction, durable once that is committed; the row's first column. It always logs a
/// message, since the question whether the log is synced may be refused, and an error would abort the transaction.
pub(in super::super) fn draw_in_transaction() -> String {
    let sync = synced("token", false);
    format!("select token, {sync}, {COMMIT_WAITS} from (select {TOKEN} as token offset 0) as t")
}

/// Draws tokens in a transaction of its own; `count` is an expression. Its row: them, with blanks between.
pub(super) fn draw(count: &str, knows_log: bool) -> String {
    // The subquery is kept apart by its `offset`, so that the log is looked at after the tokens are drawn.
    format!(
        "select tokens, {}, {COMMIT_WAITS} from (select pg_catalog.string_agg({TOKEN}::text, ' ') as tokens \
         from pg_catalog.generate_series(1, {count}) offset 0) as t",
        synced("tokens", knows_log)
    )
}

/// For all arguments of what is prepared.
pub(super) const PLAN_ONCE: &str = "set plan_cache_mode = force_generic_plan";

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
    /// Its connection has a server process for itself, and has executed [`prepare`].
    pub(super) direct: bool,
    /// When its transaction began, as the server says it, where that is what tells the transaction ([`is_since`]).
    pub(super) began: Option<i64>,
}

/// What came of a try, or of a wait.
pub(super) struct Tried {
    pub(super) held: bool,
    pub(super) token: Option<Token>,
    /// The server process that answered. Not asked for where there is but one.
    pub(super) pid: Option<i32>,
    /// The server process had the lock before it was asked for.
    pub(super) before: bool,
    /// [`Statements::began`].
    pub(super) began: Option<i64>,
    /// The connection bears the name of a holder.
    pub(super) named: bool,
}

/// The name of what is prepared.
const TRY: &str = "lockkeeper_try";

/// Prepares a connection to a server process that is its own. May be nothing.
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
            // Said by each `begin` they would cost the server half as much as the lock.
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

/// Gives a session's exclusive lock of one number back, on a connection to a server process that is its own, and is prepared
/// in the protocol: its comment need show nothing. Its row: whether it was held until now. Where holders bear a name from
/// their try on, the connection loses it.
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

/// Whether this is still the transaction that marked itself.
fn is_marked(id: &str) -> String {
    format!("pg_catalog.current_setting('{MARK}', true) is not distinct from {id}")
}

/// When the transaction began, in microseconds of the Unix epoch.
const BEGAN: &str = "(pg_catalog.date_part('epoch', pg_catalog.now()) * 1000000)::bigint";
/// The moment.
const NOW: &str = "pg_catalog.clock_timestamp()";

/// Whether this is still the transaction that began then, on a connection that has its server process for itself.
fn is_since(began: i64) -> String {
    format!("{BEGAN} = {began}")
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

    fn in_transaction(&self) -> bool {
        self.scope == Scope::Transaction
    }

    /// What a transaction must be told so that it is not ended.
    fn patient(&self) -> impl Iterator<Item = &'static str> {
        let newer = (self.version >= TRANSACTION_TIMEOUT_SINCE).then_some("transaction_timeout");
        PATIENT.iter().copied().chain(newer)
    }

    /// Takes a lock, by the expressions `before` and `lock`, and does all that belongs to a try or a grant. Its row:
    /// whether it holds, the token, the server process, and whether that had this lock before it was asked for. It is
    /// asked in the same statement, since a pooler may give the next one to another process.
    ///
    /// `first` is done before it. The subqueries are kept apart by their `offset`, so that the token is drawn after the
    /// lock is held.
    fn locked(&self, lock: &str, before: &str, badge: Words<'_>, first: &[String]) -> String {
        // What a transaction has drawn itself is durable only at its end: it is named when it has its token.
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

    /// As [`Self::locked`], for a session that has its server process for itself: whether it holds, and the token.
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
    /// One try.
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

    /// What does the same where it is prepared in the protocol, as it stands. Its row: whether it holds, and the token
    /// where there are any.
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

    /// What came of [`Self::try_lock`]; `None` if its answer makes no sense.
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

    /// Waits for as long as it takes, after a try.
    pub(super) fn wait(&self, note: &Note) -> String {
        let lock = format!("{} is not null", self.call(&self.common.function("pg_advisory", self.shared)));
        format!("{}{}", note.comment(self.common.shown_bytes), self.locked(&lock, self.direct))
    }

    /// What came of [`Self::wait`].
    pub(super) fn waited(&self, rows: &[SimpleQueryRow]) -> Option<Tried> {
        Tried::read(rows.last()?)
    }

    /// `anew`: the connection has to be told whose it is now.
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
        // To one server process a lock that it has is free, whichever of a pooler's clients took it. A transaction pooler
        // hands on no process that still has a transaction's.
        let before = match self.common.scope {
            Scope::Session if !self.direct => is_held_in_any_mode(self.key),
            _ => "false".to_owned(),
        };
        self.common.locked(lock, &before, words, &first)
    }

    fn call(&self, function: &str) -> String {
        format!("{function}({})", self.key.arguments())
    }

    /// Asks for a sign of life. Its last row: the server process, and whether it is known there as a holder. Through a
    /// transaction pooler both may be another's.
    pub(super) fn probe(&self, note: &Note) -> String {
        let comment = note.comment(self.common.shown_bytes);
        format!("{comment}select pg_catalog.pg_backend_pid(), {}", self.is_held())
    }

    /// As [`Self::probe`]; from here on the connection bears the name of one that has held for so long, without a token.
    pub(super) fn name(&self, note: &Note, held_for: Duration) -> String {
        let (id, label) = self.badge.words();
        let since = format!("{NOW} - interval '{} milliseconds'", held_for.as_millis());
        let named = Words { id: &id, label: &label }.held("null", &since);
        format!("{}, {}", self.probe(note), set_name(&named, self.common.in_transaction()))
    }

    /// As [`Self::probe`]; from here on the connection wears its token. For a transaction, which can't by itself.
    pub(super) fn probe_with_token(&self, note: &Note, token: Token) -> String {
        let (id, label) = self.badge.words();
        let named = Words { id: &id, label: &label }.held(&token.get().to_string(), NOW);
        format!("{}, {}", self.probe(note), set_name(&named, true))
    }

    /// As [`Self::probe_with_token`], where nobody else can have ended the transaction: any answer but an error confirms
    /// it. `None` where the process may be another's.
    pub(super) fn name_with_token(&self, note: &Note, token: Token) -> Option<String> {
        let began = self.began.filter(|_| self.direct)?;
        let name = self.badge.held(token, began / 1_000_000);
        Some(format!("{}set local application_name = {name}", note.comment(self.common.shown_bytes)))
    }

    fn is_held(&self) -> String {
        match (self.common.scope, self.began) {
            (Scope::Session, _) => is_held(self.key, self.shared),
            // A transaction keeps its locks for as long as it lasts.
            (Scope::Transaction, Some(began)) => is_since(began),
            (Scope::Transaction, None) => is_marked(&self.badge.words().0),
        }
    }

    /// Gives the lock back. Its first row: whether it was held until now. `named`: the connection bears the name of a
    /// holder.
    pub(super) fn unlock(&self, named: bool) -> String {
        if self.common.in_transaction() {
            return format!("select {}; commit", self.is_held());
        }
        let idle = if named { format!(", {}", named_idle()) } else { String::new() };
        format!("select {}{idle}", self.call(unlock_function(self.shared)))
    }

    /// After a try that brought nothing, before something else is asked: the connection is as before.
    pub(super) fn give_up(&self) -> String {
        match self.common.scope {
            Scope::Session if self.direct => String::new(),
            Scope::Session => format!("select {}; ", named_idle()),
            Scope::Transaction => "rollback; ".to_owned(),
        }
    }
}

impl Tried {
    /// What came of [`Statements::repeated_try`].
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

/// A condition on `pg_stat_activity`: this server process, and none that came after it with the same number.
pub(super) fn is_process(pid: i32, began: &str) -> String {
    format!("pid = {pid} and extract(epoch from backend_start)::text = '{began}'")
}

/// Its row: the server process, and when that began.
pub(super) fn process() -> String {
    "select pg_catalog.pg_backend_pid(), (select extract(epoch from backend_start) \
     from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))"
        .to_owned()
}

/// Makes a new connection fit to hold for long: no limit of the role or the database may end its statements, and the
/// server asks it whether it lives, so that a machine that vanished keeps its locks for half a minute and not for hours
/// (madelson #230). Its row is that of [`process`].
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
        "{}{settings}, case when pg_catalog.current_setting('synchronous_commit') = 'off' \
         then pg_catalog.set_config('synchronous_commit', 'local', false) end",
        process()
    )
}

/// Where the holder on a connection hears of a break.
pub(super) fn channel(pid: i32) -> String {
    format!("lockkeeper_{pid}")
}
