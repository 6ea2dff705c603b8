//! Tables with a fence column, in a database without the fence's schema.

use std::sync::Mutex as Kept;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::postgres::{Column, PostgresError, sqlx as by_sqlx, tokio_postgres as fence};
use lockkeeper_fence::{Action, Marks, ModeKind, Pair, Refused, Section, Token};
use lockkeeper_rig::Postgres;
use sqlx::{Arguments, Connection, PgConnection};
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::postgres::{connect, exclusive, refusal, stale};
use crate::suite::{Subject, contract, runtime, token};

contract!(rows_by_tokio_postgres => super::Row);
contract!(rows_by_sqlx => super::SqlxRow);

fn numbers() -> Column {
    Column::new("public.numbers", "id", "fence")
}

/// A server with a table whose fence column was added later.
fn server() -> Postgres {
    let server = Postgres::start();
    server.psql("CREATE TABLE numbers (id bigint PRIMARY KEY, number bigint NOT NULL)");
    server.psql(&numbers().add_sql());
    server
}

type World = (Postgres, AtomicU64);

async fn fresh((server, made): &World) -> i64 {
    let id = made.fetch_add(1, Ordering::SeqCst).try_into().expect("few");
    let client = connect(&server.url()).await;
    client.execute("INSERT INTO numbers VALUES ($1, 0)", &[&id]).await.expect("a new row");
    id
}

fn only_exclusive(_: Action, section: Section) -> bool {
    section.slot().is_none() && section.mode() != ModeKind::Shared
}

fn marks_of(mark: i64) -> Marks {
    let mark = Token::new(mark.try_into().expect("a token"));
    Marks { base: Pair { any: mark, writer: mark }, ..Marks::default() }
}

/// A row behind the fence column, by `tokio-postgres`.
pub(crate) struct Row {
    client: Mutex<Client>,
    id: i64,
    url: String,
}

impl Subject for Row {
    type World = World;
    const STEPS: u32 = 3;

    async fn world() -> World {
        (server(), AtomicU64::new(0))
    }

    async fn fresh(world: &World) -> Self {
        let url = world.0.url();
        Self { id: fresh(world).await, client: Mutex::new(connect(&url).await), url }
    }

    async fn another(&self) -> Self {
        Self { id: self.id, client: Mutex::new(connect(&self.url).await), url: self.url.clone() }
    }

    fn takes(action: Action, section: Section) -> bool {
        only_exclusive(action, section)
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(fence::enter_row(&*self.client.lock().await, &numbers(), &self.id, section).await)
    }

    async fn read(&self) -> u64 {
        let client = self.client.lock().await;
        let row = client.query_one("SELECT number FROM numbers WHERE id = $1", &[&self.id]).await;
        row.expect("a row").get::<_, i64>(0).try_into().expect("a number")
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        let (client, number) = (self.client.lock().await, i64::try_from(number).expect("small"));
        refusal(fence::write_row(&*client, &numbers(), &self.id, section, "number = $3", &[&number]).await)
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        let client = self.client.lock().await;
        refusal(fence::write_row_once(&*client, &numbers(), &self.id, section, "number = number", &[]).await)
    }

    async fn marks(&self) -> Marks {
        let row = self.client.lock().await.query_one(&numbers().mark_sql(), &[&self.id]).await;
        marks_of(row.expect("a row").get(0))
    }
}

/// A row behind the fence column, by `sqlx`.
pub(crate) struct SqlxRow {
    connection: Mutex<PgConnection>,
    id: i64,
    url: String,
}

impl SqlxRow {
    async fn new(id: i64, url: String) -> Self {
        let connection = PgConnection::connect(&url).await.expect("the server answers");
        Self { connection: Mutex::new(connection), id, url }
    }
}

impl Subject for SqlxRow {
    type World = World;

    async fn world() -> World {
        (server(), AtomicU64::new(0))
    }

    async fn fresh(world: &World) -> Self {
        Self::new(fresh(world).await, world.0.url()).await
    }

    async fn another(&self) -> Self {
        Self::new(self.id, self.url.clone()).await
    }

    fn takes(action: Action, section: Section) -> bool {
        only_exclusive(action, section)
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(by_sqlx::enter_row(&mut *self.connection.lock().await, &numbers(), &self.id, section).await)
    }

    async fn read(&self) -> u64 {
        let mut connection = self.connection.lock().await;
        let number = sqlx::query_scalar("SELECT number FROM numbers WHERE id = $1").bind(self.id);
        let number: i64 = number.fetch_one(&mut *connection).await.expect("a row");
        number.try_into().expect("a number")
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        let mut connection = self.connection.lock().await;
        let number = i64::try_from(number).expect("small");
        let parameters = |all: &mut sqlx::postgres::PgArguments| all.add(number);
        refusal(
            by_sqlx::write_row(&mut connection, &numbers(), &self.id, section, "number = $3", parameters)
                .await,
        )
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        let mut connection = self.connection.lock().await;
        let set = "number = number";
        refusal(
            by_sqlx::write_row_once(&mut connection, &numbers(), &self.id, section, set, |_| Ok(())).await,
        )
    }

    async fn marks(&self) -> Marks {
        let mut connection = self.connection.lock().await;
        let sql = numbers().mark_sql();
        marks_of(sqlx::query_scalar(&sql).bind(self.id).fetch_one(&mut *connection).await.expect("a row"))
    }
}

#[test]
fn update_without_rows_is_explained() {
    runtime().block_on(async {
        let server = server();
        let client = connect(&server.url()).await;
        server.psql(
            "INSERT INTO numbers VALUES (1, 0, 7);
             CREATE TABLE careless (id bigint, fence bigint); INSERT INTO careless VALUES (1, NULL), (2, -5)",
        );
        let column = numbers();
        let write = async |id: i64, value| {
            fence::write_row(&client, &column, &id, exclusive(value), "number = number + 1", &[]).await
        };
        assert_eq!(refusal(write(1, 6).await), Err(stale(6, 7)));
        assert!(matches!(write(99, 8).await, Err(PostgresError::RowAbsent { .. })));
        write(1, 7).await.expect("live");
        let odd = Column::new("numbers", "false AND id", "fence");
        let conditional = fence::write_row(&client, &odd, &1_i64, exclusive(9), "id = id", &[]).await;
        assert!(
            matches!(conditional, Err(PostgresError::Database { .. })),
            "names are quoted: {conditional:?}"
        );

        let careless = Column::new("careless", "id", "fence");
        let enter = async |id: i64| fence::enter_row(&client, &careless, &id, exclusive(9)).await;
        assert!(matches!(enter(1).await, Err(PostgresError::ColumnNull { .. })));
        enter(2).await.expect("below any token");
        for section in [Section::shared(token(9)), Section::permit(1, token(9)).expect("a slot")] {
            let refused = fence::enter_row(&client, &column, &1_i64, section).await;
            assert!(matches!(refused, Err(PostgresError::ExclusiveOnly { .. })), "{refused:?}");
        }
    });
}

/// The condition is part of the statement, so the server evaluates it again after it has waited for the row.
#[test]
fn a_write_that_waited_for_a_later_enter_is_stale() {
    runtime().block_on(async {
        let server = server();
        server.psql("INSERT INTO numbers VALUES (1, 10, 5)");
        let (mut later, late) = (connect(&server.url()).await, connect(&server.url()).await);
        let entering = later.transaction().await.expect("a connection");
        fence::enter_row(&entering, &numbers(), &1_i64, exclusive(6)).await.expect("later");
        let told = std::sync::Arc::new(Kept::new(None));
        let writing = tokio::spawn({
            let told = std::sync::Arc::clone(&told);
            async move {
                let answer =
                    fence::write_row(&late, &numbers(), &1_i64, exclusive(5), "number = 99", &[]).await;
                *told.lock().expect("no panic") = Some(refusal(answer));
            }
        });
        let since = std::time::Instant::now();
        while server.psql("SELECT count(*) FROM pg_locks WHERE NOT granted").trim() == "0" {
            assert!(since.elapsed().as_secs() < 30, "nobody ever waited");
        }
        assert_eq!(*told.lock().expect("no panic"), None, "it waits");
        entering.commit().await.expect("live");
        writing.await.expect("a task");
        assert_eq!(*told.lock().expect("no panic"), Some(Err(stale(5, 6))));
        assert_eq!(server.psql("SELECT number FROM numbers").trim(), "10");
    });
}
