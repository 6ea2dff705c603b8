//! The Postgres fence on a real server: the common suite through both adapters, and its own tests.
//!
//! `subjects`: the subjects of the suite. `transactions`: isolation levels, and sections in one transaction.
//! `rights`: the rights that a role needs, and their limits. `trigger`: programs that can't be changed, and
//! write to a guarded table. `column`: tables with a fence column. `server`: killed servers, and server
//! settings. `go`: the package for Go.

mod column;
mod go;
mod rights;
mod server;
mod subjects;
mod transactions;
mod trigger;

use lockkeeper_core::Token;
use lockkeeper_fence::postgres::PostgresError;
use lockkeeper_fence::{Refused, Section};
use lockkeeper_rig::Postgres;
use tokio_postgres::{Client, NoTls};

crate::suite::contract!(by_tokio_postgres => subjects::Tokio<{ subjects::READ_COMMITTED }>, lasting);
crate::suite::contract!(by_tokio_postgres_at_repeatable_read => subjects::Tokio<{ subjects::REPEATABLE_READ }>);
crate::suite::contract!(by_sqlx => subjects::Sqlx, lasting);

/// A server with the fence installed.
fn server() -> Postgres {
    server_with(&[])
}

fn server_with(arguments: &[&str]) -> Postgres {
    let server = Postgres::with(arguments);
    server.psql(lockkeeper_fence::postgres::SCHEMA_SQL);
    server
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

/// Returns the refusal, if there is one; any other error is a panic.
fn refusal<T>(result: Result<T, PostgresError>) -> Result<T, Refused> {
    result.map_err(|error| match error {
        PostgresError::Refused(refused) => refused,
        other => panic!("{other}: {other:?}"),
    })
}

fn stale(offered: u64, highest: u64) -> Refused {
    let [offered, highest] = [offered, highest].map(|value| Token::new(value).expect("a token"));
    Refused::Stale { offered, highest }
}
