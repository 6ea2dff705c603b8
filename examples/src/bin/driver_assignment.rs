//! Drivers and rides: many short holds, with one lock per driver.
//!
//! The problem: a ride is offered to the nearest free driver, who has a few seconds to accept. Two
//! dispatchers with two rides see the same driver as free, both offer their ride, and the driver accepts
//! both.
//!
//! Why a lock per driver: it is held from the check that the driver is free until the answer is stored, for a
//! few seconds at most. Dispatchers that offer to other drivers do not contend. No dispatcher waits: a driver
//! with a pending offer counts as busy, and the next driver is tried. The ttl is short, so that a driver
//! whose dispatcher died gets new offers soon.
//!
//! Why a fence: short leases are easily exceeded by a slow answer or a pause. A late dispatcher must not
//! overwrite a ride that was assigned in the meantime. The row's `fence` column makes the database refuse
//! such a write.
//!
//! `driver_assignment lockkeeper://locks.example postgres://db.example/rides ride-7`

use std::error::Error;
use std::time::Duration;

use lockkeeper::{Fenced, Guard, Locks};
use tokio_postgres::{Client, NoTls};

/// An offer takes up to a second; the hold is renewed as long as this process lives.
const TTL: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, database, ride] =
        arguments().ok_or("usage: driver_assignment LOCKS_URL POSTGRES_URL RIDE")?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    // CREATE TABLE drivers (id bigint PRIMARY KEY, ride text, fence bigint NOT NULL DEFAULT 0);
    let (db, connection) = tokio_postgres::connect(&database, NoTls).await?;
    let connection = tokio::spawn(connection);
    match assign(&locks, &db, &ride).await? {
        Some(driver) => println!("{ride} goes to driver {driver}"),
        None => println!("{ride}: no driver is free"),
    }
    drop(db);
    connection.await??;
    Ok(())
}

async fn assign(locks: &Locks<Fenced>, db: &Client, ride: &str) -> Result<Option<i64>, Box<dyn Error>> {
    loop {
        // A real dispatcher would sort by distance. The result is a hint; the row is checked again under the
        // lock.
        let free = db.query("SELECT id FROM drivers WHERE ride IS NULL ORDER BY id", &[]).await?;
        if free.is_empty() {
            return Ok(None);
        }
        for row in free {
            let driver: i64 = row.get("id");
            let lock = locks.mutex(format!("drivers/{driver}")).ttl(TTL);
            let Some(guard) = lock.try_acquire().await? else { continue };
            let assigned = offer(&guard, db, driver, ride).await?;
            // An error of the release is ignored: if the hold was lost, the fence has already accepted or
            // refused the write.
            let _ = guard.release().await;
            if assigned {
                return Ok(Some(driver));
            }
        }
        // No driver of the list could be assigned. Drivers with a pending offer may decline it and be free
        // again.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns true if the driver now has this ride.
async fn offer(guard: &Guard<Fenced>, db: &Client, driver: i64, ride: &str) -> Result<bool, Box<dyn Error>> {
    let fence = guard.token().get() as i64; // below 2^53
    // Enter, and check again: from here on no dispatcher with a lower token can assign this driver.
    let entered = db
        .query_opt(
            "UPDATE drivers SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING ride IS NULL AS free",
            &[&driver, &fence],
        )
        .await?;
    let Some(entered) = entered else { return Err("stale: a later dispatcher is at this driver".into()) };
    if !entered.get::<_, bool>("free") || !accepts(driver).await {
        return Ok(false);
    }
    let written = db
        .execute(
            "UPDATE drivers SET ride = $3, fence = $2 WHERE id = $1 AND fence <= $2",
            &[&driver, &fence, &ride],
        )
        .await?;
    Ok(written == 1)
}

/// Stands for the driver's app.
async fn accepts(_driver: i64) -> bool {
    tokio::time::sleep(Duration::from_millis(30)).await;
    true
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
