//! A payment through a provider that knows nothing of tokens.
//!
//! The problem: "charge order 42" is in a queue that delivers at least once, so two workers may have it at the same time,
//! and a worker may die between the charge and writing down that it was made. The customer shall be charged once.
//!
//! Why a lock is not enough: the provider can't check a token, so it can't be fenced. A worker that stalls under the lock
//! wakes up later and charges, whatever the lock service thinks. What makes that harmless is an *idempotency key*: the
//! provider answers the second request with the first one's receipt. The key is written down before the provider is
//! asked, so that whoever comes after a crash asks with the same one.
//!
//! Why a lock then: providers forget keys (often after a day), answer a request that is still under way with an error,
//! and count requests. The lock makes the double request rare; the key makes it harmless.
//!
//! Why a fence: our own record can be fenced, so it is. Else a late worker could turn "paid" back into something older.
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

/// The receipt; `None` if our token is stale.
async fn pay(
    db: &Client,
    order: &str,
    cents: i64,
    token: Token,
) -> Result<Option<String>, tokio_postgres::Error> {
    let fence = token.get() as i64; // below 2^53
    // Enter before reading: from here on no worker with a lower token changes this record. The key stays the first one.
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

    // Whatever happens from here on, the next worker finds the key and asks with it again.
    let receipt = charge(db, record.get("key"), cents).await?;

    let written = db
        .execute(
            "UPDATE payments SET receipt = $2, fence = $3 WHERE order_id = $1 AND fence <= $3",
            &[&order, &receipt, &fence],
        )
        .await?;
    Ok((written == 1).then_some(receipt))
}

/// Stands for the call to the provider: with a key it has seen, it answers as it did then and charges nothing.
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
