//! The overhead of the HTTP fence on a handler, over a real socket; variants alternate within one run.
//!
//! `cargo bench -p lockkeeper-fence --features http --bench http [DIRECTORY]`. The marks are stored in
//! DIRECTORY, or in the system's directory for temporary files (which may be in memory, where a sync costs
//! nothing). Targets: with a token that was seen before, 1.2 × the handler's p50; with a new token, that plus
//! one `fdatasync` after a write of five scattered pages, as in a commit of the store. The targets are not
//! asserted.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::put;
use lockkeeper_fence::{DurableMarks, HttpFence, MemoryFence};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PAGE: usize = 4096;
const ROUNDS: usize = 3000;
/// The number of requests with a new token: fewer, since each takes a commit.
const RAISES: usize = 400;
/// The number of concurrent clients with new tokens. Each has its own resource, and their commits are shared.
const AT_ONCE: usize = 64;

struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    async fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, answer: vec![0; 4096] }
    }

    /// Sends one `PUT`, which must return 200; returns its duration.
    async fn put(&mut self, path: &str, token: u64) -> Duration {
        let request = format!(
            "PUT {path} HTTP/1.1\r\nHost: here\r\nFencing-Token: {token}\r\nContent-Length: 3\r\n\r\none"
        );
        let begun = Instant::now();
        self.stream.write_all(request.as_bytes()).await.expect("sent");
        let mut got = 0;
        while !self.answer[..got].ends_with(b"\r\n\r\ndone") {
            let read = self.stream.read(&mut self.answer[got..]).await.expect("an answer");
            assert!(read > 0, "refused: {}", String::from_utf8_lossy(&self.answer[..got]));
            got += read;
        }
        let took = begun.elapsed();
        assert!(self.answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.answer[..got]));
        took
    }
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await.expect("served") });
    address
}

fn handler() -> Router {
    Router::new().route("/{what}", put(async |body: String| if body == "one" { "done" } else { "what?" }))
}

/// Appends and syncs one page; returns the time that this took.
fn append(file: &mut File) -> Duration {
    let begun = Instant::now();
    file.write_all(&[7; PAGE]).expect("room");
    file.sync_data().expect("synced");
    begun.elapsed()
}

/// Writes as a commit of the store does: five scattered pages in a file of constant size, and one sync.
/// Returns the time that this took.
fn commit(file: &File, number: u64) -> Duration {
    let begun = Instant::now();
    for page in 0..5 {
        // Each commit writes other pages, out of 256.
        let at = (number * 37 + page * 53) % 256 * PAGE as u64;
        file.write_all_at(&[u8::try_from(number % 256).expect("a byte"); PAGE], at).expect("room");
    }
    file.sync_data().expect("synced");
    begun.elapsed()
}

fn percentiles(what: &str, samples: &mut [Duration]) -> Duration {
    samples.sort_unstable();
    let p50 = samples[samples.len() / 2];
    println!("{what:>44}: p50 {p50:>10.1?}  p99 {:>10.1?}", samples[samples.len() * 99 / 100]);
    p50
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let place = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let place = place.map_or_else(std::env::temp_dir, |place| Path::new(&place).to_owned());
    let dir = tempfile::tempdir_in(place).expect("a directory");
    let marks = DurableMarks::open(dir.path().join("marks.redb")).expect("new");
    let bare = serve(handler()).await;
    let memory = serve(handler().layer(HttpFence::new(MemoryFence::new()))).await;
    let durable = serve(handler().layer(HttpFence::new(marks))).await;
    let mut appended = File::create(dir.path().join("appended")).expect("a file");
    let mut pages = File::create(dir.path().join("pages")).expect("a file");
    pages.write_all(&vec![0; 256 * PAGE]).expect("room");
    pages.sync_all().expect("synced");

    let (mut bare, mut memory) = (Client::to(bare).await, Client::to(memory).await);
    let mut fenced = Client::to(durable).await;
    let mut samples: [Vec<Duration>; 3] = Default::default();
    for _ in 0..ROUNDS {
        samples[0].push(bare.put("/a", 1).await);
        samples[1].push(memory.put("/a", 1).await);
        samples[2].push(fenced.put("/a", 1).await);
    }
    let (mut raises, mut appends, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for token in 2..RAISES as u64 + 2 {
        raises.push(fenced.put("/a", token).await);
        appends.push(append(&mut appended));
        commits.push(commit(&pages, token));
    }
    let [without, in_memory, unchanged] = &mut samples;
    let without = percentiles("handler alone", without);
    percentiles("fence in memory, token seen before", in_memory);
    let unchanged = percentiles("durable fence, token seen before", unchanged);
    let raised = percentiles("durable fence, new token", &mut raises);
    percentiles("one page appended, fdatasync", &mut appends);
    let synced = percentiles("a commit's five pages written, fdatasync", &mut commits);
    println!("token seen before: {:.2} x the handler", unchanged.as_secs_f64() / without.as_secs_f64());
    let allowed = without.mul_f64(1.2) + synced;
    println!(
        "new token: {raised:.1?}; 1.2 x the handler + such an fdatasync: {allowed:.1?} ({:.2} x)",
        raised.as_secs_f64() / allowed.as_secs_f64()
    );

    let begun = Instant::now();
    let clients: Vec<_> = (0..AT_ONCE)
        .map(|number| {
            tokio::spawn(async move {
                let mut client = Client::to(durable).await;
                for token in 1..=50 {
                    client.put(&format!("/r{number}"), token).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("answered");
    }
    let per_second = (AT_ONCE * 50) as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{AT_ONCE} clients with new tokens at once: {per_second:.0}/s; one sync after the other would be {:.0}/s",
        1.0 / synced.as_secs_f64()
    );
}
