//! Load for a node: N logical clients, each with its own session and lock, acquire and release in closed
//! loops over a few connections. Also prints the median time of a single synced write in DIRECTORY.
//!
//! `cargo run --release -p lockkeeper-lab --example load -- http://127.0.0.1:5625 CLIENTS CONNECTIONS SECONDS
//! DIRECTORY`

#![allow(clippy::print_stdout, reason = "its result")]

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, clients, connections, seconds, directory] = arguments.as_slice() else {
        return Err("usage: load URL CLIENTS CONNECTIONS SECONDS DIRECTORY".into());
    };
    let (clients, connections): (usize, usize) = (clients.parse()?, connections.parse()?);
    let lone = lone_sync(directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let duration = Duration::from_secs_f64(seconds.parse()?);
    let mut waits = runtime.block_on(load(url, clients, connections, duration))?;
    waits.sort_unstable();
    let at = |share: f64| {
        waits.get((waits.len() as f64 * share) as usize).copied().unwrap_or_default().as_micros()
    };
    println!(
        "{clients} clients, {connections} connections: {:.0} pairs/s, acquire p50 {} us, p99 {} us; lone fdatasync {} us",
        waits.len() as f64 / duration.as_secs_f64(),
        at(0.5),
        at(0.99),
        lone.as_micros()
    );
    Ok(())
}

/// The median time of a synced write of 512 bytes to a preallocated file.
fn lone_sync(directory: &str) -> Result<Duration, Failed> {
    let path = std::path::Path::new(directory).join("load-sync");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    file.write_all_at(&vec![0; 1 << 20], 0)?;
    file.sync_all()?;
    let mut taken = Vec::new();
    for index in 0..1000 {
        let begun = Instant::now();
        file.write_all_at(&[7; 512], index * 512)?;
        file.sync_data()?;
        taken.push(begun.elapsed());
    }
    std::fs::remove_file(path)?;
    taken.sort_unstable();
    Ok(taken[500])
}

async fn load(
    url: &str,
    clients: usize,
    connections: usize,
    duration: Duration,
) -> Result<Vec<Duration>, Failed> {
    let mut running = Vec::new();
    for number in 0..connections {
        let share = (clients + connections - 1 - number) / connections;
        let channel = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true).connect().await?;
        running.push(tokio::spawn(drive(LockkeeperClient::new(channel), number, share, duration)));
    }
    let mut waits = Vec::new();
    for connection in running {
        waits.extend(connection.await??);
    }
    Ok(waits)
}

/// How often each session is kept alive: a sixth of its ttl.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A logical client: one session that acquires and releases one lock.
struct LoadClient {
    session: u64,
    seq: u64,
    asked: Instant,
    name: String,
}

async fn drive(
    mut server: LockkeeperClient<tonic::transport::Channel>,
    number: usize,
    clients: usize,
    duration: Duration,
) -> Result<Vec<Duration>, Failed> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut inbound = server.session(UnboundedReceiverStream::new(receiver)).await?.into_inner();
    let open = |index: usize| v1::ClientItem {
        session: 0,
        what: Some(client_item::What::Open(v1::OpenSession {
            secret: (((std::process::id() as u128) << 64) | ((number as u128) << 32) | index as u128)
                .to_le_bytes()
                .to_vec(),
            ttl_ms: 30_000,
            attach: 1,
            ..v1::OpenSession::default()
        })),
    };
    sender.send(v1::ClientFrame { items: (0..clients).map(open).collect() })?;
    let mut known: std::collections::BTreeMap<u64, LoadClient> = std::collections::BTreeMap::new();
    let mut waits = Vec::new();
    let begun = Instant::now();
    let mut kept_alive = begun;
    while begun.elapsed() < duration {
        let frame = inbound.message().await?.ok_or("the stream ended")?;
        let now = Instant::now();
        let mut items = Vec::with_capacity(frame.items.len());
        if now >= kept_alive + KEEP_ALIVE {
            kept_alive = now;
            let keep_alive = client_item::What::KeepAlive(v1::KeepAlive::default());
            items.extend(
                known.keys().map(|&session| v1::ClientItem { session, what: Some(keep_alive.clone()) }),
            );
        }
        for item in frame.items {
            match item.what {
                Some(server_item::What::Opened(_)) => {
                    let name = format!("load/{}/{number}/{}", std::process::id(), known.len());
                    known
                        .insert(item.session, LoadClient { session: item.session, seq: 0, asked: now, name });
                    items.extend(known.get_mut(&item.session).map(|client| client.acquire(now)));
                }
                Some(server_item::What::Granted(_)) => {
                    let client = known.get_mut(&item.session).ok_or("an unknown session")?;
                    waits.push(now - client.asked);
                    items.push(client.release());
                }
                Some(server_item::What::Finished(_)) => {
                    items.extend(known.get_mut(&item.session).map(|client| client.acquire(now)));
                }
                Some(server_item::What::KeptAlive(_) | server_item::What::Nodes(_)) => {}
                other => return Err(format!("unexpected: {other:?}").into()),
            }
        }
        sender.send(v1::ClientFrame { items })?;
    }
    Ok(waits)
}

impl LoadClient {
    fn acquire(&mut self, now: Instant) -> v1::ClientItem {
        self.seq += 1;
        self.asked = now;
        let acquire = v1::Acquire {
            seq: self.seq,
            done_through: self.seq - 1,
            names: vec![self.name.clone()],
            mode: v1::Mode::Exclusive.into(),
            ..v1::Acquire::default()
        };
        v1::ClientItem { session: self.session, what: Some(client_item::What::Acquire(acquire)) }
    }

    fn release(&mut self) -> v1::ClientItem {
        let target = self.seq;
        self.seq += 1;
        let finish = v1::Finish { seq: self.seq, target, done_through: target - 1 };
        v1::ClientItem { session: self.session, what: Some(client_item::What::Finish(finish)) }
    }
}
