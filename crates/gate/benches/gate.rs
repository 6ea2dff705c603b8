//! The gate beside a plain reverse proxy of the same library, in front of the same trivial upstream; they
//! alternate within one run.
//!
//! `cargo bench -p lockkeeper-gate --bench gate [DIRECTORY] [RESOURCES]`. The marks are in DIRECTORY, or in
//! the system's directory for temporary files (which may be in memory, where a sync costs nothing). Clients,
//! proxies and upstream share the machine's cores. Targets: p50 at most 1.2 × the plain proxy's, for a new
//! token 1.2 × that of a plain proxy that waits for one group-committed `fdatasync`; 15,000 guarded
//! requests/s with 64 connections on two cores; memory that does not grow with the resources seen. The
//! targets are not asserted.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::{Authority, Scheme, Uri};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lockkeeper_fence::{Action, DurableMarks, MarkStore, Resource, Section, Token};
use lockkeeper_gate::{Gate, GateOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ROUNDS: usize = 10_000;
/// Requests with a new token: fewer, since each takes a commit.
const RAISES: usize = 1500;
const CONNECTIONS: usize = 64;
const THROUGHPUT: Duration = Duration::from_secs(4);

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

/// Serves each connection with what `service` makes.
async fn serve<F, R, B>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            stream.set_nodelay(true).expect("a socket");
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

async fn upstream() -> SocketAddr {
    serve(async |request: Request<Incoming>| {
        let _ = http_body_util::BodyExt::collect(request.into_body()).await;
        Response::new(Full::from("done"))
    })
    .await
}

/// A reverse proxy that only forwards; with `marks`, once one more mark is durable.
async fn plain_proxy(upstream: SocketAddr, marks: Option<DurableMarks>) -> SocketAddr {
    let client: HttpClient<_, Incoming> = HttpClient::builder(TokioExecutor::new()).build_http();
    let authority: Authority = upstream.to_string().parse().expect("an address");
    let (marks, commits) = (Arc::new(marks), Arc::new(AtomicU64::new(0)));
    serve(move |request: Request<Incoming>| {
        let (client, authority, marks) = (client.clone(), authority.clone(), marks.clone());
        let commit = commits.fetch_add(1, Ordering::Relaxed) + 1;
        async move {
            if let Some(marks) = &*marks {
                let section = Section::exclusive(Token::new(commit).expect("a token"));
                let resource = Resource::new("commits").expect("a name");
                let _ = marks.check(&resource, Action::Write, section).await.expect("it rises");
            }
            let (mut parts, body) = request.into_parts();
            let mut uri = std::mem::take(&mut parts.uri).into_parts();
            (uri.scheme, uri.authority) = (Some(Scheme::HTTP), Some(authority));
            parts.uri = Uri::from_parts(uri).expect("a URI");
            client.request(Request::from_parts(parts, body)).await.expect("an answer")
        }
    })
    .await
}

async fn gate(upstream: SocketAddr, data: &Path) -> SocketAddr {
    let any = "127.0.0.1:0".parse().expect("an address");
    let mut options = GateOptions::new(any, format!("http://{upstream}"), data);
    // Connections pause while others are measured, and the last part has a million resources more.
    options.client_timeout = Duration::MAX;
    options.marks_max = u64::MAX;
    let gate = Gate::start(options).await.expect("a gate");
    let address = gate.address().expect("it listens");
    tokio::spawn(gate.run(std::future::pending()));
    address
}

fn p50(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Requests per second with many connections, each on a resource of its own.
async fn throughput(address: SocketAddr) -> f64 {
    let (done, until) = (Arc::new(AtomicU64::new(0)), Instant::now() + THROUGHPUT);
    let all: Vec<_> = (0..CONNECTIONS)
        .map(|index| {
            let done = done.clone();
            tokio::spawn(async move {
                let (mut client, path) = (Client::to(address).await, format!("/many/{index}"));
                while Instant::now() < until {
                    client.put(&path, 5).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for one in all {
        one.await.expect("done");
    }
    done.load(Ordering::Relaxed) as f64 / THROUGHPUT.as_secs_f64()
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Requests at so many resources, each with a mark of its own.
async fn many_resources(address: SocketAddr, resources: usize) {
    for tenth in 0..10 {
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|index| {
                let range =
                    (resources * tenth / 10..resources * (tenth + 1) / 10).skip(index).step_by(CONNECTIONS);
                tokio::spawn(async move {
                    let mut client = Client::to(address).await;
                    for number in range {
                        client.put(&format!("/resource/{number}"), 5).await;
                    }
                })
            })
            .collect();
        for one in all {
            one.await.expect("done");
        }
        println!("  {} resources: {} MiB resident", resources * (tenth + 1) / 10, resident_mib());
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let directory = arguments.first().map_or_else(std::env::temp_dir, Into::into);
    let data = tempfile::tempdir_in(&directory).expect("a directory");
    let upstream = upstream().await;
    let marks = DurableMarks::open(data.path().join("marks")).expect("marks");
    let (plain, committing) = (plain_proxy(upstream, None).await, plain_proxy(upstream, Some(marks)).await);
    let gate = gate(upstream, &data.path().join("gate")).await;
    let mut clients = Vec::new();
    for address in [upstream, plain, gate, committing] {
        clients.push(Client::to(address).await);
    }
    let [direct, to_plain, to_gate, to_committing] = &mut clients[..] else { unreachable!() };
    let [mut direct_times, mut plain_times, mut seen, mut new, mut commits] = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        direct_times.push(direct.put("/a", 5).await);
        plain_times.push(to_plain.put("/a", 5).await);
        seen.push(to_gate.put("/a", 5).await);
    }
    for round in 0..RAISES {
        new.push(to_gate.put("/b", 5 + round as u64).await);
        commits.push(to_committing.put("/b", 5).await);
    }
    let (plain_us, seen_us, new_us, commit_us) = (p50(plain_times), p50(seen), p50(new), p50(commits));
    println!("one connection, p50: upstream {:.0} µs, plain proxy {plain_us:.0} µs", p50(direct_times));
    println!("  gate, token seen before: {seen_us:.0} µs = {:.2} of the plain proxy", seen_us / plain_us);
    println!("  plain proxy with a group-committed fdatasync: {commit_us:.0} µs");
    println!("  gate, new token: {new_us:.0} µs = {:.2} of that", new_us / commit_us);
    for round in 1..=3 {
        let (plain, gate) = (throughput(plain).await, throughput(gate).await);
        println!(
            "{CONNECTIONS} connections, round {round}: plain {plain:.0}/s, gate {gate:.0}/s = {:.2}",
            gate / plain
        );
    }
    if let Some(resources) = arguments.get(1).and_then(|it| it.parse().ok()) {
        many_resources(gate, resources).await;
    }
}
