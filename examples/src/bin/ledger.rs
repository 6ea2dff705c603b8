//! A ledger in Postgres: read a balance, ask somebody, write it back.
//!
//! The problem: before money leaves an account, a risk service is asked about the balance, which takes seconds. The
//! balance must not change meanwhile, or it was asked about the wrong one.
//!
//! Why a lock: where everything happens within the database, `SELECT … FOR UPDATE` in one transaction does it, and you
//! need no lock service. Here a transaction would stay open for seconds, with a connection and a row locked and vacuum
//! held up. So the lock is outside, and the database sees two short steps.
//!
//! Why a fence: the lock ends with its lease. A worker that is paused while it waits for the risk service wakes up with an
//! old balance and writes it back over a newer one. So the account has a column with the highest token seen. `enter`
//! raises it before the balance is read; the write is refused, in the transaction that does it, if a higher one came.
//! Leave `enter` out and the check on the write alone loses updates (docs/fencing.md has the trace). Below it is spelled
//! out in SQL; `lockkeeper_fence::postgres` has it as calls, for shared holds and permits too.
//!
//! `ledger lockkeeper://locks.example postgres://db.example/bank alice 300`

use std::error::Error;
use std::time::Duration;

use lockkeeper::{Locks, Token};
use tokio_postgres::{Client, NoTls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, database, account, cents] =
        arguments().ok_or("usage: ledger LOCKS_URL POSTGRES_URL ACCOUNT CENTS")?;
    let cents: i64 = cents.parse()?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    // CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL, fence bigint NOT NULL DEFAULT 0);
    // CREATE TABLE entries (account text NOT NULL, cents bigint NOT NULL, token bigint NOT NULL);
    let (mut db, connection) = tokio_postgres::connect(&database, NoTls).await?;
    let connection = tokio::spawn(connection);

    let lock = locks.mutex(format!("accounts/{account}"));
    let outcome = lock.run(async |held| withdraw(&mut db, &account, cents, held.token()).await).await?;
    match outcome {
        Outcome::Done { left } => println!("withdrew {cents}, {left} left"),
        Outcome::TooLittle { balance } => println!("refused: {balance} is too little"),
        Outcome::Unknown => return Err(format!("there is no account {account}").into()),
        Outcome::Stale => return Err("stale: a later worker has this account; nothing was written".into()),
    }
    drop(db);
    connection.await??;
    Ok(())
}

#[derive(Debug)]
enum Outcome {
    Done { left: i64 },
    TooLittle { balance: i64 },
    Stale,
    Unknown,
}

async fn withdraw(
    db: &mut Client,
    account: &str,
    cents: i64,
    token: Token,
) -> Result<Outcome, tokio_postgres::Error> {
    let fence = token.get() as i64; // below 2^53

    // Enter: one statement is one transaction, so the mark is durable before the balance is seen. (With
    // synchronous_commit = off it would not be.)
    let entered = db
        .query_opt(
            "UPDATE accounts SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING cents",
            &[&account, &fence],
        )
        .await?;
    let Some(row) = entered else {
        let known = db.query_opt("SELECT 1 FROM accounts WHERE id = $1", &[&account]).await?.is_some();
        return Ok(if known { Outcome::Stale } else { Outcome::Unknown });
    };
    let balance: i64 = row.get("cents");

    if !allowed(balance, cents).await {
        return Ok(Outcome::TooLittle { balance });
    }

    // The check and all that depends on it, in one transaction.
    let left = balance - cents;
    let transaction = db.transaction().await?;
    let written = transaction
        .execute(
            "UPDATE accounts SET cents = $3, fence = $2 WHERE id = $1 AND fence <= $2",
            &[&account, &fence, &left],
        )
        .await?;
    if written == 0 {
        transaction.rollback().await?;
        return Ok(Outcome::Stale);
    }
    transaction
        .execute(
            "INSERT INTO entries (account, cents, token) VALUES ($1, $2, $3)",
            &[&account, &-cents, &fence],
        )
        .await?;
    transaction.commit().await?;
    Ok(Outcome::Done { left })
}

/// Stands for the risk service.
async fn allowed(balance: i64, cents: i64) -> bool {
    tokio::time::sleep(Duration::from_millis(20)).await;
    balance >= cents
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
