//! As `load`, by HTTP/JSON: N clients, each with its own keep-alive connection, session and lock, acquire and
//! release in closed loops.
//!
//! `cargo run --release -p lockkeeper-lab --example http_load -- 127.0.0.1:5627 CLIENTS SECONDS`

#![allow(clippy::print_stdout, reason = "its result")]

use std::error::Error;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

type LoadError = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), LoadError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, clients, seconds] = arguments.as_slice() else {
        return Err("usage: http_load HOST:PORT CLIENTS SECONDS".into());
    };
    let (clients, duration): (u64, f64) = (clients.parse()?, seconds.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut pairs = runtime.block_on(load(address, clients, Duration::from_secs_f64(duration)))?;
    pairs.sort_unstable();
    let at = |share: f64| {
        pairs.get((pairs.len() as f64 * share) as usize).copied().unwrap_or_default().as_micros()
    };
    println!(
        "{clients} clients: {:.0} pairs/s, pair p50 {} us, p99 {} us",
        pairs.len() as f64 / duration,
        at(0.5),
        at(0.99)
    );
    Ok(())
}

/// The times of all pairs of an acquire and a release.
async fn load(address: &str, clients: u64, duration: Duration) -> Result<Vec<Duration>, LoadError> {
    let end = Instant::now() + duration;
    let mut tasks = tokio::task::JoinSet::new();
    for client in 1..=clients {
        tasks.spawn(pairs(address.to_owned(), client, end));
    }
    let mut all = Vec::new();
    while let Some(pairs) = tasks.join_next().await {
        all.append(&mut pairs??);
    }
    Ok(all)
}

async fn pairs(address: String, client: u64, end: Instant) -> Result<Vec<Duration>, LoadError> {
    let socket = TcpStream::connect(&address).await?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) = handshake(TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    let secret = format!("{:016x}{client:016x}", std::process::id());
    let open = json!({ "ttl_ms": 30_000, "label": "http_load" });
    let opened = call(&mut sender, &secret, Method::POST, "/v1/sessions", &open).await?;
    let session = opened["session"].as_u64().ok_or("no session")?;
    let mut taken = Vec::new();
    for request in 1.. {
        let begun = Instant::now();
        if begun >= end {
            break;
        }
        let acquire = json!({ "session": session, "request": request, "done_through": request - 1 });
        let held =
            call(&mut sender, &secret, Method::POST, &format!("/v1/locks/load/{client}"), &acquire).await?;
        if held["state"] != "held" {
            return Err(format!("it was to be granted: {held}").into());
        }
        let release = format!("/v1/sessions/{session}/requests/{request}");
        call(&mut sender, &secret, Method::DELETE, &release, &Value::Null).await?;
        taken.push(begun.elapsed());
    }
    call(&mut sender, &secret, Method::DELETE, &format!("/v1/sessions/{session}"), &Value::Null).await?;
    Ok(taken)
}

async fn call(
    sender: &mut SendRequest<Full<Bytes>>,
    secret: &str,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, LoadError> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("lockkeeper-secret", secret)
        .body(Full::from(body))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    if !head.status.is_success() {
        return Err(format!("{path}: {}: {}", head.status, String::from_utf8_lossy(&body)).into());
    }
    if body.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_slice(&body)?) }
}
