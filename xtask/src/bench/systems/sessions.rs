//! Many sessions of our service on a few streams, kept alive by the raw protocol, since a `Locks` has only
//! one session.
//!
//! Responsible for two patterns of keep-alives, and for an error if sessions are not kept alive: the CPU use
//! of a service that doesn't answer is no figure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_wire::FRAME_BYTES_MAX;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::Interval;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::{CONNECTIONS, KEEPALIVE_TTL, failed, renewals, watch_cpu};
use crate::TaskResult;
use crate::bench::server::ServerProcesses;

/// The server's CPU use, as a share of one core.
pub(crate) struct KeptAlive {
    /// With one frame for each session's keep-alive, evenly spread over time, as for the other systems.
    pub(crate) spread: f64,
    /// With the keep-alives of all sessions of a stream in one frame.
    pub(crate) together: f64,
}

/// Keeps `sessions` sessions alive for `duration` with each of the two patterns.
pub(super) async fn keep_alive(
    at: &str,
    server: &ServerProcesses,
    sessions: usize,
    duration: Duration,
) -> TaskResult<KeptAlive> {
    let seen = Arc::new(StreamTotals::default());
    let mut reading = JoinSet::new();
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let share = (sessions + CONNECTIONS - 1 - number) / CONNECTIONS;
        let (stream, answers) = BenchStream::open(at, share).await?;
        reading.spawn(read(answers, share, seen.clone()));
        streams.push(stream);
    }

    let mut renewing = JoinSet::new();
    let all = streams.iter().flat_map(|stream| stream.sessions.iter().map(move |session| (stream, *session)));
    for (number, (stream, session)) in all.enumerate() {
        renewing.spawn(renew(stream.outgoing.clone(), vec![session], renewals(number, sessions)));
    }
    let spread = watch(server, sessions, duration, &seen, &mut reading).await?;
    renewing.shutdown().await;

    for (number, stream) in streams.iter().enumerate() {
        let due = renewals(number, CONNECTIONS);
        renewing.spawn(renew(stream.outgoing.clone(), stream.sessions.clone(), due));
    }
    let together = watch(server, sessions, duration, &seen, &mut reading).await?;
    renewing.shutdown().await;

    // Sessions are closed, because their expiry would load the server while the next system is measured.
    seen.closing.store(true, Ordering::SeqCst);
    for stream in &streams {
        stream.send(|| client_item::What::Close(v1::CloseSession {}))?;
    }
    while let Some(ended) = reading.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(KeptAlive { spread, together })
}

/// Counters shared by all streams.
#[derive(Default)]
struct StreamTotals {
    kept_alive: AtomicU64,
    closing: AtomicBool,
}

/// A connection with one stream, and the sessions that it carries.
struct BenchStream {
    outgoing: UnboundedSender<v1::ClientFrame>,
    sessions: Vec<u64>,
}

impl BenchStream {
    /// Opens `count` sessions on a new stream.
    async fn open(at: &str, count: usize) -> TaskResult<(Self, Streaming<v1::ServerFrame>)> {
        let uri = format!("http://{}", at.strip_prefix("lockkeeper://").unwrap_or(at));
        let endpoint = Endpoint::from_shared(uri).map_err(failed("lockkeeper", "read its URL"))?;
        let channel = endpoint.tcp_nodelay(true).connect().await.map_err(failed("lockkeeper", "connect"))?;
        let mut client = LockkeeperClient::new(channel).max_decoding_message_size(FRAME_BYTES_MAX);

        let (outgoing, frames) = unbounded_channel();
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let mut secret = vec![0; 16];
            getrandom::fill(&mut secret)
                .map_err(|error| format!("the system gives no random bytes: {error}"))?;
            let ttl_ms = KEEPALIVE_TTL.as_millis() as u64;
            let open = v1::OpenSession { secret, ttl_ms, attach: 1, ..v1::OpenSession::default() };
            items.push(v1::ClientItem { session: 0, what: Some(client_item::What::Open(open)) });
        }
        outgoing.send(v1::ClientFrame { items }).map_err(failed("lockkeeper", "open sessions"))?;
        let answers = client.session(UnboundedReceiverStream::new(frames)).await;
        let mut answers = answers.map_err(failed("lockkeeper", "open a stream"))?.into_inner();

        let mut sessions = Vec::with_capacity(count);
        while sessions.len() < count {
            for item in next(&mut answers).await? {
                match item.what {
                    Some(server_item::What::Opened(_)) => sessions.push(item.session),
                    // The addresses of the nodes; this item belongs to no session.
                    Some(server_item::What::Nodes(_)) => {}
                    other => return Err(format!("lockkeeper opened no session: {other:?}")),
                }
            }
        }
        Ok((Self { outgoing, sessions }, answers))
    }

    /// Sends `what` for each session, in one frame.
    fn send(&self, what: impl Fn() -> client_item::What) -> TaskResult {
        let frame = frame(&self.sessions, what);
        self.outgoing.send(frame).map_err(failed("lockkeeper", "send on a stream"))
    }
}

fn frame(sessions: &[u64], what: impl Fn() -> client_item::What) -> v1::ClientFrame {
    let items = sessions.iter().map(|session| v1::ClientItem { session: *session, what: Some(what()) });
    v1::ClientFrame { items: items.collect() }
}

/// Renews `sessions` with one frame each time `due` ticks, until the task is aborted or the stream ends.
/// [`read`] reports the reason of an end.
async fn renew(outgoing: UnboundedSender<v1::ClientFrame>, sessions: Vec<u64>, mut due: Interval) {
    let mut id = 0;
    loop {
        due.tick().await;
        id += 1;
        let renewal = frame(&sessions, || client_item::What::KeepAlive(v1::KeepAlive { id }));
        if outgoing.send(renewal).is_err() {
            return;
        }
    }
}

/// Counts the answers of a stream until its `count` sessions are closed. Returns an error if the stream ends
/// earlier.
async fn read(mut answers: Streaming<v1::ServerFrame>, count: usize, seen: Arc<StreamTotals>) -> TaskResult {
    let mut open = count;
    while open > 0 {
        let mut kept_alive = 0;
        for item in next(&mut answers).await? {
            match item.what {
                Some(server_item::What::KeptAlive(_)) => kept_alive += 1,
                Some(server_item::What::Nodes(_)) => {}
                Some(server_item::What::SessionGone(_)) if seen.closing.load(Ordering::SeqCst) => {
                    open = open.saturating_sub(1);
                }
                other => {
                    return Err(format!("lockkeeper did not keep session {} alive: {other:?}", item.session));
                }
            }
        }
        seen.kept_alive.fetch_add(kept_alive, Ordering::SeqCst);
    }
    Ok(())
}

async fn next(answers: &mut Streaming<v1::ServerFrame>) -> TaskResult<Vec<v1::ServerItem>> {
    let frame = answers.message().await.map_err(failed("lockkeeper", "read a stream"))?;
    Ok(frame.ok_or("lockkeeper ended a stream")?.items)
}

/// The CPU use of `server` while sessions are renewed. Returns an error if a stream ends or too few answers
/// arrive; the last renewal of each session may still be unanswered.
async fn watch(
    server: &ServerProcesses,
    sessions: usize,
    duration: Duration,
    seen: &StreamTotals,
    reading: &mut JoinSet<TaskResult>,
) -> TaskResult<f64> {
    let before = seen.kept_alive.load(Ordering::SeqCst);
    let began = Instant::now();
    let cores = tokio::select! {
        cores = watch_cpu(server, duration) => cores?,
        Some(ended) = reading.join_next() => {
            ended.map_err(|error| error.to_string())??;
            return Err("lockkeeper closed all sessions of a stream".to_owned());
        }
    };
    let rounds = began.elapsed().div_duration_f64(KEEPALIVE_TTL / 3) as usize;
    let least = (rounds.saturating_sub(1) * sessions) as u64;
    let answers = seen.kept_alive.load(Ordering::SeqCst) - before;
    if answers < least {
        return Err(format!(
            "lockkeeper answered {answers} keep-alives in {rounds} rounds, not {least} at least"
        ));
    }
    Ok(cores)
}
