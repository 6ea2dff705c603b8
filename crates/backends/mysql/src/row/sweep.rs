//! Removes rows of no more use: locks unused for a day (tokens rise even so), expired waiters, and old marks
//! of finished requests.

use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use lockkeeper_backend::BackendError;
use mysql_async::Value;
use tokio_util::sync::CancellationToken;

use super::store::RowStore;
use crate::lane::{column, marks};

/// Pause between two looks of a client; the first one is a random part of it.
const PAUSE: Duration = Duration::from_secs(60);
/// Rows that one look reads of each table.
const READ: usize = 2000;

/// `(name)`: the names from there on, and whether each is unused.
const LOCKS: &str = "SELECT name, shut_until < UTC_TIMESTAMP(6) - INTERVAL 1 DAY \
                     AND since < UTC_TIMESTAMP(6) - INTERVAL 1 DAY FROM lockkeeper_lease WHERE name > ? \
                     ORDER BY name LIMIT 2000";
const WAITERS: &str =
    "SELECT id FROM lockkeeper_waiter WHERE expires < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE LIMIT 2000";
const MARKS: &str = "SELECT id FROM lockkeeper_gone WHERE expires < UTC_TIMESTAMP(6) LIMIT 2000";

/// Until `stop`, or until the client's store is dropped.
pub(super) async fn run(store: Arc<RowStore>, stop: CancellationToken) {
    let store = Arc::downgrade(&store);
    let mut from = Vec::new();
    let first = PAUSE.mul_f64(f64::from(rand_byte()) / 256.0);
    let mut pause = first;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = PAUSE;
        let Some(()) = sweep(&store, &mut from).await else { return };
    }
}

/// `None` once the client is gone.
async fn sweep(store: &Weak<RowStore>, from: &mut Vec<u8>) -> Option<()> {
    let store = store.upgrade()?;
    if let Err(error) = try_sweep(&store, from).await {
        tracing::debug!(%error, "mysql: unused rows were not removed");
    }
    Some(())
}

async fn try_sweep(store: &RowStore, from: &mut Vec<u8>) -> Result<(), BackendError> {
    // The candidates are read without locking them; the deletes lock nothing but their keys.
    let locks = store.ask("sweep", LOCKS, vec![from.clone().into()]).await?;
    let mut unused: Vec<Vec<u8>> = Vec::new();
    let mut last = Vec::new();
    for row in &locks.rows {
        last = column(row, 0)?;
        if column(row, 1)? {
            unused.push(last.clone());
        }
    }
    // After the end, the next look begins at the first name.
    *from = if locks.rows.len() < READ { Vec::new() } else { last };
    // A row must outlive the marks of its requests.
    let condition = "AND shut_until < UTC_TIMESTAMP(6) - INTERVAL 1 DAY \
                     AND NOT EXISTS (SELECT 1 FROM lockkeeper_gone g WHERE g.name = lockkeeper_lease.name)";
    delete(store, "lockkeeper_lease", "name", unused, condition).await?;
    for (table, select) in [("lockkeeper_waiter", WAITERS), ("lockkeeper_gone", MARKS)] {
        let found = store.ask("sweep", select, Vec::new()).await?;
        let ids: Result<Vec<Vec<u8>>, _> = found.rows.iter().map(|row| column(row, 0)).collect();
        delete(store, table, "id", ids?, "AND expires < UTC_TIMESTAMP(6)").await?;
    }
    Ok(())
}

async fn delete(
    store: &RowStore,
    table: &str,
    key: &str,
    keys: Vec<Vec<u8>>,
    condition: &str,
) -> Result<(), BackendError> {
    for keys in keys.chunks(256) {
        // One statement for each power of two.
        let count = keys.len().next_power_of_two();
        let sql = format!("DELETE FROM {table} WHERE {key} IN ({}) {condition}", marks(count));
        let padded = keys.iter().chain(std::iter::repeat(&keys[keys.len() - 1])).take(count);
        store.ask("sweep", &sql, padded.map(|key| Value::from(key.clone())).collect()).await?;
    }
    Ok(())
}

fn rand_byte() -> u8 {
    lockkeeper_backend::random_bytes::<1>().map_or(0, |[byte]| byte)
}
