//! The subjects of the common suite: a number in a row, behind the fence, through either adapter.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::postgres::{PostgresError, sqlx as by_sqlx, tokio_postgres as by_tokio};
use lockkeeper_fence::{Marks, Refused, Section};
use lockkeeper_rig::Postgres;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::postgres::{connect, refusal, server};
use crate::suite::{Lasting, Subject};

pub(crate) const READ_COMMITTED: u8 = 1;
pub(crate) const REPEATABLE_READ: u8 = 2;

const READ: &str = "SELECT number FROM numbers WHERE name = $1";
const WRITE: &str = "INSERT INTO numbers VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET number = $2";

pub(crate) struct World {
    server: Postgres,
    made: AtomicU64,
}

impl World {
    pub(crate) fn start() -> Self {
        let server = server();
        server.psql("CREATE TABLE numbers (name text PRIMARY KEY, number bigint NOT NULL)");
        Self { server, made: AtomicU64::new(0) }
    }

    /// The address of a resource that was never seen: `resource postgres://…`.
    fn fresh(&self) -> String {
        format!("number/{} {}", self.made.fetch_add(1, Ordering::SeqCst), self.server.url())
    }
}

fn number(value: i64) -> u64 {
    value.try_into().expect("numbers are not negative")
}

fn bigint(value: u64) -> i64 {
    value.try_into().expect("numbers are small")
}

/// A connection of `tokio-postgres` whose transactions have this isolation level.
pub(crate) struct Tokio<const LEVEL: u8> {
    client: Mutex<Client>,
    resource: String,
    url: String,
}

enum Call {
    Enter,
    Write(u64),
    CheckOnce,
}

impl<const LEVEL: u8> Tokio<LEVEL> {
    /// Runs the whole transaction once, without a retry on conflicts.
    async fn once(&self, section: Section, call: &Call) -> Result<(), PostgresError> {
        let mut client = self.client.lock().await;
        // The simplest documented form: outside a transaction.
        if matches!(call, Call::Enter) && LEVEL == READ_COMMITTED {
            return by_tokio::enter(&*client, &self.resource, section).await;
        }
        let level = if LEVEL == REPEATABLE_READ {
            IsolationLevel::RepeatableRead
        } else {
            IsolationLevel::ReadCommitted
        };
        let transaction =
            client.build_transaction().isolation_level(level).start().await.expect("a connection");
        let checked = match call {
            Call::Enter => by_tokio::enter(&transaction, &self.resource, section).await,
            Call::Write(_) => by_tokio::write(&transaction, &self.resource, section).await,
            Call::CheckOnce => by_tokio::check_once(&transaction, &self.resource, section).await,
        };
        if let Err(error) = checked {
            transaction.rollback().await.expect("a connection");
            return Err(error);
        }
        if let Call::Write(number) = call {
            put(&transaction, &self.resource, *number).await?;
        }
        transaction.commit().await.expect("what passed the fence commits");
        Ok(())
    }

    async fn pass(&self, section: Section, call: Call) -> Result<(), Refused> {
        loop {
            match self.once(section, &call).await {
                Err(PostgresError::TryAgain(_)) if LEVEL == REPEATABLE_READ => {}
                answer => return refusal(answer),
            }
        }
    }
}

/// Permits of different slots write concurrently, so at REPEATABLE READ the write may need a retry, too.
async fn put(transaction: &Transaction<'_>, resource: &str, number: u64) -> Result<(), PostgresError> {
    match transaction.execute(WRITE, &[&resource, &bigint(number)]).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
            Err(PostgresError::TryAgain(error.into()))
        }
        Err(error) => panic!("{error:?}"),
    }
}

impl<const LEVEL: u8> Subject for Tokio<LEVEL> {
    type World = World;

    async fn world() -> World {
        World::start()
    }

    async fn fresh(world: &World) -> Self {
        Self::at(&world.fresh()).await
    }

    async fn another(&self) -> Self {
        Self::at(&self.address()).await
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        self.pass(section, Call::Enter).await
    }

    async fn read(&self) -> u64 {
        let row =
            self.client.lock().await.query_opt(READ, &[&self.resource]).await.expect("the server answers");
        row.map_or(0, |row| number(row.get(0)))
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        self.pass(section, Call::Write(number)).await
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        self.pass(section, Call::CheckOnce).await
    }

    async fn marks(&self) -> Marks {
        by_tokio::marks(&*self.client.lock().await, &self.resource).await.expect("the server answers")
    }
}

impl<const LEVEL: u8> Lasting for Tokio<LEVEL> {
    fn address(&self) -> String {
        format!("{} {}", self.resource, self.url)
    }

    async fn at(address: &str) -> Self {
        let (resource, url) = address.split_once(' ').expect("two parts");
        let client = Mutex::new(connect(url).await);
        Self { client, resource: resource.to_owned(), url: url.to_owned() }
    }
}

/// A pool of `sqlx` with one connection.
pub(crate) struct Sqlx {
    pool: PgPool,
    resource: String,
    url: String,
}

impl Subject for Sqlx {
    type World = World;

    async fn world() -> World {
        World::start()
    }

    async fn fresh(world: &World) -> Self {
        Self::at(&world.fresh()).await
    }

    async fn another(&self) -> Self {
        Self::at(&self.address()).await
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(by_sqlx::enter(&self.pool, &self.resource, section).await)
    }

    async fn read(&self) -> u64 {
        let row = sqlx::query_scalar(READ).bind(&self.resource).fetch_optional(&self.pool).await;
        row.expect("the server answers").map_or(0, number)
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        let mut transaction = self.pool.begin().await.expect("a connection");
        refusal(by_sqlx::write(&mut transaction, &self.resource, section).await)?;
        let written =
            sqlx::query(WRITE).bind(&self.resource).bind(bigint(number)).execute(&mut *transaction).await;
        written.expect("nobody else is in the way");
        transaction.commit().await.expect("what passed the fence commits");
        Ok(())
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        let mut transaction = self.pool.begin().await.expect("a connection");
        refusal(by_sqlx::check_once(&mut transaction, &self.resource, section).await)?;
        transaction.commit().await.expect("what passed the fence commits");
        Ok(())
    }

    async fn marks(&self) -> Marks {
        by_sqlx::marks(&self.pool, &self.resource).await.expect("the server answers")
    }
}

impl Lasting for Sqlx {
    fn address(&self) -> String {
        format!("{} {}", self.resource, self.url)
    }

    async fn at(address: &str) -> Self {
        let (resource, url) = address.split_once(' ').expect("two parts");
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy(url).expect("an address");
        Self { pool, resource: resource.to_owned(), url: url.to_owned() }
    }
}
