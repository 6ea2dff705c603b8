//! Programs that can't be changed, and write to a table guarded by `lockkeeper_fence.guard_table`.

use lockkeeper_fence::postgres::{sqlx as by_sqlx, tokio_postgres as fence};
use lockkeeper_fence::{Refused, Section};
use lockkeeper_rig::Postgres;
use sqlx::{Connection, PgConnection};

use crate::postgres::{connect, exclusive, server, stale};
use crate::suite::{runtime, token};

/// A server with a guarded table, and a role that may write the table but has no rights to the fence.
fn guarded() -> Postgres {
    let server = server();
    server.psql(
        "CREATE TABLE orders (id int PRIMARY KEY, state text); INSERT INTO orders VALUES (1, 'new');
         SELECT lockkeeper_fence.guard_table('orders');
         CREATE ROLE legacy LOGIN; GRANT ALL ON orders TO legacy",
    );
    server
}

#[test]
fn every_statement_without_a_token_is_refused() {
    let server = guarded();
    for write in [
        "UPDATE orders SET state = 'paid'",
        "UPDATE orders SET state = 'paid' WHERE id = 77",
        "INSERT INTO orders VALUES (2, 'new')",
        "DELETE FROM orders",
        "TRUNCATE orders",
        "COPY orders FROM PROGRAM 'true'",
        "SET lockkeeper.token = ''; UPDATE orders SET state = 'paid'",
    ] {
        let error = server.try_psql(write).expect_err(write);
        assert!(error.contains("public.orders is guarded by the fence 'public.orders'"), "{write}: {error}");
    }
    for (set, told) in [
        ("SET lockkeeper.token = 'x'", "must be numbers"),
        ("SET lockkeeper.token = '5'; SET lockkeeper.slot = '-1'", "must be numbers"),
        ("SET lockkeeper.token = '5'; SET lockkeeper.mode = 'shared'", "may only enter and read"),
        ("SET lockkeeper.token = '5'; SET lockkeeper.slot = '1'", "only mode permit has slots"),
    ] {
        let error = server.try_psql(&format!("{set}; DELETE FROM orders")).expect_err(set);
        assert!(error.contains(told), "{set}: {error}");
    }
    assert_eq!(server.psql("SELECT state FROM orders").trim(), "new", "and reading needs none");
}

/// The token is set from outside, as by `PGOPTIONS`, for an unmodified program and a role without any grant.
#[test]
fn token_in_the_connection_options_is_checked() {
    runtime().block_on(async {
        let server = guarded();
        let owner = connect(&server.url()).await;
        fence::enter(&owner, "public.orders", exclusive(5)).await.expect("never seen");
        let job = connect(&format!("{}?options=-c%20lockkeeper.token%3D5", server.url_as("legacy"))).await;
        job.execute("UPDATE orders SET state = 'paid'", &[]).await.expect("live");

        fence::enter(&owner, "public.orders", exclusive(6)).await.expect("later");
        let error = job.execute("UPDATE orders SET state = 'late'", &[]).await.expect_err("stale");
        assert_eq!(fence::refusal(&error), Some(stale(5, 6)));
        assert_eq!(server.psql("SELECT state FROM orders").trim(), "paid");

        let mut job = PgConnection::connect(&server.url_as("legacy")).await.expect("the server answers");
        let late = "SET lockkeeper.token = '5'; UPDATE orders SET state = 'late'";
        let error = sqlx::raw_sql(late).execute(&mut job).await.expect_err("stale");
        assert_eq!(by_sqlx::refusal(&error), Some(stale(5, 6)));
        let none = sqlx::raw_sql("SELECT 1/0").execute(&mut job).await.expect_err("no refusal");
        assert_eq!(by_sqlx::refusal(&none), None::<Refused>);
    });
}

#[test]
fn token_set_in_a_transaction_applies_to_it_only() {
    runtime().block_on(async {
        let server = guarded();
        let mut client = connect(&server.url_as("legacy")).await;
        let transaction = client.transaction().await.expect("a connection");
        transaction
            .batch_execute("SET LOCAL lockkeeper.token = '7'; UPDATE orders SET state = 'paid'")
            .await
            .expect("live");
        transaction.commit().await.expect("live");
        let error = client.batch_execute("UPDATE orders SET state = 'late'").await.expect_err("no token");
        assert!(error.as_db_error().is_some_and(|error| error.code().code() == "LK005"), "{error}");
    });
}

#[test]
fn permits_write_a_guarded_table_by_their_slot() {
    runtime().block_on(async {
        let server = guarded();
        let owner = connect(&server.url()).await;
        let permit = |slot, value| Section::permit(slot, token(value)).expect("a slot");
        fence::enter(&owner, "public.orders", permit(0, 9)).await.expect("never seen");
        let write = |slot: u32, value: u64| {
            let settings = format!("lockkeeper.mode = 'permit'; SET lockkeeper.slot = '{slot}'");
            server.try_psql(&format!(
                "SET {settings}; SET lockkeeper.token = '{value}'; UPDATE orders SET id = id"
            ))
        };
        write(1, 2).expect("its own slot");
        let error = write(0, 8).expect_err("stale in its slot");
        assert!(error.contains("token 8 is stale: token 9"), "{error}");
    });
}

/// If every statement raised the mark, row versions of the mark would accumulate in a transaction of many
/// statements, and each statement would scan all of them.
#[test]
fn a_transaction_of_many_statements_raises_its_mark_once_and_stays_checked() {
    runtime().block_on(async {
        let server = guarded();
        let mut client = connect(&server.url()).await;
        let transaction = client.transaction().await.expect("a connection");
        transaction.batch_execute("SET LOCAL lockkeeper.token = '7'").await.expect("a setting");
        let mut places = Vec::new();
        for id in 10..20 {
            transaction.execute("INSERT INTO orders VALUES ($1, 'new')", &[&id]).await.expect("live");
            let row = transaction.query_one("SELECT ctid::text FROM lockkeeper_fence.marks", &[]).await;
            places.push(row.expect("one row").get::<_, String>(0));
        }
        places.dedup();
        assert_eq!(places.len(), 1, "{places:?}");
        // Marks that the transaction itself has raised between two statements count as well.
        fence::enter(&transaction, "public.orders", Section::permit(0, token(9)).expect("a slot"))
            .await
            .expect("above");
        let error = transaction.batch_execute("DELETE FROM orders").await.expect_err("slot 0 has seen 9");
        assert_eq!(fence::refusal(&error), Some(stale(7, 9)));
    });
}

#[test]
fn guard_uses_the_given_resource_name_and_can_be_removed() {
    let server = guarded();
    server.psql("CREATE TABLE lines (id int); SELECT lockkeeper_fence.guard_table('lines', 'it''s orders')");
    server.psql("SELECT lockkeeper_fence.enter('it''s orders', 'exclusive', NULL, 4)");
    let error =
        server.try_psql("SET lockkeeper.token = '3'; INSERT INTO lines VALUES (1)").expect_err("stale");
    assert!(error.contains("token 3 is stale: token 4"), "{error}");
    let error = server.try_psql("SELECT lockkeeper_fence.guard_table('lines')").expect_err("guarded already");
    assert!(error.contains("already exists"), "{error}");
    server.psql("SELECT lockkeeper_fence.unguard_table('lines'); INSERT INTO lines VALUES (1)");

    server.psql("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA lockkeeper_fence TO app;
                 GRANT EXECUTE ON FUNCTION lockkeeper_fence.guard_table, lockkeeper_fence.unguard_table, lockkeeper_fence.guard TO app");
    let error =
        server.try_psql_as("app", "SELECT lockkeeper_fence.guard_table('lines')").expect_err("not the owner");
    assert!(error.contains("permission denied"), "{error}");
    let error = server
        .try_psql_as("app", "SELECT lockkeeper_fence.unguard_table('orders')")
        .expect_err("not the owner");
    assert!(error.contains("must be owner"), "{error}");
}
