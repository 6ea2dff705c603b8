//! A ledger in PostgreSQL: read a balance, query an external service, write the new balance.
//!
//! The problem: before money leaves an account, a risk service checks the balance, which takes seconds. The
//! balance must not change in the meantime, or the check applies to an old balance.
//!
//! Why a lock: if everything happens within the database, `SELECT … FOR UPDATE` in one transaction is enough,
//! without a lock service. Here a transaction would stay open for seconds, would hold a connection and a row
//! lock, and would delay vacuum. So the lock is outside the database, which executes two short transactions.
//!
//! Why a fence: the lock ends with its lease. A worker that is paused while it waits for the risk service
//! resumes with an old balance and overwrites a newer one. So the account has a column with the highest token
//! seen. `enter` raises it before the balance is read; the write is refused, in its own transaction, if a
//! higher token has been seen. Without `enter`, the check on the write alone loses updates (docs/fencing.md
//! has the trace). This example uses plain SQL; `lockkeeper_fence::postgres` offers the same as functions,
//! for shared holds and permits too.
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
) -> Result<Outcome, Box<dyn Error>> {
    let fence = token.get() as i64; // below 2^53

    // Enter: one statement is one transaction, so the mark is durable before the balance is returned. (With
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

    // The check and all writes that depend on it are in one transaction.
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
