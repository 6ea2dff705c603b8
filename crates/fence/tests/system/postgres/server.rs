//! Killed servers, and server settings.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_fence::Token;
use lockkeeper_fence::postgres::{PostgresError, sqlx as by_sqlx, tokio_postgres as fence};
use sqlx::{Connection, PgConnection};

use crate::postgres::{connect, exclusive, server, server_with};
use crate::suite::runtime;

/// The last token whose `enter` was acknowledged, and the last number whose write was.
type Told = Arc<Mutex<(u64, u64)>>;

/// Runs sections one after the other until the server is gone.
async fn sections(url: &str, tokens: &AtomicU64, told: &Told) -> Result<(), Box<dyn std::error::Error>> {
    let mut client = connect(url).await;
    loop {
        let value = tokens.fetch_add(1, Ordering::SeqCst);
        fence::enter(&client, "stock", exclusive(value)).await?;
        told.lock().expect("no panic").0 = value;
        let pieces: i64 = client.query_one("SELECT pieces FROM stock", &[]).await?.get(0);
        let transaction = client.transaction().await?;
        fence::write(&transaction, "stock", exclusive(value)).await?;
        transaction.execute("UPDATE stock SET pieces = $1", &[&(pieces + 1)]).await?;
        transaction.commit().await?;
        told.lock().expect("no panic").1 = u64::try_from(pieces + 1)?;
    }
}

/// The rig's server runs without fsync, but what a process wrote before it died survives in the page cache.
#[test]
fn server_killed_at_random_points_loses_nothing_acknowledged() {
    const KILLS: u64 = 12;
    runtime().block_on(async {
        let server = server();
        server.psql("CREATE TABLE stock (pieces bigint); INSERT INTO stock VALUES (0)");
        let (tokens, told) = (Arc::new(AtomicU64::new(1)), Told::default());
        let mut between = 0;
        for kill in 0..KILLS {
            let before = told.lock().expect("no panic").1;
            let user = tokio::spawn({
                let (url, tokens, told) = (server.url(), Arc::clone(&tokens), Arc::clone(&told));
                async move { sections(&url, &tokens, &told).await.map_err(|error| error.to_string()) }
            });
            while told.lock().expect("no panic").1 == before {
                assert!(!user.is_finished(), "the sections failed before the kill");
                tokio::task::yield_now().await;
            }
            // The times of the kills are spread over a few sections.
            tokio::time::sleep(Duration::from_micros(kill * 7919 % 5003)).await;
            server.kill();
            user.await.expect("a task").expect_err("the server is gone");
            server.start_again();

            let (entered, written) = *told.lock().expect("no panic");
            let client = connect(&server.url()).await;
            let mark = fence::marks(&client, "stock").await.expect("whole").base.any.map_or(0, Token::get);
            let pieces: i64 = client.query_one("SELECT pieces FROM stock", &[]).await.expect("a row").get(0);
            let pieces = u64::try_from(pieces).expect("a count");
            assert!((entered..=entered + 1).contains(&mark), "mark {mark}, told {entered}");
            assert!((written..=written + 1).contains(&pieces), "{pieces} pieces, told {written}");
            between += u64::from(mark > entered || pieces > written);
            tokens.store(mark + 1, Ordering::SeqCst);
            told.lock().expect("no panic").1 = pieces;
        }
        println!("{KILLS} kills of the server, {between} with an effect untold");
    });
}

#[test]
fn check_overrides_synchronous_commit_off_for_its_transaction() {
    runtime().block_on(async {
        let server = server();
        let mut client = connect(&server.url()).await;
        for (set, effective) in
            [("off", "local"), ("local", "local"), ("on", "on"), ("remote_apply", "remote_apply")]
        {
            client.batch_execute(&format!("SET synchronous_commit = {set}")).await.expect("a setting");
            let transaction = client.transaction().await.expect("a connection");
            fence::write(&transaction, "stock", exclusive(1)).await.expect("live");
            let row = transaction.query_one("SHOW synchronous_commit", &[]).await.expect("a row");
            assert_eq!(row.get::<_, String>(0), effective, "of a transaction, set to {set}");
            transaction.commit().await.expect("live");
            let row = client.query_one("SHOW synchronous_commit", &[]).await.expect("a row");
            assert_eq!(row.get::<_, String>(0), set, "of the session");
        }
    });
}

#[test]
fn weak_settings_are_reported_by_check() {
    runtime().block_on(async {
        let lax = server();
        let findings = fence::check(&connect(&lax.url()).await).await.expect("installed");
        let told = findings.weaknesses().join("; ");
        assert!(told.contains("fsync = off") && told.contains("synchronous_standby_names"), "{told}");

        // The findings depend on the setting alone, not on connected replicas. No commit is made here, since
        // it would wait for replicas.
        let strict = server_with(&["-c", "fsync=on"]);
        strict.psql("ALTER SYSTEM SET synchronous_standby_names = 'one'");
        let mut client = PgConnection::connect(&strict.url()).await.expect("the server answers");
        sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut client).await.expect("a superuser");
        let since = std::time::Instant::now();
        loop {
            let findings = by_sqlx::check(&mut client).await.expect("installed");
            if findings.weaknesses().is_empty() {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "{findings:?}");
        }
        sqlx::raw_sql("SET synchronous_commit = local").execute(&mut client).await.expect("a setting");
        let told = by_sqlx::check(&mut client).await.expect("installed").weaknesses();
        assert!(told.len() == 1 && told[0].contains("synchronous_commit = local"), "{told:?}");
    });
}

#[test]
fn fence_of_another_version_is_refused() {
    runtime().block_on(async {
        let server = server();
        server.psql("CREATE OR REPLACE FUNCTION lockkeeper_fence.version() RETURNS integer LANGUAGE sql AS 'SELECT 2'");
        let found = fence::check(&connect(&server.url()).await).await;
        assert!(matches!(found, Err(PostgresError::OtherVersion { found: 2 })), "{found:?}");
    });
}
