//! Isolation levels, and sections in one transaction: enter, read and write.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::postgres::{PostgresError, tokio_postgres as fence};
use lockkeeper_fence::{ModeKind, Section};
use lockkeeper_rig::Postgres;
use tokio::sync::Barrier;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel};

use crate::postgres::{connect, exclusive, refusal, server, stale};
use crate::suite::{runtime, token};

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Runs a section in one transaction; `Ok(false)` if it must be run again.
async fn one_more(client: &mut Client, level: IsolationLevel, value: u64) -> Result<bool, PostgresError> {
    let again = |error: &tokio_postgres::Error| {
        let serialization = error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE);
        assert!(serialization || error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error:?}");
    };
    let transaction = client.build_transaction().isolation_level(level).start().await.expect("a connection");
    match fence::enter(&transaction, "stock", exclusive(value)).await {
        Err(PostgresError::TryAgain(_)) => return Ok(false),
        other => other?,
    }
    let row =
        transaction.query_one("SELECT pieces FROM stock WHERE id = 3", &[]).await.expect("the row is there");
    let pieces: i64 = row.get(0);
    tokio::task::yield_now().await;
    if let Err(error) =
        transaction.execute("UPDATE stock SET pieces = $1 WHERE id = 3", &[&(pieces + 1)]).await
    {
        again(&error);
        return Ok(false);
    }
    match transaction.commit().await {
        Ok(()) => Ok(true),
        Err(error) => {
            again(&error);
            Ok(false)
        }
    }
}

#[test]
fn sections_in_one_transaction_lose_no_update_at_any_isolation_level() {
    const USERS: usize = 4;
    const ROUNDS: u64 = 40;
    runtime().block_on(async {
        for level in LEVELS {
            let server = server();
            server.psql(
                "CREATE TABLE stock (id int PRIMARY KEY, pieces bigint); INSERT INTO stock VALUES (3, 0)",
            );
            let (next, start) = (Arc::new(AtomicU64::new(1)), Arc::new(Barrier::new(USERS)));
            let mut users = Vec::new();
            for _ in 0..USERS {
                let mut client = connect(&server.url()).await;
                let (next, start) = (Arc::clone(&next), Arc::clone(&start));
                users.push(tokio::spawn(async move {
                    start.wait().await;
                    let (mut committed, mut repeated) = (0, 0);
                    for _ in 0..ROUNDS {
                        let value = next.fetch_add(1, Ordering::SeqCst);
                        loop {
                            match one_more(&mut client, level, value).await {
                                Ok(true) => committed += 1,
                                Ok(false) => {
                                    repeated += 1;
                                    continue;
                                }
                                Err(PostgresError::Refused(_)) => {}
                                Err(other) => panic!("{other}: {other:?}"),
                            }
                            break;
                        }
                    }
                    (committed, repeated)
                }));
            }
            let (mut committed, mut repeated) = (0_u64, 0_u64);
            for user in users {
                let (own, again) = user.await.expect("a user");
                (committed, repeated) = (committed + own, repeated + again);
            }
            println!("{level:?}: {committed} of {} committed, {repeated} run again", USERS as u64 * ROUNDS);
            assert_eq!(server.psql("SELECT pieces FROM stock").trim(), committed.to_string(), "{level:?}");
            assert!(committed > 0);
        }
    });
}

/// Returns once a session waits for a lock.
async fn until_one_waits(server: &Postgres) {
    let since = std::time::Instant::now();
    while server.psql("SELECT count(*) FROM pg_locks WHERE NOT granted").trim() == "0" {
        assert!(since.elapsed().as_secs() < 30, "nobody ever waited");
        tokio::task::yield_now().await;
    }
}

/// The write of an equal token raises no mark. If it only locked the row, a waiter at REPEATABLE READ would
/// continue on its snapshot from before that write, enter, and read outdated data.
#[test]
fn section_that_waited_for_a_write_fails_instead_of_reading_older_data() {
    runtime().block_on(async {
        for (first, second) in [
            (exclusive(5), exclusive(6)),
            (Section::permit(0, token(5)).expect("a slot"), exclusive(6)),
            (Section::permit(0, token(5)).expect("a slot"), Section::permit(0, token(6)).expect("a slot")),
            (exclusive(5), Section::shared(token(6))),
        ] {
            let server = server();
            server.psql(
                "CREATE TABLE stock (id int PRIMARY KEY, pieces bigint); INSERT INTO stock VALUES (3, 10)",
            );
            let (mut writer, mut reader) = (connect(&server.url()).await, connect(&server.url()).await);
            fence::enter(&writer, "stock", first).await.expect("never seen");
            let writing = writer.transaction().await.expect("a connection");
            fence::write(&writing, "stock", first).await.expect("live");
            writing.execute("UPDATE stock SET pieces = 11", &[]).await.expect("alone");

            let waiting = tokio::spawn(async move {
                let reading =
                    reader.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await;
                let reading = reading.expect("a connection");
                fence::enter(&reading, "stock", second).await
            });
            until_one_waits(&server).await;
            writing.commit().await.expect("live");
            let answer = waiting.await.expect("a task");
            assert!(matches!(answer, Err(PostgresError::TryAgain(_))), "{second:?}: {answer:?}");
        }
    });
}

/// The first row of a slot is committed after the snapshot of a section without a slot, so that section can't
/// see the row.
#[test]
fn slot_committed_after_the_snapshot_is_detected() {
    runtime().block_on(async {
        let server = server();
        let (mut late, other) = (connect(&server.url()).await, connect(&server.url()).await);
        fence::enter(&other, "stock", exclusive(1)).await.expect("never seen");
        for (slot, level) in (0..).zip([IsolationLevel::RepeatableRead, IsolationLevel::Serializable]) {
            let transaction =
                late.build_transaction().isolation_level(level).start().await.expect("a connection");
            transaction.query_one("SELECT 1", &[]).await.expect("the snapshot is taken");
            let permit = Section::permit(slot, token(9)).expect("a slot");
            fence::enter(&other, "stock", permit).await.expect("above all");
            let answer = fence::write(&transaction, "stock", exclusive(5)).await;
            assert!(matches!(answer, Err(PostgresError::TryAgain(_))), "{level:?}: {answer:?}");
            transaction.rollback().await.expect("a connection");
        }
        let transaction = late.transaction().await.expect("a connection");
        let answer = fence::write(&transaction, "stock", exclusive(5)).await;
        assert_eq!(refusal(answer), Err(stale(5, 9)));
    });
}

/// Concurrent first enters of one resource by several users, for many resources: the mark is the highest
/// token.
#[test]
fn concurrent_first_enters_of_a_resource_are_all_checked() {
    const USERS: u64 = 6;
    runtime().block_on(async {
        let server = server();
        let start = Arc::new(Barrier::new(usize::try_from(USERS).expect("few")));
        let mut users = Vec::new();
        for user in 1..=USERS {
            let client = connect(&server.url()).await;
            let start = Arc::clone(&start);
            users.push(tokio::spawn(async move {
                let mut passed = 0_u64;
                for resource in 0..40 {
                    start.wait().await;
                    let section = match resource % 3 {
                        0 => exclusive(user),
                        1 => Section::new(ModeKind::Permit, Some(7), token(user)).expect("a slot"),
                        _ => Section::shared(token(user)),
                    };
                    let entered = fence::enter(&client, &format!("new/{resource}"), section).await;
                    passed += u64::from(refusal(entered).is_ok());
                }
                passed
            }));
        }
        let mut passed = 0;
        for user in users {
            passed += user.await.expect("a user");
        }
        println!("{passed} of {} first enters passed", USERS * 40);
        let client = connect(&server.url()).await;
        for resource in 0..40 {
            let marks = fence::marks(&client, &format!("new/{resource}")).await.expect("there");
            let any = if resource % 3 == 1 { marks.effective(7).any } else { marks.base.any };
            assert_eq!(any, Some(token(USERS)), "{resource}: {marks:?}");
        }
    });
}

#[test]
fn permits_of_different_slots_do_not_wait_for_each_other() {
    runtime().block_on(async {
        let server = server();
        let mut clients = [connect(&server.url()).await, connect(&server.url()).await];
        let permit = |slot: u32| Section::permit(slot, token(u64::from(slot) + 1)).expect("a slot");
        for slot in [0, 1] {
            fence::enter(&clients[0], "pool", permit(slot)).await.expect("never seen");
        }
        let [first, second] = &mut clients;
        let open = first.transaction().await.expect("a connection");
        fence::write(&open, "pool", permit(0)).await.expect("live");
        let beside = second.transaction().await.expect("a connection");
        beside.batch_execute("SET LOCAL lock_timeout = '100ms'").await.expect("a setting");
        fence::write(&beside, "pool", permit(1)).await.expect("no wait");
        beside.commit().await.expect("live");
        open.commit().await.expect("live");
    });
}

/// The open section has entered and may have read, but its mark is not committed yet. A permit that did not
/// wait would be checked against the older mark, and pass.
#[test]
fn a_permit_waits_for_an_open_section_without_a_slot() {
    runtime().block_on(async {
        let server = server();
        let (mut section, mut holder) = (connect(&server.url()).await, connect(&server.url()).await);
        let permit = Section::permit(0, token(5)).expect("a slot");
        fence::enter(&holder, "pool", permit).await.expect("never seen");
        let open = section.transaction().await.expect("a connection");
        fence::enter(&open, "pool", exclusive(9)).await.expect("above");
        let late = tokio::spawn(async move {
            let late = holder.transaction().await.expect("a connection");
            refusal(fence::write(&late, "pool", permit).await)
        });
        until_one_waits(&server).await;
        open.commit().await.expect("live");
        assert_eq!(late.await.expect("a task"), Err(stale(5, 9)));
    });
}

#[test]
fn write_pipelined_after_a_refused_check_has_no_effect() {
    runtime().block_on(async {
        let server = server();
        server.psql("CREATE TABLE stock (pieces bigint); INSERT INTO stock VALUES (10)");
        let mut client = connect(&server.url()).await;
        fence::enter(&client, "stock", exclusive(6)).await.expect("never seen");
        for (value, pieces) in [(5, "10"), (6, "11")] {
            let transaction = client.transaction().await.expect("a connection");
            let (checked, written) = tokio::join!(
                fence::write(&transaction, "stock", exclusive(value)),
                transaction.execute("UPDATE stock SET pieces = pieces + 1", &[])
            );
            assert_eq!(refusal(checked), if value == 5 { Err(stale(5, 6)) } else { Ok(()) });
            assert_eq!(written.is_ok(), value == 6);
            // After a refused check nothing is written, even if the caller ignores the results and commits.
            transaction.commit().await.expect("a connection");
            assert_eq!(server.psql("SELECT pieces FROM stock").trim(), pieces);
        }
    });
}

#[test]
fn rollback_leaves_no_mark_and_the_token_can_be_used_again() {
    runtime().block_on(async {
        let server = server();
        let mut client = connect(&server.url()).await;
        for _ in 0..2 {
            let transaction = client.transaction().await.expect("a connection");
            fence::check_once(&transaction, "mail", exclusive(4)).await.expect("not here yet");
            transaction.rollback().await.expect("a connection");
        }
        assert_eq!(
            fence::marks(&client, "mail").await.expect("readable"),
            lockkeeper_fence::Marks::default()
        );
    });
}

#[test]
fn reset_lowers_all_marks() {
    runtime().block_on(async {
        let server = server();
        let client = connect(&server.url()).await;
        fence::enter(&client, "stock", Section::permit(3, token(900)).expect("a slot"))
            .await
            .expect("never seen");
        fence::enter(&client, "stock", exclusive(901)).await.expect("above");
        fence::enter(&client, "stock", Section::permit(3, token(950)).expect("a slot")).await.expect("above");
        fence::reset(&client, "stock", token(10)).await.expect("the owner may");
        let marks = fence::marks(&client, "stock").await.expect("readable");
        assert!(marks.slots.is_empty() && marks.base.any == Some(token(10)), "{marks:?}");
        assert_eq!(refusal(fence::enter(&client, "stock", exclusive(9)).await), Err(stale(9, 10)));
        fence::enter(&client, "stock", Section::permit(3, token(11)).expect("a slot")).await.expect("above");
    });
}
