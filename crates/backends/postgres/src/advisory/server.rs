//! Properties of the server: whether it can issue tokens, whether a pooler lies in between, and harmful
//! settings.

use std::net::{IpAddr, SocketAddr};

use lockkeeper_backend::{BackendError, BackendErrorKind, ConnectError, Fencing, Finding, Unsupported};
use tokio_postgres::SimpleQueryRow;

use super::connection::transaction_pooler;
use super::monitor::answer_within;
use super::note::{IDLE, random};
use super::shared::Shared;
use super::sql::{Common, KNOWS_LOG, is_held, unreadable};
use crate::connect::{Connection, Connector};
use crate::keys::AdvisoryKey;

/// 12 is the oldest version that the tests can cover; its upstream support ended in 2024.
const VERSION_MIN: u32 = 120_000;

const FACTS: &str = "select pg_catalog.current_setting('server_version_num'), \
    pg_catalog.current_setting('server_version'), \
    pg_catalog.pg_size_bytes(pg_catalog.current_setting('track_activity_query_size'))";

/// SQL expression: properties of the token sequence, null if there is none. Reads the catalogues, since this
/// user may lack privileges on the schema.
const SEQUENCE: &str = "(select pg_catalog.concat_ws(',', s.seqcache = 1, s.seqincrement = 1 and not s.seqcycle, \
        pg_catalog.has_schema_privilege(n.oid, 'usage') and pg_catalog.has_sequence_privilege(c.oid, 'usage') \
        and pg_catalog.has_sequence_privilege(c.oid, 'select')) \
     from pg_catalog.pg_namespace n join pg_catalog.pg_class c on c.relnamespace = n.oid \
     join pg_catalog.pg_sequence s on s.seqrelid = c.oid \
     where n.nspname = 'lockkeeper' and c.relname = 'token')";

/// A statement for a caller's own transaction. Its row: whether the transaction holds the lock, and the input
/// of [`gives_tokens`].
pub(in super::super) fn is_held_and_fences(key: AdvisoryKey, shared: bool) -> String {
    format!("select {}, {SEQUENCE}", is_held(key, Some(shared)))
}

/// Whether the sequence exists, has suitable options, and may be used by this user.
pub(in super::super) fn gives_tokens(sequence: Option<&str>) -> bool {
    matches!(fencing(sequence), Fencing::Tokens { .. })
}

/// Checks that advisory locks work through this address, and reads the server's properties. They are read
/// once for the life of the client.
///
/// # Errors
/// The server is too old, unreachable, or refuses; a transaction pooler was found; or two connections don't
/// exclude each other.
pub(super) async fn check(connector: &Connector) -> Result<(Common, Fencing), ConnectError> {
    let first = connector.connect(IDLE, None).await?;
    let found = facts(&first).await?;
    let mut others = vec![connector.connect(IDLE, None).await?];
    // A server without a free third connection is still usable.
    others.extend(connector.connect(IDLE, None).await.ok());
    if !keep_apart(&first, &others).await? {
        return Err(transaction_pooler().into());
    }
    if !exclude_each_other(&first, &others[0]).await? {
        return Err(no_exclusion().into());
    }
    Ok(found)
}

async fn ask(connection: &Connection, sql: &str, doing: &str) -> Result<Vec<SimpleQueryRow>, BackendError> {
    connection.ask(sql).await.map_err(|none| none.explained(doing))
}

async fn facts(connection: &Connection) -> Result<(Common, Fencing), BackendError> {
    let doing = "say what it is";
    let rows = ask(connection, &format!("{FACTS}, {SEQUENCE}"), doing).await?;
    let row = rows.first().ok_or_else(|| unreadable(doing))?;
    let number = |column: usize| row.get(column)?.parse::<u32>().ok();
    let (Some(version), Some(shown)) = (number(0), number(2)) else { return Err(unreadable(doing)) };
    if version < VERSION_MIN {
        let what = format!("the server is PostgreSQL {}; 12 or newer is needed", row.get(1).unwrap_or("?"));
        return Err(BackendError::new(BackendErrorKind::Unsupported, what));
    }
    let fencing = fencing(row.get(3));
    let common = Common {
        tokens: matches!(fencing, Fencing::Tokens { .. }),
        knows_log: ask(connection, KNOWS_LOG, "say what of its log is synced").await.is_ok(),
        version,
        shown_bytes: usize::try_from(shown).unwrap_or(usize::MAX),
    };
    Ok((common, fencing))
}

fn fencing(sequence: Option<&str>) -> Fencing {
    let instead = "run `lockkeeper postgres init URL --role NAME` with the role of this address";
    match sequence.map(|facts| facts.split(',').collect::<Vec<_>>()).as_deref() {
        Some(["t", "t", "t"]) => {
            Fencing::Tokens { source: "the sequence `lockkeeper.token`, drawn after the lock is held" }
        }
        None => Fencing::None {
            why: "the database has no sequence `lockkeeper.token`",
            instead: "make it by `lockkeeper postgres init URL`, once for each database",
        },
        Some(["f", ..]) => Fencing::None {
            why: "the sequence `lockkeeper.token` has a cache above 1, so that a later token can be a lower one",
            instead: "run `alter sequence lockkeeper.token cache 1`, and connect again",
        },
        Some([_, "f", ..]) => Fencing::None {
            why: "the sequence `lockkeeper.token` does not rise by 1, or begins again at its end",
            instead: "run `alter sequence lockkeeper.token increment by 1 no cycle`, and connect again",
        },
        Some(_) => Fencing::None { why: "this user may not use the sequence `lockkeeper.token`", instead },
    }
}

const PID: &str = "select pg_catalog.pg_backend_pid()";
/// Number of checks whether connections keep their server processes. One is not enough: other traffic through
/// a busy pooler may keep two connections apart by chance.
const ROUNDS: usize = 4;

/// Whether each connection appears to have its own server process.
///
/// Two connections through a transaction pooler may get the same server process, one after the other; two
/// direct connections never do. Not observing this proves nothing, so new connections, tries and waits are
/// checked too. Only one transaction is open at a time: otherwise a pool with a single process would block
/// instead of showing that both connections share it.
async fn keep_apart(first: &Connection, others: &[Connection]) -> Result<bool, BackendError> {
    let doing = "say which process serves a connection";
    let process = pid(&ask(first, PID, doing).await?)?;
    let mut known = vec![None; others.len()];
    for _ in 0..ROUNDS {
        for at in 0..others.len() {
            let begun = match ask(&others[at], &format!("begin; {PID}"), "begin a transaction").await {
                // PgBouncer with pool_mode=statement.
                Err(error) if error.message.contains("statement pooling mode") => return Ok(false),
                begun => begun?,
            };
            let number = pid(&begun)?;
            let moved = known[at].replace(number).is_some_and(|before| before != number);
            let shared = known.iter().filter(|known| **known == Some(number)).count() > 1;
            if moved || shared || number == process || pid(&ask(first, PID, doing).await?)? != process {
                return Ok(false);
            }
            ask(&others[at], "rollback", "end a transaction").await?;
        }
    }
    Ok(true)
}

async fn exclude_each_other(one: &Connection, other: &Connection) -> Result<bool, BackendError> {
    let doing = "try an advisory lock";
    let key = i64::from_str_radix(&random()?, 16).unwrap_or_default();
    let lock = format!("select pg_catalog.pg_try_advisory_xact_lock({key}::bigint)");
    let held = ask(other, &format!("begin; {lock}"), doing).await?;
    let too = ask(one, &lock, doing).await?;
    let granted = |rows: &[SimpleQueryRow]| rows.last().and_then(|row| row.get(0)) == Some("t");
    Ok(granted(&held) && !granted(&too))
}

fn pid(rows: &[SimpleQueryRow]) -> Result<i32, BackendError> {
    let pid = rows.last().and_then(|row| row.get(0)?.parse().ok());
    pid.ok_or_else(|| unreadable("say which process serves a connection"))
}

fn no_exclusion() -> Unsupported {
    Unsupported {
        backend: "postgres",
        what: "hold advisory locks here",
        why: "two connections to this address held the same lock at once: it leads to more than one server, or to one \
              whose advisory locks do nothing (CockroachDB)",
        instead: "name the one primary; `lock=row` needs no advisory locks",
    }
}

/// Reports what the server's settings mean for its locks.
pub(super) async fn findings(shared: &Shared) -> Result<Vec<Finding>, BackendError> {
    let doing = "show its settings";
    let names = ["synchronous_commit", "fsync", "max_connections", "is_superuser", "track_activities"];
    let asked = names.map(|name| format!("pg_catalog.current_setting('{name}')")).join(", ");
    let newer = "pg_catalog.current_setting('idle_session_timeout', true)";
    let reads = "pg_catalog.pg_has_role('pg_read_all_stats', 'member') or pg_catalog.pg_has_role('pg_monitor', 'member')";
    let rows = shared.queries.ask(&format!("select {asked}, {newer}, {reads}"), doing).await?;
    let row = rows.first().ok_or_else(|| unreadable(doing))?;
    let text = |column: usize| row.get(column).unwrap_or_default();
    let mut found = Vec::new();
    let mut say = |spoils: bool, says: String| found.push(Finding { spoils, says });
    match shared.fencing {
        Fencing::None { why, instead } => say(true, format!("no fencing tokens: {why}; {instead}")),
        Fencing::Tokens { .. } => {
            if text(0) == "off" {
                say(
                    false,
                    "synchronous_commit is off: statements that draw a token set it to `local` for themselves, so that no token comes \
                     again after a crash of the server"
                        .to_owned(),
                );
            }
            if text(1) == "off" {
                say(
                    true,
                    "fsync is off: a crash of the server's machine can set the tokens back; set it to `on`"
                        .to_owned(),
                );
            }
        }
    }
    if !matches!(text(5), "" | "0") {
        let says = format!("idle_session_timeout is {}: connections for locks turn it off", text(5));
        say(false, says);
    }
    let most: usize = text(2).parse().unwrap_or(usize::MAX);
    // One more for queries. The server also keeps some connections for superusers, and has other clients.
    let open = shared.connections + 1;
    if open > most {
        let says = format!(
            "max_connections is {most}, and this client alone may open {open}: holds and waiters will be refused; lower \
             `connections=`, or raise max_connections"
        );
        say(true, says);
    }
    if text(3) != "on" && text(6) != "t" {
        say(
            false,
            "this role sees what connections of its own role say, and of others only that they hold: owners of other \
             roles' locks are not shown (`grant pg_read_all_stats to …`)"
                .to_owned(),
        );
    }
    if text(4) == "off" {
        let says =
            "track_activities is off: whose a lock is, and what it is called, is not shown; set it to `on`";
        say(true, says.to_owned());
    }
    if let Some(way) = in_between(shared).await? {
        let sends = shared.keepalive;
        let says = format!(
            "{way}: it must leave connections open on which something is sent every {sends:?} (`keepalive=`), and must \
             not limit how long a connection or a statement lasts"
        );
        say(false, says);
    }
    let probe = shared.probe;
    say(
        false,
        format!(
            "a hold ends when the server thinks its connection dead, and its holder notices within {:?} at most (P5 is \
             not kept): fence what must not be written by a former holder",
            probe + answer_within(probe)
        ),
    );
    Ok(found)
}

/// Describes the pooler or proxy between this client and the server, if one is detected. A proxy that
/// forwards bytes is detected only by the server's own address.
async fn in_between(shared: &Shared) -> Result<Option<String>, BackendError> {
    let doing = "say on which address it was reached";
    let connection = shared.queries.connection().await?;
    let statement = "select pg_catalog.pg_backend_pid(), pg_catalog.host(pg_catalog.inet_server_addr()), \
                     pg_catalog.inet_server_port()";
    let rows = ask(&connection, statement, doing).await?;
    let row = rows.last().ok_or_else(|| unreadable(doing))?;
    if connection.process().await != Some(pid(&rows)?) {
        return Ok(Some("a pooler lies between".to_owned()));
    }
    // A Unix socket has no address.
    let (Some(host), Some(port)) = (row.get(1), row.get(2)) else { return Ok(None) };
    let own = host.parse::<IpAddr>().ok().zip(port.parse().ok()).map(SocketAddr::from);
    let named = connection.server();
    let is_named = match tokio::net::lookup_host(named).await {
        Ok(mut addresses) => addresses.any(|address| Some(address) == own),
        Err(_) => true,
    };
    let found = || {
        format!("a proxy, or an address translation, lies between: {named} is {host}:{port} to the server")
    };
    Ok((!is_named).then(found))
}
