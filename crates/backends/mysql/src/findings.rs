//! Reports what the server's settings mean for locks.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_backend::{BackendError, Finding};
use mysql_async::Row;

use crate::answer::explained;
use crate::lane::{CallLane, column};

/// Reads the names and values of these settings. A server returns no row for a setting that its version does
/// not have.
pub(crate) const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', \
     'innodb_doublewrite', 'innodb_flush_method', 'log_bin', 'sync_binlog', 'wsrep_on', \
     'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'group_replication_group_name', 'wait_timeout', \
     'max_statement_time', 'version')";

/// Counts the replicas that read the binary log. Needs the privilege PROCESS.
const REPLICAS: &str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                                   WHERE COMMAND IN ('Binlog Dump', 'Binlog Dump GTID')";

type Settings = BTreeMap<String, String>;

fn settings(rows: &[Row]) -> Settings {
    let pair = |row: &Row| Some((column(row, 0).ok()?, column(row, 1).ok()?));
    rows.iter().filter_map(pair).collect()
}

/// For lease rows.
///
/// # Errors
/// The settings can't be read.
pub(crate) async fn of_rows(calls: &CallLane, limit: Duration) -> Result<Vec<Finding>, BackendError> {
    let ask = async |doing, sql| {
        let answer = calls.ask(limit, doing, sql, Vec::new()).await;
        answer.map_err(|failure| explained(failure, doing))
    };
    let settings = settings(&ask("read the settings", SETTINGS).await?.rows);
    let replicas = ask("count the replicas", REPLICAS).await.ok();
    let replicas = replicas.and_then(|done| column::<u64>(done.rows.first()?, 0).ok());
    let value = |name: &str| settings.get(name).map_or("", String::as_str);
    let mut findings = Vec::new();
    let mut say = |spoils, says: String| findings.push(Finding { spoils, says });
    let flush = value("innodb_flush_log_at_trx_commit");
    if flush != "1" {
        say(
            true,
            format!(
                "innodb_flush_log_at_trx_commit={flush}: a crash of the machine{} loses the grants of up to a second, so \
                 that two can hold (P1, P10); tokens rise all the same while the clock is not set back. Set it to 1",
                if flush == "0" { " or of the server" } else { "" }
            ),
        );
    }
    if value("innodb_doublewrite") == "OFF" {
        let says = "innodb_doublewrite=OFF: a crash of the machine can damage the rows (P10); set it to ON, unless the \
                    file system never tears a page";
        say(true, says.into());
    }
    if value("innodb_flush_method") == "nosync" {
        say(
            true,
            "innodb_flush_method=nosync: a crash of the machine loses grants (P1, P10); set another".into(),
        );
    }
    if value("log_bin") == "ON" && value("sync_binlog") != "1" {
        say(
            true,
            format!(
                "sync_binlog={}: a crash of the machine loses transactions of the binary log, so that a replica that takes \
                 over, or the recovered server itself, lacks the last grants (P1, P10); set it to 1",
                value("sync_binlog")
            ),
        );
    }
    let waits =
        value("rpl_semi_sync_master_enabled") == "ON" || value("rpl_semi_sync_source_enabled") == "ON";
    let group = !value("group_replication_group_name").is_empty();
    if value("log_bin") == "ON" && !waits && !group && value("wsrep_on") != "ON" {
        match replicas {
            Some(0) => {}
            Some(replicas) => say(
                true,
                format!(
                    "{replicas} replicas follow asynchronously: one that takes over can lack the last grants, so that two \
                     hold (P1, P10); enable semi-synchronous replication, and let only an up-to-date replica take over"
                ),
            ),
            None => say(
                false,
                "this user may not see whether replicas follow (privilege PROCESS): an asynchronous one that takes over can \
                 lack the last grants, so that two hold (P1, P10)"
                    .into(),
            ),
        }
    }
    if waits {
        say(
            false,
            "semi-synchronous replication: after a time-out (rpl_semi_sync_…_timeout) the server goes on asynchronously, \
             and a replica that takes over then can lack the last grants (P1, P10)"
                .into(),
        );
    }
    if value("wsrep_on") == "ON" {
        say(
            false,
            "a node of a Galera cluster: name one node in the addresses of all clients. With several nodes, exclusion \
             depends on their clocks (P1), the queue is not in order (P8), and a cancelled attempt may hold for a ttl (P7)"
                .into(),
        );
    }
    say(
        false,
        "time is the server's own: no client's clock counts, but one of the server that is stepped forward ends holds early \
         (P5), and one that is set back makes tokens depend on rows that are never deleted (P2); let it be slewed (chrony, \
         ntpd -x)"
            .into(),
    );
    say(
        false,
        "the server wakes nobody: the first waiter looks about every 40 ms, those behind it up to every second, and a \
         hand-over takes that much longer"
            .into(),
    );
    Ok(findings)
}

/// For locks of a connection. `idle_s`: after this time without a probe the server closes a connection.
pub(crate) fn of_sessions(rows: &[Row], has_table: bool, idle_s: u64) -> Vec<Finding> {
    let settings = settings(rows);
    let mut findings = Vec::new();
    if !has_table {
        let says = "the table `lockkeeper_session` is not there: no tokens, nobody is shown, and nothing can be broken; \
                    docs/backends/mysql-session.md has the statement that makes it";
        findings.push(Finding { spoils: false, says: says.into() });
    }
    let limit = settings.get("max_statement_time").and_then(|limit| limit.parse().ok()).unwrap_or(0.0);
    for (name, value, low) in [
        ("wait_timeout", settings.get("wait_timeout"), false),
        ("max_statement_time", settings.get("max_statement_time"), limit > 0.0),
    ] {
        let low = low
            || value
                .and_then(|value| value.parse().ok())
                .is_some_and(|s: f64| name == "wait_timeout" && s < 60.0);
        if let (true, Some(value)) = (low, value) {
            let says = format!(
                "{name}={value} by the server's default: our connections set their own (a wait has no limit, and one that \
                 holds is closed after {idle_s} s without a probe)"
            );
            findings.push(Finding { spoils: false, says });
        }
    }
    let says = "a lock ends with its connection: when the server restarts, fails over or is told to end it, the holder finds \
                out by its next probe only (P5); what must not be written by a former holder needs a fence";
    findings.push(Finding { spoils: false, says: says.into() });
    findings
}
