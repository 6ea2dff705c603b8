//! What often does the work of a lock, beside the lock: which is right, and how fast is each?
//!
//! Each way changes counters or tasks in PostgreSQL with several workers, first under a lock, then without
//! one, and checks that nothing was lost or done twice:
//!
//! - `statement`: one `UPDATE … SET value = value + 1`;
//! - `for-update`: a transaction with `SELECT … FOR UPDATE`;
//! - `version`: compare and swap, by a version that was read;
//! - `key`: an idempotency key, by `INSERT … ON CONFLICT DO NOTHING`;
//! - `queue`: `FOR UPDATE SKIP LOCKED`;
//! - `owner`: a single writer for each counter, which belongs to a partition.
//!
//! `alternatives postgres://db.example/shop lockkeeper://locks.example 8 200` runs all of them with 8 workers
//! of 200 changes each.

use std::error::Error;
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Partition};
use tokio_postgres::{Client, NoTls};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The counters that `owner` divides among its workers.
const COUNTERS: i64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alternative {
    Statement,
    ForUpdate,
    Version,
    Key,
    Queue,
    Owner,
}

/// One worker: its connection, its locks, its number, and how many changes it makes.
struct Worker {
    database: Client,
    locks: Locks,
    number: u32,
    changes: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, locks, workers, changes] = &arguments[..] else {
        return Err("usage: alternatives DATABASE_URL LOCKS_URL WORKERS CHANGES".into());
    };
    let (workers, changes): (u32, u32) = (workers.parse()?, changes.parse()?);
    let setup = connect(database).await?;
    for way in [
        Alternative::Statement,
        Alternative::ForUpdate,
        Alternative::Version,
        Alternative::Key,
        Alternative::Queue,
        Alternative::Owner,
    ] {
        let mut rates = Vec::new();
        for is_locked in [true, false] {
            prepare(&setup, workers * changes).await?;
            let mut ready = Vec::new();
            for number in 0..workers {
                let (database, locks) = (connect(database).await?, Locks::connect(locks).await?);
                ready.push(Worker { database, locks, number, changes });
            }
            let began = Instant::now();
            let all: Vec<_> =
                ready.into_iter().map(|worker| tokio::spawn(worker.work(way, is_locked))).collect();
            for worker in all {
                worker.await??;
            }
            rates.push(f64::from(workers * changes) / began.elapsed().as_secs_f64());
            check(&setup, way, i64::from(workers * changes)).await?;
        }
        let name = format!("{way:?}").to_lowercase();
        println!(
            "{name}: {:.0}/s under a lock, {:.0}/s without: {:.1} times",
            rates[0],
            rates[1],
            rates[1] / rates[0]
        );
    }
    Ok(())
}

impl Worker {
    async fn work(mut self, way: Alternative, is_locked: bool) -> Outcome<()> {
        if way == Alternative::Owner && !is_locked {
            return self.own().await;
        }
        for change in 0..self.changes {
            if !is_locked {
                self.change(way, change).await?;
                continue;
            }
            // One lock for what is changed: the counter that everyone wants, or the list of tasks.
            let name = match way {
                Alternative::Owner => format!("counters/{}", self.counter(change)),
                _ => "counters/0".to_owned(),
            };
            let guard = self.locks.mutex(name).acquire().await?;
            self.change_under_lock(way, change).await?;
            guard.release().await?;
        }
        Ok(())
    }

    /// The counter of a change, if all are used.
    fn counter(&self, change: u32) -> i64 {
        i64::from(self.number * self.changes + change) % COUNTERS
    }

    /// Reads, then writes: right only because nobody else does so meanwhile.
    async fn change_under_lock(&self, way: Alternative, change: u32) -> Outcome<()> {
        if let Alternative::Key | Alternative::Queue = way {
            let next = "SELECT id FROM tasks WHERE done = 0 ORDER BY id LIMIT 1";
            let task: i64 = self.database.query_one(next, &[]).await?.get(0);
            self.database.execute("UPDATE tasks SET done = done + 1 WHERE id = $1", &[&task]).await?;
            return Ok(());
        }
        let counter = if way == Alternative::Owner { self.counter(change) } else { 0 };
        let read = self.database.query_one("SELECT value FROM counters WHERE id = $1", &[&counter]).await?;
        let value = read.get::<_, i64>(0) + 1;
        self.database.execute("UPDATE counters SET value = $2 WHERE id = $1", &[&counter, &value]).await?;
        Ok(())
    }

    async fn change(&mut self, way: Alternative, change: u32) -> Outcome<()> {
        match way {
            Alternative::Statement => {
                self.database.execute("UPDATE counters SET value = value + 1 WHERE id = 0", &[]).await?;
            }
            Alternative::ForUpdate => {
                let transaction = self.database.transaction().await?;
                let read =
                    transaction.query_one("SELECT value FROM counters WHERE id = 0 FOR UPDATE", &[]).await?;
                let value = read.get::<_, i64>(0) + 1;
                transaction.execute("UPDATE counters SET value = $1 WHERE id = 0", &[&value]).await?;
                transaction.commit().await?;
            }
            Alternative::Version => loop {
                let read =
                    self.database.query_one("SELECT value, version FROM counters WHERE id = 0", &[]).await?;
                let (value, version): (i64, i64) = (read.get(0), read.get(1));
                let swap =
                    "UPDATE counters SET value = $1, version = version + 1 WHERE id = 0 AND version = $2";
                if self.database.execute(swap, &[&(value + 1), &version]).await? == 1 {
                    break;
                }
            },
            Alternative::Key => {
                // Each is told twice, as by a queue that delivers again.
                let key = i64::from(self.number * self.changes + change);
                for _ in 0..2 {
                    let transaction = self.database.transaction().await?;
                    let insert = "INSERT INTO keys (key) VALUES ($1) ON CONFLICT DO NOTHING";
                    if transaction.execute(insert, &[&key]).await? == 1 {
                        transaction
                            .execute("UPDATE tasks SET done = done + 1 WHERE id = $1", &[&key])
                            .await?;
                    }
                    transaction.commit().await?;
                }
            }
            Alternative::Queue => {
                let transaction = self.database.transaction().await?;
                let next = "SELECT id FROM tasks WHERE done = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
                let task: i64 = transaction.query_one(next, &[]).await?.get(0);
                transaction.execute("UPDATE tasks SET done = done + 1 WHERE id = $1", &[&task]).await?;
                transaction.commit().await?;
            }
            Alternative::Owner => unreachable!("`own` does it"),
        }
        Ok(())
    }

    /// Becomes the owner of a share of the counters, and makes all changes of each of them, without a lock
    /// for each change. With a fence at the database (docs/fencing.md) also an owner that stalls can do no
    /// harm; here it is left out.
    async fn own(self) -> Outcome<()> {
        let partitions = u32::try_from(COUNTERS)?;
        let mut member = self.locks.partitions("owners", partitions).join().await?;
        let done = "SELECT count(*) FROM counters WHERE value = share";
        let mut kept = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_millis(5), member.next()).await;
            // What another member is to have is given up.
            kept.retain(|owned: &Partition| !owned.is_leaving());
            let Ok(owned) = next else {
                if self.database.query_one(done, &[]).await?.get::<_, i64>(0) == COUNTERS {
                    break;
                }
                continue;
            };
            let owned = owned?;
            let counter = i64::from(owned.index());
            let read = self
                .database
                .query_one("SELECT value, share FROM counters WHERE id = $1", &[&counter])
                .await?;
            let (mut value, share): (i64, i64) = (read.get(0), read.get(1));
            while value < share && !owned.is_leaving() {
                value += 1;
                self.database
                    .execute("UPDATE counters SET value = $2 WHERE id = $1", &[&counter, &value])
                    .await?;
            }
            kept.push(owned);
        }
        Ok(())
    }
}

async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Empty counters, and as many tasks as there are changes.
async fn prepare(database: &Client, changes: u32) -> Outcome<()> {
    let sql = format!(
        "DROP TABLE IF EXISTS counters, tasks, keys;
         CREATE TABLE counters (id bigint PRIMARY KEY, value bigint NOT NULL, version bigint NOT NULL, share bigint NOT NULL);
         INSERT INTO counters SELECT id, 0, 0, (SELECT count(*) FROM generate_series(0, {changes} - 1) AS it WHERE it % {COUNTERS} = id)
             FROM generate_series(0, {COUNTERS} - 1) AS id;
         CREATE TABLE tasks (id bigint PRIMARY KEY, done bigint NOT NULL);
         INSERT INTO tasks SELECT id, 0 FROM generate_series(0, {changes} - 1) AS id;
         CREATE TABLE keys (key bigint PRIMARY KEY)"
    );
    Ok(database.batch_execute(&sql).await?)
}

/// Each change was made once.
async fn check(database: &Client, way: Alternative, changes: i64) -> Outcome<()> {
    let sql = match way {
        Alternative::Key | Alternative::Queue => "SELECT count(*) FROM tasks WHERE done = 1",
        _ => "SELECT sum(value)::bigint FROM counters",
    };
    let made: i64 = database.query_one(sql, &[]).await?.get(0);
    if made == changes { Ok(()) } else { Err(format!("{way:?}: {made} changes instead of {changes}").into()) }
}
