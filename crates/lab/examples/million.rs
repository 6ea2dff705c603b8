//! The cost of a full table for a node: HOLDS held locks, then 64 clients in closed loops beside them while
//! snapshots are taken, then a restart. Prints the longest step of a snapshot on the replica's thread, the
//! longest gap between two turns with requests, and the durations of the snapshots and the restart.
//!
//! `cargo run --release -p lockkeeper-lab --example million -- DIRECTORY HOLDS SECONDS`

#![allow(clippy::print_stdout, reason = "its result")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError, mpsc as sync};
use std::time::{Duration, Instant};

use lockkeeper_server::{Running, ServeError, ServerOptions, run};
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};

type Failed = Box<dyn Error + Send + Sync>;
/// Clients in closed loops.
const CLIENTS: usize = 64;
/// Most pending requests while the holds are acquired.
const WINDOW: u64 = 4096;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, holds, seconds] = arguments.as_slice() else {
        return Err("usage: million DIRECTORY HOLDS SECONDS".into());
    };
    let (holds, duration) = (holds.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let seen = NodeMetrics::default();
    metrics::set_global_recorder(seen.clone()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let node = InProcessNode::start(directory)?;
    runtime.block_on(async {
        let begun = Instant::now();
        let mut stream = IdleStream::open(&node.url).await?;
        stream.hold(holds).await?;
        println!("{holds} locks are held after {:.1} s", begun.elapsed().as_secs_f64());
        seen.report("while they were taken");
        let pairs = IdleStream::open(&node.url).await?.loops(duration).await?;
        println!("{CLIENTS} clients beside them: {:.0} pairs/s", pairs as f64 / duration.as_secs_f64());
        seen.report("meanwhile");
        Ok::<(), Failed>(())
    })?;
    node.stop()?;
    let begun = Instant::now();
    let node = InProcessNode::start(directory)?;
    println!("restart until it serves: {:.2} s", begun.elapsed().as_secs_f64());
    node.stop()
}

/// A node in this process.
struct InProcessNode {
    running: Running,
    url: String,
    thread: std::thread::JoinHandle<Result<(), ServeError>>,
}

impl InProcessNode {
    fn start(directory: &str) -> Result<Self, Failed> {
        let options = ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(directory) };
        let (ready, is_ready) = sync::channel();
        let thread = std::thread::spawn(move || run(options, move |running| drop(ready.send(running))));
        let Ok(running) = is_ready.recv() else {
            return Err(match thread.join() {
                Ok(Err(error)) => error.into(),
                _ => "the node ended without serving".into(),
            });
        };
        Ok(Self { url: format!("http://{}", running.address()), running, thread })
    }

    fn stop(self) -> Result<(), Failed> {
        self.running.stop();
        self.thread.join().map_err(|_| "the node has panicked")?.map_err(Failed::from)
    }
}

/// A stream of sessions with a ttl of an hour, so that no keep-alives are needed.
struct IdleStream {
    sender: mpsc::UnboundedSender<v1::ClientFrame>,
    inbound: tonic::Streaming<v1::ServerFrame>,
    _server: LockkeeperClient<Channel>,
}

impl IdleStream {
    async fn open(url: &str) -> Result<Self, Failed> {
        let channel = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true).connect().await?;
        let mut server = LockkeeperClient::new(channel);
        let (sender, receiver) = mpsc::unbounded_channel();
        let inbound = server.session(UnboundedReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { sender, inbound, _server: server })
    }

    fn send(&self, items: Vec<v1::ClientItem>) -> Result<(), Failed> {
        Ok(self.sender.send(v1::ClientFrame { items })?)
    }

    async fn receive(&mut self) -> Result<Vec<v1::ServerItem>, Failed> {
        Ok(self.inbound.message().await?.ok_or("the stream ended")?.items)
    }

    /// Opens one session and acquires `holds` locks.
    async fn hold(&mut self, holds: u64) -> Result<(), Failed> {
        self.send(vec![open(1)])?;
        let (mut asked, mut granted, mut session) = (0, 0, 0);
        while granted < holds {
            for item in self.receive().await? {
                match item.what {
                    Some(server_item::What::Opened(_)) => session = item.session,
                    Some(server_item::What::Granted(_)) => granted += 1,
                    other => return Err(format!("unexpected: {other:?}").into()),
                }
            }
            let more = holds.min(granted + WINDOW);
            if asked < more && asked <= granted + WINDOW / 2 {
                let name = |seq: u64| format!("held/by-a-million-of-them/{seq:08}");
                self.send((asked + 1..=more).map(|seq| acquire(session, seq, name(seq))).collect())?;
                asked = more;
            }
        }
        Ok(())
    }

    /// The number of acquire-release pairs that [`CLIENTS`] sessions complete in this time.
    async fn loops(&mut self, duration: Duration) -> Result<u64, Failed> {
        self.send((0..CLIENTS).map(|number| open(10 + number as u64)).collect())?;
        let mut known: BTreeMap<u64, u64> = BTreeMap::new();
        let (begun, mut pairs) = (Instant::now(), 0);
        while begun.elapsed() < duration {
            let mut items = Vec::new();
            for item in self.receive().await? {
                let session = item.session;
                let seq = known.entry(session).or_default();
                *seq += 1;
                match item.what {
                    Some(server_item::What::Opened(_)) => {
                        items.push(acquire(session, *seq, format!("loop/{session}")));
                    }
                    Some(server_item::What::Granted(_)) => {
                        let finish = v1::Finish { seq: *seq, target: *seq - 1, done_through: *seq - 2 };
                        items.push(v1::ClientItem { session, what: Some(client_item::What::Finish(finish)) });
                    }
                    Some(server_item::What::Finished(_)) => {
                        pairs += 1;
                        items.push(acquire(session, *seq, format!("loop/{session}")));
                    }
                    other => return Err(format!("unexpected: {other:?}").into()),
                }
            }
            self.send(items)?;
        }
        Ok(pairs)
    }
}

fn open(secret: u64) -> v1::ClientItem {
    let open = v1::OpenSession {
        secret: u128::from(secret).to_le_bytes().to_vec(),
        ttl_ms: 3_600_000,
        attach: 1,
        ..v1::OpenSession::default()
    };
    v1::ClientItem { session: 0, what: Some(client_item::What::Open(open)) }
}

fn acquire(session: u64, seq: u64, name: String) -> v1::ClientItem {
    let acquire = v1::Acquire {
        seq,
        done_through: seq - 1,
        names: vec![name],
        mode: v1::Mode::Exclusive.into(),
        ..v1::Acquire::default()
    };
    v1::ClientItem { session, what: Some(client_item::What::Acquire(acquire)) }
}

/// The greatest values of the node's histograms, and the longest gap between two turns with requests.
#[derive(Clone, Default)]
struct NodeMetrics(Arc<Mutex<Maxima>>);

#[derive(Default)]
struct Maxima {
    of: BTreeMap<String, f64>,
    count: BTreeMap<String, u64>,
    last_turn: Option<Instant>,
    gap: Duration,
}

impl NodeMetrics {
    /// Prints the values since the last report.
    fn report(&self, when: &str) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{when}: longest gap between two turns {:.2} ms", seen.gap.as_secs_f64() * 1e3);
        for (name, most) in &seen.of {
            println!("  {name}: {} times, at most {most:.6}", seen.count[name]);
        }
        *seen = Maxima::default();
    }
}

struct Cell(Arc<Mutex<Maxima>>, String);

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *seen.count.entry(self.1.clone()).or_default() += 1;
        let most = seen.of.entry(self.1.clone()).or_default();
        *most = most.max(value);
        if self.1 == "lockkeeper_turn_requests" {
            let now = Instant::now();
            let gap = seen.last_turn.replace(now).map_or(Duration::ZERO, |last| now - last);
            seen.gap = seen.gap.max(gap);
        }
    }
}

impl Recorder for NodeMetrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Cell(self.0.clone(), key.name().to_owned())))
    }
}
