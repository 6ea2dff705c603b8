//! The MySQL fence on a real MariaDB: the common suite, including its tests with several processes, and the
//! fence's own tests.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::mysql::{self as fence, MySqlError};
use lockkeeper_fence::{Marks, Refused, Section};
use lockkeeper_rig::MariaDb;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use tokio::sync::Mutex;

use crate::suite::{Lasting, Subject, token};

crate::suite::contract!(on_mariadb => Number, lasting);

struct World {
    server: MariaDb,
    made: AtomicU64,
}

/// A number in a row, behind the fence.
struct Number {
    connection: Mutex<Conn>,
    resource: String,
    url: String,
}

enum Call {
    Enter,
    Write(u64),
    CheckOnce,
}

async fn connect(url: &str) -> Conn {
    Conn::from_url(url).await.expect("the server answers")
}

async fn server() -> MariaDb {
    let server = MariaDb::start();
    fence::install(&mut connect(&server.url()).await).await.expect("the superuser may");
    server.sql("CREATE TABLE numbers (name VARCHAR(64) PRIMARY KEY, number BIGINT NOT NULL)");
    server
}

fn exclusive(value: u64) -> Section {
    Section::exclusive(token(value))
}

impl Number {
    /// Runs the whole transaction once.
    async fn once(&self, section: Section, call: &Call) -> Result<(), MySqlError> {
        let mut connection = self.connection.lock().await;
        if matches!(call, Call::Enter) {
            return fence::enter(&mut connection, &self.resource, section).await;
        }
        let mut transaction = connection.start_transaction(TxOpts::default()).await.expect("a connection");
        let checked = match call {
            Call::CheckOnce => fence::check_once(&mut transaction, &self.resource, section).await,
            _ => fence::write(&mut transaction, &self.resource, section).await,
        };
        if let Err(error) = checked {
            transaction.rollback().await.expect("a connection");
            return Err(error);
        }
        if let Call::Write(number) = call {
            let put = "REPLACE INTO numbers VALUES (?, ?)";
            transaction.exec_drop(put, (&self.resource, number)).await.expect("alone");
        }
        transaction.commit().await.expect("what passed the fence commits");
        Ok(())
    }

    async fn pass(&self, section: Section, call: Call) -> Result<(), Refused> {
        loop {
            match self.once(section, &call).await {
                Ok(()) => return Ok(()),
                Err(MySqlError::TryAgain(_)) => {}
                Err(MySqlError::Refused(refused)) => return Err(refused),
                Err(other) => panic!("{other}: {other:?}"),
            }
        }
    }
}

impl Subject for Number {
    type World = World;

    async fn world() -> World {
        World { server: server().await, made: AtomicU64::new(0) }
    }

    async fn fresh(world: &World) -> Self {
        let number = world.made.fetch_add(1, Ordering::SeqCst);
        Self::at(&format!("number/{number} {}", world.server.url())).await
    }

    async fn another(&self) -> Self {
        Self::at(&self.address()).await
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        self.pass(section, Call::Enter).await
    }

    async fn read(&self) -> u64 {
        let read = "SELECT number FROM numbers WHERE name = ?";
        let mut connection = self.connection.lock().await;
        connection.exec_first(read, (&self.resource,)).await.expect("the server answers").unwrap_or(0)
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        self.pass(section, Call::Write(number)).await
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        self.pass(section, Call::CheckOnce).await
    }

    async fn marks(&self) -> Marks {
        fence::marks(&mut *self.connection.lock().await, &self.resource).await.expect("marks")
    }
}

impl Lasting for Number {
    fn address(&self) -> String {
        format!("{} {}", self.resource, self.url)
    }

    async fn at(address: &str) -> Self {
        let (resource, url) = address.split_once(' ').expect("a resource and a URL");
        Self {
            connection: Mutex::new(connect(url).await),
            resource: resource.to_owned(),
            url: url.to_owned(),
        }
    }
}

#[tokio::test]
async fn missing_table_and_a_read_only_server_are_refused_with_the_remedy() {
    let server = MariaDb::start();
    let mut connection = connect(&server.url()).await;
    let error = fence::enter(&mut connection, "stock", exclusive(1)).await.unwrap_err();
    assert!(matches!(error, MySqlError::NotInstalled(_)), "{error:?}");
    assert!(error.to_string().contains("mysql::install"), "{error}");
    fence::install(&mut connection).await.unwrap();
    fence::enter(&mut connection, "stock", exclusive(7)).await.unwrap();
    fence::install(&mut connection).await.expect("again is harmless");
    let findings = fence::check(&mut connection).await.unwrap();
    // The rig's server syncs nothing, and the fence says so.
    assert!(findings.weaknesses()[0].contains("innodb_flush_log_at_trx_commit"), "{findings:?}");
    server.sql("SET GLOBAL read_only = 1");
    assert!(matches!(fence::check(&mut connection).await, Err(MySqlError::Replica)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_of_one_transaction_makes_others_wait_and_see_what_it_left() {
    let server = server().await;
    server.sql("INSERT INTO numbers VALUES ('stock', 10)");
    let (mut one, mut two) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut first = one.start_transaction(TxOpts::default()).await.unwrap();
    fence::enter_within(&mut first, "stock", exclusive(5)).await.unwrap();
    first.query_drop("UPDATE numbers SET number = number - 1").await.unwrap();
    let second = tokio::spawn(async move {
        let mut second = two.start_transaction(TxOpts::default()).await.unwrap();
        fence::enter_within(&mut second, "stock", exclusive(6)).await.unwrap();
        let seen: Option<i64> = second.query_first("SELECT number FROM numbers").await.unwrap();
        second.commit().await.unwrap();
        seen
    });
    // Until it waits for the row.
    while server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").ends_with("\t0") {
        tokio::task::yield_now().await;
    }
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), Some(9));
    let mut late = one.start_transaction(TxOpts::default()).await.unwrap();
    let refused = fence::write(&mut late, "stock", exclusive(5)).await.unwrap_err();
    assert!(matches!(refused, MySqlError::Refused(Refused::Stale { .. })), "{refused:?}");
}

#[tokio::test]
async fn reset_lowers_the_marks_and_removes_those_of_slots() {
    let server = server().await;
    let mut connection = connect(&server.url()).await;
    fence::enter(&mut connection, "stock", Section::permit(3, token(9)).unwrap()).await.unwrap();
    fence::enter(&mut connection, "stock", exclusive(10)).await.unwrap();
    fence::reset(&mut connection, "stock", token(2)).await.unwrap();
    fence::enter(&mut connection, "stock", exclusive(2)).await.unwrap();
    let stale = fence::enter(&mut connection, "stock", exclusive(1)).await;
    assert!(matches!(stale, Err(MySqlError::Refused(Refused::Stale { .. }))), "{stale:?}");
    server.sql("UPDATE lockkeeper_fence_marks SET writer_token = 99");
    let damaged = fence::marks(&mut connection, "stock").await.unwrap_err();
    assert!(matches!(damaged, MySqlError::MarksCorrupt { .. }), "{damaged:?}");
}
