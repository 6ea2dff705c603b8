//! Keeps one stream to the leader while a session needs one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_backend::grpc;
use lockkeeper_wire::v1::{StreamEndReason, lockkeeper_client::LockkeeperClient};
use lockkeeper_wire::{FRAME_BYTES_MAX, RELAY_METADATA};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::addresses::{Address, Addresses};
use super::carrier::StreamEnding;
use super::credentials::{Bearer, Credentials};
use super::failures::{self, NodeFailure, Why};
use super::shared::{Cut, ServiceShared, StreamRequests};
use crate::observe;

pub(super) type GrpcClient = LockkeeperClient<InterceptedService<Channel, Bearer>>;

/// Limit for connecting to a node before the next one is tried; shorter if a ttl leaves less time.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const CONNECT_LIMIT_MIN: Duration = Duration::from_millis(100);
/// How long a client that shuts down waits for the service to end the stream.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// The longest pause between attempts: a twelfth of the default ttl. If a shorter ttl is in use: a twelfth of
/// that one.
const PAUSE_MAX: Duration = Duration::from_millis(2500);
/// After this time without an answer, a warning is logged: longer than a change of leader takes.
const OUTAGE: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 pings; a connection whose ping is not answered within `PING_LIMIT` is dropped.
/// Keep-alives of sessions detect a dead connection earlier; pings cover connections without sessions.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_LIMIT: Duration = Duration::from_secs(5);
/// Flow-control window: several frames of the largest size.
const WINDOW_BYTES: u32 = 16 << 20;

/// How a stream ended.
enum Over {
    /// The stream could not be opened, or ended without a message.
    Lost {
        why: Why,
        worked: bool,
    },
    Ended {
        ending: StreamEnding,
        worked: bool,
    },
    Leaving,
}

/// Runs until the client shuts down.
pub(super) async fn drive(shared: Arc<ServiceShared>) {
    let mut outage = Outage::default();
    while shared.until_wanted().await {
        let (address, relay_to) = {
            let mut addresses = shared.addresses();
            (addresses.take(), addresses.relay_to().cloned())
        };
        // At most a sixth of the shortest ttl, as for an unanswered keep-alive: the rest of the ttl is left
        // for other nodes.
        let limit =
            shared.least_ttl().map_or(CONNECT_LIMIT, |ttl| (ttl / 6).clamp(CONNECT_LIMIT_MIN, CONNECT_LIMIT));
        let limit = shared.addresses().patience(limit);
        let over = match connect(&address, limit, &shared.credentials).await {
            Ok(client) => carry(&shared, client, relay_to).await,
            Err(failure) => Over::Lost { why: failure.why, worked: false },
        };
        outage.passed(&over);
        match over {
            Over::Leaving => return,
            Over::Lost { why, worked } => {
                observe::stream_ended("lost");
                tracing::debug!(%address, "lockkeeper: the stream is lost: {why}");
                shared.troubled(&address, why);
                let mut addresses = shared.addresses();
                count(&mut addresses, worked);
                if !worked {
                    addresses.unreached();
                }
            }
            Over::Ended {
                ending: ending @ StreamEnding::Announced { reason: StreamEndReason::Idle, .. },
                worked,
            } => {
                observe::stream_ended(word(&ending));
                // No session needed the stream.
                outage = Outage::default();
                count(&mut shared.addresses(), worked);
            }
            Over::Ended { ending, worked } => {
                observe::stream_ended(word(&ending));
                tracing::debug!(%address, "lockkeeper: the stream is over: {ending:?}");
                shared.troubled(&address, says(&ending));
                let mut addresses = shared.addresses();
                count(&mut addresses, worked);
                if !worked && !matches!(ending, StreamEnding::Announced { .. }) {
                    addresses.unreached();
                }
                if let StreamEnding::Announced { reason, text, leader, term } = ending {
                    match reason {
                        StreamEndReason::NotLeader | StreamEndReason::Shutdown => {
                            if leader.as_deref() == Some(address.as_str()) {
                                // From here, the leader's address leads to another node.
                                addresses.unreached();
                            }
                            addresses.leader_is(leader.as_deref(), term);
                        }
                        StreamEndReason::Protocol => tracing::error!(
                            %address,
                            "the lock service does not understand this client: {text}; use versions that fit"
                        ),
                        StreamEndReason::Denied => {
                            tracing::error!(%address, "the lock service refuses this client: {text}");
                        }
                        StreamEndReason::TooSlow | StreamEndReason::Idle | StreamEndReason::Unspecified => {}
                    }
                }
            }
        }
        outage.say(&shared);
        let most = shared.least_ttl().map_or(PAUSE_MAX, |ttl| PAUSE_MAX.min(ttl / 12));
        let pause = shared.addresses().pause(most, random());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// A period without a working stream.
#[derive(Default)]
struct Outage {
    since: Option<Instant>,
    is_said: bool,
}

impl Outage {
    fn passed(&mut self, over: &Over) {
        let (Over::Lost { worked, .. } | Over::Ended { worked, .. }) = over else { return };
        if *worked {
            *self = Self::default();
        }
        self.since.get_or_insert_with(Instant::now);
    }

    /// Logs once that calls get no answer, and why: a caller without a time limit would not learn it
    /// otherwise.
    fn say(&mut self, shared: &ServiceShared) {
        let Some(lasted) = self.since.map(|since| since.elapsed()) else { return };
        if !self.is_said && lasted >= OUTAGE {
            self.is_said = true;
            let why = shared.trouble().unwrap_or_default();
            tracing::warn!(
                "lockkeeper: no answer from the lock service for {} s: {why}; calls wait",
                lasted.as_secs()
            );
        }
    }
}

/// The reason, for users.
fn says(ending: &StreamEnding) -> Why {
    match ending {
        StreamEnding::Silent => Why::Silent("no answer in time".to_owned()),
        StreamEnding::Garbage(what) => Why::Silent(format!("no lock service: {what}")),
        StreamEnding::Announced { leader: None, reason: StreamEndReason::NotLeader, .. } => Why::NoLeader,
        StreamEnding::Announced { text, .. } if !text.is_empty() => Why::Refuses(text.clone()),
        StreamEnding::Announced { .. } => Why::Refuses(word(ending).to_owned()),
    }
}

/// The reason as one word for metrics.
fn word(ending: &StreamEnding) -> &'static str {
    match ending {
        StreamEnding::Silent => "silent",
        StreamEnding::Garbage(_) => "garbage",
        StreamEnding::Announced { reason, .. } => match reason {
            StreamEndReason::Shutdown => "shutdown",
            StreamEndReason::Protocol => "protocol",
            StreamEndReason::TooSlow => "too-slow",
            StreamEndReason::Denied => "denied",
            StreamEndReason::Idle => "idle",
            StreamEndReason::NotLeader | StreamEndReason::Unspecified => "not-leader",
        },
    }
}

fn count(addresses: &mut Addresses, worked: bool) {
    if worked {
        addresses.worked();
    }
    addresses.failed();
}

/// Carries one stream from its opening to its end. With `relay_to`, the node relays it if it follows the
/// leader at that address.
async fn carry(shared: &Arc<ServiceShared>, mut client: GrpcClient, relay_to: Option<Address>) -> Over {
    let stream = shared.begin_stream();
    let mut outgoing = tonic::Request::new(StreamRequests { shared: shared.clone(), stream, waited: false });
    if let Some(leader) = relay_to.and_then(|leader| leader.as_str().parse().ok()) {
        outgoing.metadata_mut().insert(RELAY_METADATA, leader);
    }
    // The first frame is sent with the request: the attach does not wait for the service's response headers.
    let opened = tokio::select! {
        opened = client.session(outgoing) => opened,
        cut = shared.until_cut() => return over(cut, false),
    };
    let mut incoming = match opened {
        Ok(opened) => opened.into_inner(),
        Err(status) => {
            shared.stream_lost(stream);
            return Over::Lost { why: Why::of(&status), worked: false };
        }
    };
    let mut worked = false;
    loop {
        let message = tokio::select! {
            biased;
            cut = shared.until_cut() => {
                if let Cut::Leaving = cut {
                    // This side of the stream is closed; the service closes its side once it has read the
                    // close.
                    let _ = tokio::time::timeout(GOODBYE_LIMIT, incoming.message()).await;
                }
                return over(cut, worked);
            }
            message = incoming.message() => message,
        };
        match message {
            Ok(Some(frame)) => {
                if !worked && !frame.items.iter().all(is_stream_end) {
                    worked = true;
                    shared.untroubled();
                }
                shared.received(stream, frame.items);
            }
            ended => {
                shared.stream_lost(stream);
                let closed = || Why::Silent("closed".to_owned());
                let why = ended.err().map_or_else(closed, |status| Why::of(&status));
                return Over::Lost { why, worked };
            }
        }
    }
}

fn is_stream_end(item: &lockkeeper_wire::v1::ServerItem) -> bool {
    matches!(item.what, Some(lockkeeper_wire::v1::server_item::What::StreamEnd(_)))
}

fn over(cut: Cut, worked: bool) -> Over {
    match cut {
        Cut::Ended(ending) => Over::Ended { ending, worked },
        Cut::Leaving => Over::Leaving,
    }
}

/// Opens a new connection.
pub(super) async fn connect(
    address: &Address,
    limit: Duration,
    credentials: &Credentials,
) -> Result<GrpcClient, NodeFailure> {
    let failure = |why| NodeFailure { node: address.to_string(), why };
    let failed = |error: tonic::transport::Error| {
        failure(Why::Silent(failures::not_connected(&error, credentials.tls.is_some())))
    };
    if let Some(fault) = credentials.fault() {
        return Err(failure(Why::Denies(fault)));
    }
    let endpoint = grpc::endpoint(address.as_str(), credentials.tls.as_ref())
        .map_err(failed)?
        // Of the channel's own attempts later on; the first is limited below.
        .connect_timeout(2 * limit)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(PING_EVERY))
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let channel = match tokio::time::timeout(limit, endpoint.connect()).await {
        Ok(connected) => connected.map_err(failed)?,
        Err(_) => return Err(failure(Why::no_answer(limit))),
    };
    Ok(LockkeeperClient::with_interceptor(channel, credentials.bearer())
        .max_decoding_message_size(FRAME_BYTES_MAX))
}

/// Used only to spread load and pauses, so 0 is good enough if the system has no random bytes.
pub(super) fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}
