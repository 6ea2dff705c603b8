//! Reports what the server's settings and a pooler in between mean for lease rows.

use lockkeeper_backend::{BackendError, Finding};
use tokio_postgres::Row;

use super::calls::column;
use super::listen::Hearing;

/// `rows`: the result of `SETTINGS`, which are the settings in effect for this user. `hearing`: whether
/// notifications arrive.
pub(super) fn of(rows: &[Row], hearing: Hearing) -> Result<Vec<Finding>, BackendError> {
    let row = rows.first();
    let is_off = |at| column::<String>(row, at).map(|value| value == "off");
    let (synchronous_standbys, standbys): (String, i64) = (column(row, 3)?, column(row, 4)?);
    let mut findings = Vec::new();
    let mut say = |spoils, says: String| findings.push(Finding { spoils, says });
    if is_off(0)? {
        say(
            true,
            "fsync=off: a crash of the machine can damage the database, lose grants (P10) and set tokens back (P2); \
             set it to `on`"
                .into(),
        );
    }
    if is_off(1)? {
        say(
            true,
            "full_page_writes=off: a crash of the machine can damage the rows (P10); set it to `on`, unless the file \
             system never tears a page"
                .into(),
        );
    }
    if is_off(2)? {
        say(
            true,
            "synchronous_commit=off: a crash of the server loses the last grants, so that two can hold (P1, P10); \
             tokens rise all the same while its clock is not set back. Set it to `on`, for this user at least: ALTER \
             ROLE … SET synchronous_commit = on"
                .into(),
        );
    }
    if standbys > 0 && synchronous_standbys.is_empty() {
        say(
            true,
            format!(
                "synchronous_standby_names is empty, and {standbys} standbys follow: one that takes over can lack the last \
                 grants, so that two hold (P1, P10); name the standby that would take over"
            ),
        );
    }
    say(
        false,
        "time is the database's own: no client's clock counts, but one of the server that is stepped forward ends \
         holds early (P5), and one that is set back makes tokens depend on rows that are never deleted (P2); let it \
         be slewed (chrony, ntpd -x)"
            .into(),
    );
    match hearing {
        Hearing::Hears => {}
        Hearing::Deaf => say(
            false,
            "a NOTIFY to ourselves did not come back: a transaction pooler lies between. Locks are safe; waiters \
             look for themselves, the first one about every 100 ms, and take that much longer. Connect past the pooler \
             for wake-ups"
                .into(),
        ),
        Hearing::Unknown => say(
            false,
            "no further connection could be had for wake-ups and renewals: waiters look for themselves, and renewals \
             share the connections of the calls; raise the server's or the role's limit by one for each client"
                .into(),
        ),
    }
    Ok(findings)
}
