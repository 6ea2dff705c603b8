//! One client that asks for more than the node can do, beside one that asks for little.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use lockkeeper_wire::v1::{self, client_item::What};
use tokio::time::Instant;

use super::witness::Witness;
use super::{AttackCount, GROWTH_MAX, resident, seconds};
use crate::harness::{Client, DEADLINE, SECRET, Server, acquire, directory};

/// Streams of the client that floods, on one connection each.
const STREAMS: u64 = 16;
/// Acquires in one frame of that client, each with its release.
const PAIRS_PER_FRAME: u64 = 128;
/// Frames that a stream of that client sends before it reads answers, so that it never has too little to do.
const FRAMES_AHEAD: usize = 64;

/// Between two pairs of acquire and release of the client that asks for little.
const PAUSE: Duration = Duration::from_millis(2);

/// The client that asks for little, on a thread of its own.
struct Bystander {
    /// Ends a phase: where to send the times of its pairs.
    phase: Sender<Sender<Vec<Duration>>>,
    thread: JoinHandle<()>,
}

impl Bystander {
    fn start(server: &Server, token: &str) -> Self {
        let (address, token) = (server.running.address(), token.to_owned());
        let (phase, phases) = channel::<Sender<Vec<Duration>>>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut witness = Witness::with_token(address, &token).await;
                let mut seen = Vec::new();
                loop {
                    match phases.try_recv() {
                        Ok(ends) => ends.send(std::mem::take(&mut seen)).unwrap(),
                        Err(TryRecvError::Empty) => {}
                        Err(TryRecvError::Disconnected) => return witness.end().await,
                    }
                    let begun = Instant::now();
                    witness.progress(1).await;
                    seen.push(begun.elapsed());
                    tokio::time::sleep(PAUSE).await;
                }
            });
        });
        Self { phase, thread }
    }

    /// Ends a phase: the times of its pairs, sorted.
    fn phase(&self) -> Vec<Duration> {
        let (sender, times) = channel();
        self.phase.send(sender).unwrap();
        let mut times = times.recv_timeout(DEADLINE).expect("the client that asks for little goes on");
        times.sort_unstable();
        times
    }

    fn end(self) {
        drop(self.phase);
        self.thread.join().unwrap();
    }
}

/// Lets the node's threads go first: the client that floods is to take its time from the node's queues, not
/// from its processor.
fn be_nice() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap();
    let status = std::process::Command::new("renice").args(["-n", "19", "-p"]).arg(thread).output().unwrap();
    assert!(status.status.success(), "{status:?}");
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
}

/// Starts the client that floods, on a thread of its own.
fn flooding(address: SocketAddr, token: &str, done: &AttackCount, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stream = |number| flood(address, token.to_owned(), number, done.clone(), stop.clone());
    let streams: Vec<_> = (0..STREAMS).map(stream).collect();
    std::thread::spawn(move || {
        be_nice();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            streams.into_iter().for_each(|stream| drop(tasks.spawn(stream)));
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
        });
    })
}

/// One stream of the client that floods: it sends whenever the node reads, and reads all answers.
async fn flood(address: SocketAddr, token: String, number: u64, done: AttackCount, stop: Arc<AtomicBool>) {
    let mut client = Client::connect_as(address, Some(&token)).await;
    let mut secret = SECRET;
    secret[1] = u8::try_from(100 + number).unwrap();
    let session = client.open(secret, "flood").await;
    let (mut seq, mut answered, mut sent) = (0, 0, 0);
    let mut kept_alive = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if kept_alive.elapsed() > Duration::from_secs(5) {
            kept_alive = Instant::now();
            client.send(session, What::KeepAlive(v1::KeepAlive { id: seq }));
        }
        while sent < answered + FRAMES_AHEAD as u64 * 2 * PAIRS_PER_FRAME {
            let mut items = Vec::new();
            for _ in 0..PAIRS_PER_FRAME {
                let name = format!("flood/{number}/{}", seq % 1_000);
                let wanted = v1::Acquire { done_through: answered, ..acquire(seq + 1, &name, false) };
                let release = v1::Finish { seq: seq + 2, target: seq + 1, done_through: answered };
                for what in [What::Acquire(wanted), What::Finish(release)] {
                    items.push(v1::ClientItem { session, what: Some(what) });
                }
                seq += 2;
            }
            sent += items.len() as u64;
            client.send_all(items);
        }
        let item = client.item().await.expect("the stream is open");
        assert!(!matches!(item.what, Some(v1::server_item::What::StreamEnd(_))), "{item:?}");
        answered = answered.max(item.seq);
        done.add(1);
    }
}

/// Prints what the client that asks for little notices. It must lose nothing, and neither must the one that
/// floods.
#[test]
fn overload_by_one_client_is_not_felt_by_another() {
    let (files, data) = (directory(), directory());
    let callers = ["flood", "bystander"];
    let (server, tokens) = Server::start_for(data.path(), files.path(), callers, None);
    let address = server.running.address();
    let bystander = Bystander::start(&server, &tokens[1]);
    let before = resident();
    std::thread::sleep(seconds());
    let quiet = bystander.phase();
    let (done, stop) = (AttackCount::default(), Arc::new(AtomicBool::new(false)));
    let flooding = flooding(address, &tokens[0], &done, &stop);
    let deadline = Instant::now() + DEADLINE;
    while done.get() < 10_000 {
        assert!(Instant::now() < deadline, "the flood does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _begin = bystander.phase();
    let (end, mut peak, begun) = (Instant::now() + seconds(), 0, done.get());
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
        peak = resident().max(peak);
    }
    let flooded = bystander.phase();
    let rate = (done.get() - begun) / seconds().as_secs();
    stop.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    let _end = bystander.phase();
    std::thread::sleep(seconds());
    let after = bystander.phase();
    bystander.end();
    for (phase, times) in [("before", &quiet), ("during", &flooded), ("after", &after)] {
        eprintln!(
            "{phase}: {} pairs, p50 {:?}, p99 {:?}, slowest {:?}",
            times.len(),
            percentile(times, 50),
            percentile(times, 99),
            percentile(times, 100)
        );
    }
    let grown = peak.saturating_sub(before);
    eprintln!("flood: {rate} requests/s, {} MiB", grown >> 20);
    // Without fair queueing it is some 500,000 for each pair; with it 2,600.
    let flood_of_pair = rate * seconds().as_secs() / flooded.len().max(1) as u64;
    assert!(
        flood_of_pair < 50_000,
        "{flood_of_pair} requests of the flood were served for each pair of the other client"
    );
    assert!(grown < GROWTH_MAX, "{} MiB of memory for the flood", grown >> 20);
    let stopper = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    stopper.block_on(server.stop()).unwrap();
}
