//! The DDL for fencing tokens and lease rows. It runs on explicit request only.

use lockkeeper_backend::{BackendError, BackendErrorKind, ConnectError, Url};
use postgres_protocol::escape::escape_identifier;

use super::connect::{Connector, NoAnswer, chain};
use super::row;
use super::settings::Settings;

const TOKENS: &str = include_str!("init.sql");
/// The server resolves the names in a table's defaults and conditions once, when the table is created. So the
/// search path is fixed first.
const OWN_NAMES: &str = "-- Names mean what is PostgreSQL's own, whatever the path of whoever runs this.\n\
    SET LOCAL search_path = pg_catalog, pg_temp;\n";

/// The SQL that [`init`] runs: one idempotent transaction. With a role, also grants it the minimum privileges
/// that it needs to use the locks; without grants only the schema's owner may use them.
#[must_use]
pub fn schema_sql(role: Option<&str>) -> String {
    let grants = role.map(grants).unwrap_or_default();
    format!("BEGIN;\n{OWN_NAMES}\n{TOKENS}\n{}\n{grants}COMMIT;\n", row::SCHEMA)
}

fn grants(role: &str) -> String {
    let role = escape_identifier(role);
    let role = role.trim();
    let sequence = format!("GRANT USAGE, SELECT ON SEQUENCE lockkeeper.token TO {role};\n");
    format!("-- What a client needs, and no more.\n{}{sequence}\n", row::grants(role))
}

/// Creates the schema `lockkeeper` in the database of the address `url`, and grants `role`, if given, the use
/// of the schema. The address needs no `lock=`. Idempotent; tokens are never set back.
///
/// # Errors
/// [`ConnectError`]: a bad address, an unreachable server, or a user without the privilege.
pub async fn init(url: &str, role: Option<&str>) -> Result<(), ConnectError> {
    let mut url = Url::parse(url, &["postgres", "postgresql"])?;
    url.find_password()?;
    if !matches!(url.scheme.as_str(), "postgres" | "postgresql") {
        return Err(url.bad_part(url.scheme.clone(), "`postgres:`, where a schema can be made").into());
    }
    let connector = Connector::new(Settings::of_any(&url)?)?;
    let connection = connector.connect("lockkeeper init", None).await?;
    match connection.ask(&schema_sql(role)).await {
        Ok(_) => Ok(()),
        Err(NoAnswer::Refused(error)) => {
            let what = format!(
                "the schema `lockkeeper` can't be made: {}; run this as a user that may create schemas in the database, \
                 or give such a user what `lockkeeper postgres init --print` shows",
                chain(&error)
            );
            Err(BackendError::new(BackendErrorKind::Operator, what).into())
        }
        Err(none) => Err(none.explained("make the schema `lockkeeper`").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_names_are_quoted_in_grants() {
        let sql = schema_sql(Some("a \"role\"; drop table x"));
        assert!(sql.contains("TO \"a \"\"role\"\"; drop table x\";"), "{sql}");
        assert!(!schema_sql(None).contains("GRANT"));
    }

    #[test]
    fn schema_sql_is_one_transaction() {
        let sql = schema_sql(Some("app"));
        assert!(sql.starts_with("BEGIN;\n") && sql.ends_with("COMMIT;\n"));
        assert_eq!(sql.lines().filter(|line| matches!(line.trim(), "BEGIN;" | "COMMIT;")).count(), 2);
    }
}
