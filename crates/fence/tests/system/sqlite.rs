//! The SQLite fence on files: the common suite, including its tests with several processes, and the fence's
//! own tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::suite::child::{as_child, command, finished_well};
use crate::suite::{Lasting, Subject, token};
use lockkeeper_fence::sqlite::{self as fence, SqliteError};
use lockkeeper_fence::{Marks, Refused, Section, Token};
use lockkeeper_rig::{Number as ShimNumber, Shim};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use tokio::sync::Mutex;

crate::suite::contract!(in_wal_mode => Number<true>, lasting);
crate::suite::contract!(with_a_rollback_journal => Number<false>, lasting);

/// A number in a database of its own, behind the fence. Uses the documented calls; `busy_timeout` covers
/// concurrent writers.
struct Number<const WAL: bool> {
    database: Mutex<Connection>,
    path: PathBuf,
}

fn open(path: &std::path::Path, wal: bool) -> Connection {
    let database = Connection::open(path).expect("a file");
    database.busy_timeout(Duration::from_secs(30)).expect("a setting");
    // Tests kill processes, not the system, so what a process wrote before it died survives without a sync.
    // But with syncs, a write takes long enough for a kill to hit it; hence FULL for WAL.
    database.pragma_update(None, "synchronous", if wal { "FULL" } else { "OFF" }).expect("a setting");
    let mode = if wal { "WAL" } else { "DELETE" };
    database.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(())).expect("a setting");
    database
}

fn refusal<T>(result: Result<T, SqliteError>) -> Result<T, Refused> {
    result.map_err(|error| match error {
        SqliteError::Refused(refused) => refused,
        other => panic!("{other}: {other:?}"),
    })
}

impl<const WAL: bool> Subject for Number<WAL> {
    type World = (tempfile::TempDir, AtomicU64);

    async fn world() -> Self::World {
        (tempfile::tempdir().expect("a directory"), AtomicU64::new(0))
    }

    async fn fresh((dir, made): &Self::World) -> Self {
        let path = dir.path().join(made.fetch_add(1, Ordering::SeqCst).to_string());
        let database = open(&path, WAL);
        fence::install(&database).expect("a file of ours");
        database.execute_batch("CREATE TABLE numbers (number INTEGER NOT NULL)").expect("new");
        Self { database: Mutex::new(database), path }
    }

    async fn another(&self) -> Self {
        Self::at(&self.address()).await
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(fence::enter(&mut *self.database.lock().await, "number", section))
    }

    async fn read(&self) -> u64 {
        let database = self.database.lock().await;
        let number =
            database.query_row("SELECT number FROM numbers", [], |row| row.get::<_, i64>(0)).optional();
        number.expect("readable").unwrap_or_default().try_into().expect("a number")
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        let mut database = self.database.lock().await;
        let transaction =
            database.transaction_with_behavior(TransactionBehavior::Immediate).expect("waited for");
        refusal(fence::write(&transaction, "number", section))?;
        transaction.execute("DELETE FROM numbers", []).expect("alone");
        let number = i64::try_from(number).expect("small");
        transaction.execute("INSERT INTO numbers VALUES (?1)", [number]).expect("alone");
        transaction.commit().expect("alone");
        Ok(())
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        let mut database = self.database.lock().await;
        let transaction =
            database.transaction_with_behavior(TransactionBehavior::Immediate).expect("waited for");
        refusal(fence::check_once(&transaction, "number", section))?;
        transaction.commit().expect("alone");
        Ok(())
    }

    async fn marks(&self) -> Marks {
        refusal(fence::marks(&*self.database.lock().await, "number")).expect("no refusal")
    }
}

impl<const WAL: bool> Lasting for Number<WAL> {
    const KILLS: u64 = 60;

    fn address(&self) -> String {
        self.path.to_str().expect("a temporary directory of text").to_owned()
    }

    async fn at(address: &str) -> Self {
        let path = PathBuf::from(address);
        Self { database: Mutex::new(open(&path, WAL)), path }
    }
}

fn exclusive(value: u64) -> Section {
    Section::exclusive(token(value))
}

/// An in-memory database with the fence installed.
fn in_memory() -> Connection {
    let database = Connection::open_in_memory().expect("memory");
    fence::install(&database).expect("ours");
    database
}

/// Two connections to one file in WAL mode.
fn two() -> (tempfile::TempDir, Connection, Connection) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("database");
    let (first, second) = (open(&path, true), open(&path, true));
    fence::install(&first).expect("ours");
    first.execute_batch("CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES (10)").expect("new");
    (dir, first, second)
}

#[test]
fn missing_table_is_refused_with_the_remedy() {
    let mut database = Connection::open_in_memory().expect("memory");
    let answers = [
        fence::check(&database).map(drop),
        fence::marks(&database, "stock").map(drop),
        fence::enter(&mut database, "stock", exclusive(1)),
        fence::reset(&mut database, "stock", token(1)),
    ];
    for answer in answers {
        let error = answer.expect_err("no table");
        assert!(matches!(error, SqliteError::NotInstalled(_)), "{error:?}");
        assert!(error.to_string().contains("sqlite::install"), "{error}");
    }
    fence::install(&database).expect("ours");
    fence::enter(&mut database, "stock", exclusive(7)).expect("never seen");
    fence::install(&database).expect("again is harmless");
    assert_eq!(fence::marks(&database, "stock").expect("kept").base.any, Some(token(7)));
}

/// A DEFERRED transaction reads before its check, so its snapshot is older than the mark that another section
/// raised.
#[test]
fn a_deferred_transaction_that_read_before_a_later_enter_does_not_pass() {
    let (_dir, mut late, mut later) = two();
    fence::enter(&mut late, "stock", exclusive(5)).expect("never seen");
    let transaction = late.transaction().expect("deferred");
    let pieces: i64 = transaction
        .query_row("SELECT pieces FROM stock", [], |row| row.get(0))
        .expect("the snapshot is taken");
    fence::enter(&mut later, "stock", exclusive(6)).expect("later");
    let answer = fence::write(&transaction, "stock", exclusive(5));
    assert!(matches!(answer, Err(SqliteError::Busy(_))), "{answer:?}");
    drop(transaction);
    let again = late.transaction().expect("deferred");
    let stale = Refused::Stale { offered: token(5), highest: token(6) };
    assert_eq!(refusal(fence::write(&again, "stock", exclusive(5))), Err(stale));
    assert_eq!(pieces, 10);
}

/// The check of an equal token raises no mark; even so, it must block later sections until its transaction
/// ends.
#[test]
fn a_deferred_transaction_holds_the_write_lock_from_its_check_on() {
    let (_dir, mut first, mut second) = two();
    fence::enter(&mut first, "stock", exclusive(5)).expect("never seen");
    let transaction = first.transaction().expect("deferred");
    fence::write(&transaction, "stock", exclusive(5)).expect("live");
    second.busy_timeout(Duration::from_millis(20)).expect("a setting");
    let busy = fence::enter(&mut second, "stock", exclusive(6)).expect_err("held");
    assert!(matches!(busy, SqliteError::Busy(_)) && busy.to_string().contains("busy_timeout"), "{busy:?}");
    transaction.execute("UPDATE stock SET pieces = 11", []).expect("live");
    transaction.commit().expect("live");
    fence::enter(&mut second, "stock", exclusive(6)).expect("free");
}

#[test]
fn a_section_can_be_one_transaction() {
    let (_dir, mut first, mut second) = two();
    for (database, value) in [(&mut first, 1), (&mut second, 2)] {
        let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate).expect("free");
        fence::enter_within(&transaction, "stock", exclusive(value)).expect("live");
        let pieces: i64 =
            transaction.query_row("SELECT pieces FROM stock", [], |row| row.get(0)).expect("a row");
        transaction.execute("UPDATE stock SET pieces = ?1", [pieces + 1]).expect("live");
        transaction.commit().expect("live");
    }
    let pieces: i64 = first.query_row("SELECT pieces FROM stock", [], |row| row.get(0)).expect("a row");
    assert_eq!(pieces, 12);
}

#[test]
fn enter_inside_an_open_transaction_is_refused_since_it_would_not_be_committed() {
    let mut database = in_memory();
    database.execute_batch("BEGIN").expect("by hand");
    let error = fence::enter(&mut database, "stock", exclusive(1)).expect_err("open");
    assert!(
        matches!(error, SqliteError::InTransaction) && error.to_string().contains("enter_within"),
        "{error}"
    );
}

#[test]
fn rollback_leaves_no_mark_and_the_token_can_be_used_again() {
    let mut database = in_memory();
    for _ in 0..2 {
        let transaction = database.transaction().expect("free");
        fence::check_once(&transaction, "mail", exclusive(4)).expect("not here yet");
        transaction.rollback().expect("open");
    }
    assert_eq!(fence::marks(&database, "mail").expect("readable"), Marks::default());
}

#[test]
fn weak_settings_are_reported_and_enter_syncs_anyway() {
    let memory = fence::check(&in_memory()).expect("installed");
    assert!(
        memory.in_memory && memory.weaknesses().iter().any(|told| told.contains("in memory")),
        "{memory:?}"
    );

    let (_dir, mut lax, _) = two();
    lax.pragma_update(None, "synchronous", "OFF").expect("a setting");
    let told = fence::check(&lax).expect("installed").weaknesses();
    assert!(told.len() == 1 && told[0].contains("synchronous = 0"), "{told:?}");
    fence::enter(&mut lax, "stock", exclusive(1)).expect("never seen");
    assert_eq!(fence::check(&lax).expect("installed").synchronous, 0, "the setting is the caller's");
    for (journal, synchronous, level, weak) in
        [("WAL", "FULL", 2, 0), ("DELETE", "FULL", 2, 1), ("DELETE", "EXTRA", 3, 0), ("WAL", "EXTRA", 3, 0)]
    {
        lax.pragma_update_and_check(None, "journal_mode", journal, |_| Ok(())).expect("a setting");
        lax.pragma_update(None, "synchronous", synchronous).expect("a setting");
        fence::enter(&mut lax, "stock", exclusive(level.into())).expect("not below");
        let findings = fence::check(&lax).expect("installed");
        assert!(findings.synchronous == level && findings.weaknesses().len() == weak, "{findings:?}");
    }
    lax.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(())).expect("a setting");
    lax.pragma_update_and_check(None, "journal_mode", "MEMORY", |_| Ok(())).expect("a setting");
    let told = fence::check(&lax).expect("installed").weaknesses();
    assert!(told.len() == 1 && told[0].contains("journal_mode = memory"), "{told:?}");
}

#[test]
fn marks_that_no_fence_writes_are_refused() {
    let mut database = in_memory();
    for (slot, any, writer) in [(-1, -5, 0), (-1, 3, 4), (-1, i64::MAX, 0), (-2, 1, 1)] {
        database.execute("DELETE FROM lockkeeper_fence_marks", []).expect("ours");
        database
            .execute("INSERT INTO lockkeeper_fence_marks VALUES ('stock', ?1, ?2, ?3)", [slot, any, writer])
            .expect("ours");
        let error = fence::enter(&mut database, "stock", exclusive(9)).expect_err("damaged");
        assert!(matches!(error, SqliteError::MarksCorrupt { .. }), "{slot} {any} {writer}: {error:?}");
    }
    fence::reset(&mut database, "stock", token(9)).expect("on purpose");
    fence::enter(&mut database, "stock", exclusive(9)).expect("not below");
}

#[test]
fn names_and_numbers_at_the_limits_work_and_a_reset_lowers_all_marks() {
    let mut database = in_memory();
    for name in ["", "a\nb", &"x".repeat(513)] {
        let error = fence::enter(&mut database, name, exclusive(1)).expect_err(name);
        assert!(matches!(error, SqliteError::Resource(_)), "{error}");
    }
    let (name, highest) = ("ü".repeat(256), Token::new((1 << 53) - 1).expect("the greatest"));
    fence::enter(&mut database, &name, Section::permit(65_535, highest).expect("the last slot"))
        .expect("new");
    assert_eq!(fence::marks(&database, &name).expect("kept").effective(65_535).writer, Some(highest));
    fence::reset(&mut database, &name, token(3)).expect("on purpose");
    let marks = fence::marks(&database, &name).expect("kept");
    assert!(marks.slots.is_empty() && marks.base.any == Some(token(3)), "{marks:?}");
}

/// A transaction of a connection with `synchronous = OFF` has raised the mark, so a power loss may undo it.
/// `enter` with the same token raises no mark, but must make it durable before it returns Ok. The test counts
/// the syncs of a child process: only `enter` requests any, since the setting is OFF.
#[test]
fn enter_with_a_token_that_was_here_syncs_the_mark_that_is_not_durable_yet() {
    let permit = |slot| Section::permit(slot, token(7)).expect("a slot");
    let sections = [exclusive(7), Section::shared(token(7)), permit(0), permit(3)];
    if let Some((path, case)) = as_child() {
        let (section, wal, enters) = (sections[case as usize / 4], case & 2 > 0, case & 1 > 0);
        let mut database = Connection::open(path).expect("a file");
        database.pragma_update(None, "synchronous", "OFF").expect("a setting");
        let mode = if wal { "WAL" } else { "DELETE" };
        database.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(())).expect("a setting");
        fence::install(&database).expect("ours");
        let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate).expect("alone");
        fence::enter_within(&transaction, "stock", section).expect("never seen");
        transaction.commit().expect("alone");
        if enters {
            fence::enter(&mut database, "stock", section).expect("the same token");
        }
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let shim = Shim::new(dir.path());
    for case in 0..4 * sections.len() {
        shim.set(ShimNumber::Syncs, 0);
        let path = dir.path().join(case.to_string());
        let mut child = command(
            "sqlite::enter_with_a_token_that_was_here_syncs_the_mark_that_is_not_durable_yet",
            path.to_str().expect("a temporary directory of text"),
            case as u64,
        );
        finished_well(child.envs(shim.environment()).spawn().expect("a child"));
        let (section, wal, enters) = (sections[case / 4], case & 2 > 0, case & 1 > 0);
        let syncs = shim.get(ShimNumber::Syncs);
        assert_eq!(syncs > 0, enters, "{section:?}, WAL: {wal}: {syncs} syncs");
    }
}
