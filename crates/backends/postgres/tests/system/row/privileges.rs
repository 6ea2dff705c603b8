//! The privileges that a user needs, and the errors without them; a missing or old schema.

use lockkeeper::{BackendErrorKind, ConnectError, Locks, LossCause};
use lockkeeper_rig::Postgres;

use crate::row::support::{SECOND, client, order, rows, server};

async fn refused(url: &str) -> (String, BackendErrorKind) {
    match Locks::connect(&rows(url)).await {
        Err(ConnectError::Backend(error)) => (error.to_string(), error.kind),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is let in"),
    }
}

fn grant(server: &Postgres, role: &str, functions: &str) {
    server.psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA lockkeeper TO {role};
         DO $$ DECLARE f regprocedure; BEGIN
             FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'lockkeeper'::regnamespace
                 AND proname IN ({functions})
             LOOP EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {role}', f); END LOOP;
         END $$"
    ));
}

const LOOKS: &str = "'row_version', 'row_look', 'row_check_token'";
const LOCKS: &str =
    "'row_version', 'row_look', 'row_check_token', 'row_acquire', 'row_renew', 'row_finish', 'row_clean'";

#[tokio::test]
async fn a_database_without_the_schema_is_refused_with_the_command_that_creates_it() {
    let server = Postgres::start();
    let (said, kind) = refused(&server.url()).await;
    assert_eq!(kind, BackendErrorKind::Operator);
    let line = format!("`lockkeeper postgres init {}?connections=4&lock=row`", server.url());
    assert!(said.contains(&line), "{said}");
}

#[tokio::test]
async fn a_schema_that_is_older_than_the_program_is_refused_with_the_command_too() {
    let server = server();
    let body =
        "CREATE OR REPLACE FUNCTION lockkeeper.row_version() RETURNS integer LANGUAGE sql IMMUTABLE AS";
    server.psql(&format!("{body} 'SELECT 0'"));
    let (said, _) = refused(&server.url()).await;
    assert!(said.contains("has version 0, this program needs 1"), "{said}");
    assert!(said.contains("`lockkeeper postgres init postgres://"), "{said}");
    // A newer schema keeps the functions that earlier programs call.
    server.psql(&format!("{body} 'SELECT 2'"));
    client(&server.url(), "earlier").await.mutex("any").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_error_names_a_schema_that_was_dropped() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    locks.mutex("any").acquire().await.unwrap().release().await.unwrap();
    server.psql("DROP SCHEMA lockkeeper CASCADE");
    let said = locks.mutex("any").acquire().await.unwrap_err().to_string();
    assert!(said.contains("lockkeeper postgres init"), "{said}");
}

#[tokio::test]
async fn a_user_with_the_functions_can_lock_but_cannot_access_the_tables() {
    let server = server();
    grant(&server, "locker", LOCKS);
    let locks = client(&server.url_as("locker"), "locker").await;
    let held = locks.semaphore("any", 2).acquire().await.unwrap();
    let waiter = locks.mutex("any");
    let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    crate::row::support::until_waiting(&locks, "any", 1).await;
    let error = locks.break_hold(order("any", &held, true)).await.unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("permission denied for function row_break"), "{error}");
    held.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    for table in ["row_lease", "row_waiter", "row_gone", "row_sweep"] {
        for sql in [format!("TABLE lockkeeper.{table}"), format!("DELETE FROM lockkeeper.{table}")] {
            let error = server.try_psql_as("locker", &sql).unwrap_err();
            assert!(error.contains("permission denied for table"), "{sql}: {error}");
        }
    }
    for internal in ["row_anchor('any')", "row_wake('any', now())"] {
        let error = server.try_psql_as("locker", &format!("SELECT lockkeeper.{internal}")).unwrap_err();
        assert!(error.contains("permission denied for function"), "{internal}: {error}");
    }
}

#[tokio::test]
async fn the_role_of_the_schema_may_lock_inspect_and_break_and_nothing_else() {
    let server = Postgres::start();
    server.psql("CREATE ROLE \"odd role\" LOGIN");
    server.psql(&lockkeeper::backends::postgres::schema_sql(Some("odd role")));
    let locks = client(&server.url_as("odd%20role"), "client").await;
    let held = locks.mutex("any").acquire().await.unwrap();
    locks.break_hold(order("any", &held, true)).await.unwrap();
    assert!(locks.list(None).await.unwrap().is_empty());
    let granted = "SELECT string_agg(privilege_type || ' ' || table_name, ', ' ORDER BY table_name)
        FROM information_schema.table_privileges WHERE grantee = 'odd role'";
    assert_eq!(server.psql(granted), "", "no right on any table");
}

#[tokio::test]
async fn a_user_with_read_functions_only_cannot_lock() {
    let server = server();
    grant(&server, "looker", LOOKS);
    let held = client(&server.url(), "client").await.mutex("any").acquire().await.unwrap();
    let looks = client(&server.url_as("looker"), "looker").await;
    let seen = looks.inspect("any").await.unwrap();
    assert_eq!(seen.holds[0].token, held.token_hint());
    let error = looks.mutex("other").acquire().await.unwrap_err().to_string();
    assert!(error.contains("permission denied for function row_acquire"), "{error}");
}

#[tokio::test]
async fn the_error_without_schema_usage_names_the_remedy() {
    let server = server();
    server.psql("CREATE ROLE nobody LOGIN");
    let (said, kind) = refused(&server.url_as("nobody")).await;
    assert_eq!(kind, BackendErrorKind::Denied);
    assert!(said.contains("may not use the schema `lockkeeper`") && said.contains("--role NAME"), "{said}");
}

#[tokio::test]
async fn repeatable_read_transactions_are_refused() {
    let server = server();
    server.psql("ALTER ROLE postgres SET default_transaction_isolation = 'repeatable read'");
    let (said, _) = refused(&server.url()).await;
    assert!(said.contains("`repeatable read`") && said.contains("`read committed`"), "{said}");
    let call =
        "SELECT outcome FROM lockkeeper.row_acquire('any', 'a-1', true, 1, 30000, 0, false, '', '', NULL)";
    let error = server.try_psql(call).unwrap_err();
    assert!(error.contains("lease rows need read committed"), "{error}");
}

#[tokio::test]
async fn settings_that_break_a_promise_are_reported() {
    let server = server();
    // The test server does not sync to disk.
    let found = client(&server.url(), "client").await.findings().await.unwrap();
    let spoilt: Vec<&str> =
        found.iter().filter(|finding| finding.spoils).map(|finding| finding.says.as_str()).collect();
    assert!(spoilt.len() == 2 && spoilt[0].starts_with("fsync=off"), "{spoilt:?}");
    server.psql("ALTER ROLE postgres SET synchronous_commit = off");
    let found = client(&server.url(), "client").await.findings().await.unwrap();
    assert!(found.iter().any(|finding| finding.spoils && finding.says.starts_with("synchronous_commit=off")));
    assert!(
        found.iter().any(|finding| !finding.spoils && finding.says.contains("time is the database's own"))
    );
}

#[tokio::test]
async fn a_privilege_that_is_revoked_is_the_reason_of_the_loss() {
    let server = server();
    grant(&server, "locker", LOCKS);
    let locks = client(&server.url_as("locker"), "locker").await;
    let held = locks.mutex("any").ttl(SECOND).acquire().await.unwrap();
    server.psql("REVOKE EXECUTE ON FUNCTION lockkeeper.row_renew(text[], text[], bigint[]) FROM locker");
    held.lost().cancelled().await;
    let lost = held.valid_until().unwrap_err();
    assert_eq!(lost.cause, LossCause::Expired);
    assert!(lost.to_string().contains("permission denied for function row_renew"), "{lost}");
}
