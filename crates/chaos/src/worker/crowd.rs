//! One process of a crowd: many clients, each with a connection and a session of its own, and many waiters of
//! one more client.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lockkeeper::{Guard, Lock, Locks};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Errors, connected};
use crate::Result;
use crate::options::CrowdWorkerOptions;

/// The lock for which all waiters wait.
pub(crate) const QUEUE: &str = "queue";
const TTL: Duration = Duration::from_secs(30);
/// How many clients connect at the same time at the start; after a restart, all do.
const AT_ONCE: usize = 64;
/// A call that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(200);

/// A client, and the lock that it keeps.
struct CrowdClient {
    locks: Locks,
    kept: Guard,
    number: usize,
}

/// Takes commands until the end of standard input; the first answer comes when all clients are connected.
pub(crate) fn run(options: &CrowdWorkerOptions) -> Result {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(work(options));
    runtime.shutdown_timeout(Duration::from_secs(5));
    ended
}

async fn work(options: &CrowdWorkerOptions) -> Result {
    let client = async |number: usize| -> Result<CrowdClient> {
        let locks = connected(&options.url, &format!("{}-{number}", options.name)).await?;
        let kept = locks.mutex(format!("kept/{}-{number}", options.name)).ttl(TTL).acquire().await?;
        Ok(CrowdClient { locks, kept, number })
    };
    let mut clients = Vec::new();
    let mut connecting = stream::iter(0..options.sessions).map(client).buffer_unordered(AT_ONCE);
    while let Some(client) = connecting.next().await {
        clients.push(client?);
    }
    drop(connecting);
    tell(clients.len(), 0, 0);
    let locks = connected(&options.url, &options.name).await?;
    let (mut waiting, errors) = (JoinSet::new(), Errors::default());
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        match command.as_str() {
            "pulse" => pulse(&clients, &options.name).await,
            "wait" => {
                for _ in 0..options.waiters {
                    let lock = locks.mutex(QUEUE).ttl(TTL);
                    waiting.spawn(pair(lock));
                }
            }
            "collect" => {
                let (mut done, mut failed) = (0, 0);
                while let Some(ended) = waiting.join_next().await {
                    match ended? {
                        Ok(()) => done += 1,
                        Err(error) => {
                            failed += 1;
                            errors.count(&error);
                        }
                    }
                }
                errors.show();
                tell(done, 0, failed);
            }
            other => return Err(format!("{other} is no command").into()),
        }
    }
    Ok(())
}

/// Each client makes a call, and looks whether it still has its lock.
async fn pulse(clients: &[CrowdClient], name: &str) {
    let pulse = async |client: &CrowdClient| {
        let lock = client.locks.mutex(format!("pulse/{name}-{}", client.number)).ttl(TTL);
        (pair(lock).await.is_ok(), client.kept.loss().is_some())
    };
    let pulses = futures_util::future::join_all(clients.iter().map(pulse)).await;
    let count = |is: fn(&(bool, bool)) -> bool| pulses.iter().filter(|pulse| is(pulse)).count();
    tell(count(|(is_done, _)| *is_done), count(|(_, is_lost)| *is_lost), count(|(is_done, _)| !is_done));
}

async fn pair(lock: Lock) -> Result {
    let pair = async { Ok(lock.acquire().await?.release().await?) };
    timeout(LIMIT, pair).await.map_err(|_| format!("nothing within {LIMIT:?}"))?
}

fn tell(done: usize, lost: usize, failed: usize) {
    println!("{}", json!({ "done": done, "lost": lost, "failed": failed }));
}
