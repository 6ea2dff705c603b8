//! The Postgres fence on a real server: the suite of all fences through both adapters, and what is its own.
//!
//! `subjects`: what the suite runs on. `transactions`: isolation, and sections that are one transaction. `rights`: what a
//! role needs and what it can't do with it. `trigger`: writers that can't be changed. `column`: tables with a mark of
//! their own. `server`: killed servers, and what a server is set to.

#[path = "../suite/mod.rs"]
mod suite;

mod column;
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

suite::contract!(by_tokio_postgres => subjects::Tokio<{ subjects::READ_COMMITTED }>, lasting);
suite::contract!(by_tokio_postgres_at_repeatable_read => subjects::Tokio<{ subjects::REPEATABLE_READ }>);
suite::contract!(by_sqlx => subjects::Sqlx, lasting);

/// A server with the fence.
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

/// Only a refusal is an answer.
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
