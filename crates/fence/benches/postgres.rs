//! The overhead of a fence on a write: the same transaction with and without it, alternating, on the same
//! server.
//!
//! `cargo bench -p lockkeeper-fence --bench postgres --features tokio-postgres`. Starts its server on
//! loopback and stops it. Target: at most 1.6 × the p50 of the same write without a fence.
#![expect(clippy::print_stdout, reason = "a measurement is read by people")]

use std::time::{Duration, Instant};

use lockkeeper_fence::postgres::{Column, SCHEMA_SQL, tokio_postgres as fence};
use lockkeeper_fence::{Section, Token};
use lockkeeper_rig::Postgres;
use tokio_postgres::{Client, NoTls, Statement};

/// Writes per measurement.
const WRITES: usize = 400;
/// Measurements per variant.
const TURNS: usize = 7;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

struct Table {
    client: Client,
    plain: Statement,
    rows: Column,
    section: Section,
}

impl Table {
    /// BEGIN, UPDATE, COMMIT. The check is pipelined with the update, so it needs no round trip of its own.
    async fn pipelined(&mut self) -> Outcome {
        let transaction = self.client.transaction().await?;
        let (checked, written) = tokio::join!(
            fence::write(&transaction, "stock", self.section),
            transaction.execute(&self.plain, &[&3_i64])
        );
        checked?;
        written?;
        Ok(transaction.commit().await?)
    }

    /// BEGIN, UPDATE, COMMIT, with or without the check before the update.
    async fn transaction(&mut self, fenced: bool) -> Outcome {
        let transaction = self.client.transaction().await?;
        if fenced {
            fence::write(&transaction, "stock", self.section).await?;
        }
        transaction.execute(&self.plain, &[&3_i64]).await?;
        Ok(transaction.commit().await?)
    }

    /// One UPDATE, with or without the condition on the fence column.
    async fn statement(&mut self, fenced: bool) -> Outcome {
        if fenced {
            fence::write_row(&self.client, &self.rows, &3_i64, self.section, "pieces = pieces + 1", &[])
                .await?;
        } else {
            let sql = "UPDATE stock SET pieces = pieces + 1 WHERE id = $1";
            self.client.execute(sql, &[&3_i64]).await?;
        }
        Ok(())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[derive(Clone, Copy)]
enum Kind {
    Transaction,
    Pipelined,
    Statement,
}

/// Medians of the measurements' p50: without the fence, and with the fence.
async fn compare(table: &mut Table, kind: Kind) -> Outcome<(Duration, Duration)> {
    let mut p50s = [Vec::new(), Vec::new()];
    for turn in 0..2 * TURNS {
        let fenced = turn % 2 == 1;
        let mut times = Vec::with_capacity(WRITES);
        for _ in 0..WRITES {
            let since = Instant::now();
            match kind {
                Kind::Statement => table.statement(fenced).await?,
                Kind::Pipelined if fenced => table.pipelined().await?,
                Kind::Transaction | Kind::Pipelined => table.transaction(fenced).await?,
            }
            times.push(since.elapsed());
        }
        p50s[usize::from(fenced)].push(median(times));
    }
    Ok(p50s.map(median).into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    for (name, arguments) in [("fsync on", &["-c", "fsync=on"][..]), ("fsync off", &[])] {
        let server = Postgres::with(arguments);
        server.psql(SCHEMA_SQL);
        server.psql(
            "CREATE TABLE stock (id bigint PRIMARY KEY, pieces bigint, fence bigint NOT NULL DEFAULT 0)",
        );
        server.psql("INSERT INTO stock VALUES (3, 0)");
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
        tokio::spawn(connection);
        let section = Section::exclusive(Token::MIN);
        fence::enter(&client, "stock", section).await?;
        let plain = client.prepare("UPDATE stock SET pieces = pieces + 1 WHERE id = $1").await?;
        let mut table = Table { client, plain, rows: Column::new("stock", "id", "fence"), section };
        for (what, kind) in [
            ("transaction, check_write", Kind::Transaction),
            ("transaction, check_write and write sent together", Kind::Pipelined),
            ("one statement, fence column", Kind::Statement),
        ] {
            let (without, with) = compare(&mut table, kind).await?;
            let ratio = with.as_secs_f64() / without.as_secs_f64();
            println!("{name}, {what}: p50 {without:?} without, {with:?} with: {ratio:.2} × (bar 1.6)");
        }
    }
    Ok(())
}
