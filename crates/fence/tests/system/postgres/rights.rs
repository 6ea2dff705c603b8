//! The rights that a role needs, and their limits.

use lockkeeper_fence::postgres::{PostgresError, grants_sql, tokio_postgres as fence};
use lockkeeper_fence::{Section, Token};

use crate::postgres::{connect, exclusive, refusal, server, stale};
use crate::suite::{runtime, token};

#[test]
fn role_with_the_grants_can_run_sections_and_nothing_else() {
    runtime().block_on(async {
        let server = server();
        server.psql("CREATE ROLE \"the app\" LOGIN");
        server.psql(&grants_sql("the app"));
        let mut app = connect(&server.url_as("the%20app")).await;
        let findings = fence::check(&app).await.expect("it may look");
        assert!(findings.server_version.starts_with(char::is_numeric), "{findings:?}");
        fence::enter(&app, "stock", exclusive(5)).await.expect("never seen");
        let transaction = app.transaction().await.expect("a connection");
        fence::write(&transaction, "stock", exclusive(5)).await.expect("live");
        fence::check_once(&transaction, "mail", exclusive(5)).await.expect("not here yet");
        transaction.commit().await.expect("live");
        assert_eq!(fence::marks(&app, "stock").await.expect("readable").base.any, Some(token(5)));

        for denied in [
            "SELECT * FROM lockkeeper_fence.marks",
            "UPDATE lockkeeper_fence.marks SET any_token = 1, writer_token = 1",
            "DELETE FROM lockkeeper_fence.marks",
            "TRUNCATE lockkeeper_fence.marks",
            "INSERT INTO lockkeeper_fence.marks VALUES ('new', -1, 1, 1)",
            "SELECT lockkeeper_fence.pass('stock', 'exclusive', NULL, 9, 'enter')",
            "CREATE TABLE lockkeeper_fence.own (id int)",
            "CREATE FUNCTION lockkeeper_fence.enter(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ] {
            let error = server.try_psql_as("the%20app", denied).expect_err(denied);
            assert!(error.contains("permission denied"), "{denied}: {error}");
        }
        let reset = fence::reset(&app, "stock", Token::MIN).await;
        assert!(matches!(reset, Err(PostgresError::NotInstalled(_))), "{reset:?}");
        assert_eq!(refusal(fence::enter(&app, "stock", exclusive(4)).await), Err(stale(4, 5)));
    });
}

#[test]
fn missing_rights_or_fence_are_reported_with_the_remedy() {
    runtime().block_on(async {
        let server = server();
        server.psql("CREATE ROLE nobody LOGIN");
        let stranger = connect(&server.url_as("nobody")).await;
        server.psql("CREATE DATABASE bare");
        let bare = connect(&format!("postgres://postgres@127.0.0.1:{}/bare", server.port())).await;
        for client in [&stranger, &bare] {
            let error = fence::enter(client, "stock", exclusive(1)).await.expect_err("no rights");
            assert!(matches!(error, PostgresError::NotInstalled(_)), "{error:?}");
            assert!(error.to_string().contains("SCHEMA_SQL"), "{error}");
            assert!(matches!(fence::check(client).await, Err(PostgresError::NotInstalled(_))));
        }
        fence::install(&bare).await.expect("the owner may");
        fence::enter(&bare, "stock", exclusive(1)).await.expect("never seen");
        fence::install(&bare).await.expect("again is harmless");
        assert_eq!(fence::marks(&bare, "stock").await.expect("kept").base.any, Some(token(1)));
    });
}

#[test]
fn concurrent_installs_succeed() {
    runtime().block_on(async {
        let server = server();
        server.psql("DROP SCHEMA lockkeeper_fence CASCADE");
        let mut installing = Vec::new();
        for _ in 0..4 {
            let client = connect(&server.url()).await;
            installing.push(tokio::spawn(async move { fence::install(&client).await }));
        }
        for install in installing {
            install.await.expect("a task").expect("installed");
        }
        fence::check(&connect(&server.url()).await).await.expect("it is there");
    });
}

/// The functions run with their owner's rights, so operators and tables of the caller must not affect them.
#[test]
fn callers_operators_and_tables_do_not_affect_the_functions() {
    runtime().block_on(async {
        let server = server();
        server.psql("CREATE ROLE app LOGIN; CREATE SCHEMA evil AUTHORIZATION app");
        server.psql(&grants_sql("app"));
        let app = connect(&server.url_as("app")).await;
        fence::enter(&app, "stock", exclusive(5)).await.expect("never seen");
        app.batch_execute(
            "CREATE FUNCTION evil.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
             CREATE OPERATOR evil.< (FUNCTION = evil.yes, LEFTARG = bigint, RIGHTARG = bigint);
             CREATE OPERATOR evil.<= (FUNCTION = evil.yes, LEFTARG = bigint, RIGHTARG = bigint);
             CREATE TEMP TABLE marks (resource text, slot int, any_token bigint, writer_token bigint);
             SET search_path = evil, pg_temp, pg_catalog;",
        )
        .await
        .expect("its own schema");
        let row = app.query_one("SELECT 9::bigint < 5::bigint", &[]).await.expect("a row");
        assert!(row.get::<_, bool>(0), "the operator is not used: this test shows nothing");
        assert_eq!(refusal(fence::enter(&app, "stock", exclusive(4)).await), Err(stale(4, 5)));
    });
}

#[test]
fn plain_sql_is_checked_by_the_same_rule_and_gets_clear_errors() {
    let server = server();
    let call = |arguments: &str| server.try_psql(&format!("SELECT lockkeeper_fence.enter({arguments})"));
    call("'stock', 'exclusive', NULL, 7").expect("never seen");
    for (arguments, told) in [
        ("'stock', 'exclusive', NULL, 6", "token 6 is stale: token 7 has been at 'stock'"),
        ("'stock', 'exclusive', 3, 8", "only mode permit has slots"),
        ("'stock', 'permit', 65536, 8", "0 to 65535"),
        ("'stock', 'permit', -1, 8", "0 to 65535"),
        ("'stock', 'reader', NULL, 8", "exclusive, shared or permit"),
        ("'stock', NULL, NULL, 8", "exclusive, shared or permit"),
        ("'stock', 'exclusive', NULL, 0", "tokens are 1 to"),
        ("'stock', 'exclusive', NULL, 9007199254740992", "tokens are 1 to"),
        ("'stock', 'exclusive', NULL, NULL", "null is not a token"),
        ("'', 'exclusive', NULL, 8", "1 to 512 bytes"),
        ("NULL, 'exclusive', NULL, 8", "1 to 512 bytes"),
        ("repeat('x', 513), 'exclusive', NULL, 8", "1 to 512 bytes"),
        ("E'a\\nb', 'exclusive', NULL, 8", "control characters"),
    ] {
        let error = call(arguments).expect_err(arguments);
        assert!(error.contains(told), "{arguments}: {error}");
    }
    call("repeat('ü', 256), 'exclusive', NULL, 9007199254740991").expect("at the limits");
    assert_eq!(
        server.psql("SELECT count(*) FROM lockkeeper_fence.marks").trim(),
        "2",
        "refusals leave no row"
    );
}

#[test]
fn rust_sections_have_the_same_limits() {
    runtime().block_on(async {
        let server = server();
        let client = connect(&server.url()).await;
        for name in ["", "a\nb", &"x".repeat(513)] {
            let error = fence::enter(&client, name, exclusive(1)).await.expect_err(name);
            assert!(matches!(error, PostgresError::Resource(_)), "{error}");
        }
        let highest = Token::new((1 << 53) - 1).expect("the greatest");
        fence::enter(&client, &"ü".repeat(256), Section::permit(65_535, highest).expect("the last slot"))
            .await
            .expect("at the limits");
    });
}
