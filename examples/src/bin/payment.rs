//! A payment through a provider that can't check tokens.
//!
//! The problem: "charge order 42" is in a queue with at-least-once delivery, so two workers may process it at
//! the same time, and a worker may die after the charge and before it records the charge. The customer must
//! be charged once.
//!
//! Why a lock is not enough: the provider can't check a token, so it can't be fenced. A worker that stalls
//! under the lock resumes later and charges, although its hold is over. An *idempotency key* makes that
//! harmless: the provider answers a repeated request with the receipt of the first one. The key is stored
//! before the provider is called, so that a worker that continues after a crash uses the same key.
//!
//! Why a lock is still useful: providers forget keys (often after a day), return an error for a request that
//! is still in progress, and count requests against a quota. The lock makes repeated requests rare; the key
//! makes them harmless.
//!
//! Why a fence: our own record can be fenced, so it is. Otherwise a late worker could overwrite "paid" with
//! an older state.
//!
//! `payment lockkeeper://locks.example postgres://db.example/shop order-42 1999`

use std::error::Error;

use lockkeeper::{Locks, Token};
use tokio_postgres::{Client, NoTls};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS payments (
        order_id text PRIMARY KEY,
        key      text NOT NULL,             -- what the provider is asked with, each time
        receipt  text,                      -- there once it is paid
        fence    bigint NOT NULL DEFAULT 0  -- the highest token that was here
    );
    -- Stands for the provider's side.
    CREATE TABLE IF NOT EXISTS provider (key text PRIMARY KEY, cents bigint NOT NULL, receipt text NOT NULL);";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, database, order, cents] =
        arguments().ok_or("usage: payment LOCKS_URL POSTGRES_URL ORDER CENTS")?;
    let cents: i64 = cents.parse()?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    let (db, connection) = tokio_postgres::connect(&database, NoTls).await?;
    let connection = tokio::spawn(connection);
    db.batch_execute(TABLES).await?;

    let lock = locks.mutex(format!("payments/{order}"));
    let receipt = lock.run(async |held| pay(&db, &order, cents, held.token()).await).await?;
    match receipt {
        Some(receipt) => println!("{order} is paid: {receipt}"),
        None => return Err(format!("{order}: a later worker has it, so this one stops").into()),
    }
    drop(db);
    connection.await??;
    Ok(())
}

/// Returns the receipt, or `None` if the token is stale.
async fn pay(db: &Client, order: &str, cents: i64, token: Token) -> Result<Option<String>, Box<dyn Error>> {
    let fence = token.get() as i64; // below 2^53
    // Enter before reading: from here on no worker with a lower token can change this record. The key stays
    // the first one.
    let key = format!("shop-{order}");
    let entered = db
        .query_opt(
            "INSERT INTO payments AS p (order_id, key, fence) VALUES ($1, $2, $3)
             ON CONFLICT (order_id) DO UPDATE SET fence = $3 WHERE p.fence <= $3
             RETURNING key, receipt",
            &[&order, &key, &fence],
        )
        .await?;
    let Some(record) = entered else { return Ok(None) };
    if let Some(receipt) = record.get("receipt") {
        return Ok(Some(receipt));
    }

    // If this worker fails from here on, the next one finds the key and repeats the request with it.
    let receipt = charge(db, record.get("key"), cents).await?;

    let written = db
        .execute(
            "UPDATE payments SET receipt = $2, fence = $3 WHERE order_id = $1 AND fence <= $3",
            &[&order, &receipt, &fence],
        )
        .await?;
    Ok((written == 1).then_some(receipt))
}

/// Stands for the call of the provider: for a known key it returns the stored receipt and charges nothing.
async fn charge(provider: &Client, key: &str, cents: i64) -> Result<String, tokio_postgres::Error> {
    let row = provider
        .query_one(
            "INSERT INTO provider (key, cents, receipt) VALUES ($1, $2, 'receipt-' || gen_random_uuid())
             ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING receipt",
            &[&key, &cents],
        )
        .await?;
    Ok(row.get("receipt"))
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
