//! Traces of acquires at the leader: when each stage of an acquire began and ended.
//!
//! A client whose span is sampled sends that span's context with the acquire (`traceparent`). The front records the
//! arrival ([`TraceArrivals`]), the replica's thread the rest ([`AcquireTracer`]); the finished trace goes to the
//! [`TraceSink`]. Traces never affect a lock: an acquire that can't be traced is served all the same.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use lockkeeper_core::{Command, Seq, SessionId};
use lockkeeper_replica::{Event, Output, StreamId};
use lockkeeper_wire::TraceContext;
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, client_item, server_item::What};

use crate::observe;

/// Most acquires that a node traces at a time, those that wait for a lock included. Further ones are not traced.
const OPEN_MAX: usize = 1 << 12;
/// Most names in a trace.
const NAMES_MAX: usize = 8;

/// Where a node sends the traces of acquires. Called on the replica's thread, so it must not block.
#[derive(Clone)]
pub struct TraceSink(pub Arc<dyn Fn(AcquireTrace) + Send + Sync>);

impl PartialEq for TraceSink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TraceSink {}

impl fmt::Debug for TraceSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSink").finish_non_exhaustive()
    }
}

/// What a leader did for one acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireTrace {
    /// The client's span.
    pub context: TraceContext,
    /// The id of this node.
    pub node: u64,
    /// The client's session.
    pub session: u64,
    /// The number of the request in its session.
    pub request: u64,
    /// The names to acquire: the first eight.
    pub names: Vec<String>,
    /// How many names there are.
    pub name_count: usize,
    /// `granted`, `busy`, `refused`, `timed-out`, `left` (by its client's will), `broken`, `revoked`, `not-acquired`,
    /// `released` and `gone` (answers to a repeated request), `session-gone`; `queued`: the client's call or stream ended
    /// while the request waited; `disconnected`: it ended earlier; `not-leader`: this node ended the stream.
    pub outcome: &'static str,
    /// The fencing token, if it was granted.
    pub token: Option<u64>,
    /// When the request had arrived, on this node's clock.
    pub start: SystemTime,
    /// When its answer was handed to the connection.
    pub end: SystemTime,
    /// The stages that the request reached, in order.
    pub stages: Vec<TraceStage>,
}

/// A stage of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceStage {
    /// `inbox`: until the replica's thread has taken the request. `batch`: until its log entry is written; a cluster's
    /// leader may wait for the commit of the previous batch. `log_sync`: until the entry is durable on this node.
    /// `commit`: until this thread has learned that a majority has it. `apply`: until the answer is handed to the
    /// connection. `wait`: in the lock's queue.
    pub name: &'static str,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
}

type RequestKey = (StreamId, SessionId, Seq);

/// An acquire of a client whose span is sampled.
#[derive(Debug)]
pub(crate) struct SampledAcquire {
    session: SessionId,
    seq: Seq,
    trace: OpenTrace,
}

/// An acquire that is traced.
#[derive(Debug)]
struct OpenTrace {
    context: TraceContext,
    names: Vec<String>,
    name_count: usize,
    arrived: Instant,
    start: SystemTime,
    stages: Vec<TraceStage>,
    /// The end of the last stage.
    reached: Instant,
    is_taken: bool,
    is_queued: bool,
}

impl SampledAcquire {
    /// `None`: the item is something else, or not sampled.
    pub(crate) fn of(item: &v1::ClientItem) -> Option<Self> {
        let Some(client_item::What::Acquire(acquire)) = &item.what else { return None };
        let context = TraceContext::sampled(&acquire.traceparent)?;
        let arrived = Instant::now();
        let trace = OpenTrace {
            context,
            names: acquire.names.iter().take(NAMES_MAX).cloned().collect(),
            name_count: acquire.names.len(),
            arrived,
            start: SystemTime::now(),
            stages: Vec::new(),
            reached: arrived,
            is_taken: false,
            is_queued: false,
        };
        Some(Self { session: SessionId(item.session), seq: Seq(acquire.seq), trace })
    }
}

impl OpenTrace {
    fn at(&self, time: Instant) -> SystemTime {
        self.start + time.saturating_duration_since(self.arrived)
    }

    /// Ends the present stage.
    fn reach(&mut self, name: &'static str, until: Instant) {
        let until = until.max(self.reached);
        self.stages.push(TraceStage { name, start: self.at(self.reached), end: self.at(until) });
        self.reached = until;
    }
}

/// The acquires that have arrived, from the front to the replica's thread.
#[derive(Debug)]
pub(crate) struct TraceArrivals {
    arrived: Mutex<Vec<(RequestKey, OpenTrace)>>,
    /// The number of open traces, here and in the tracer.
    open: AtomicUsize,
}

impl TraceArrivals {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { arrived: Mutex::default(), open: AtomicUsize::new(0) })
    }

    /// Traces the sampled acquires of a frame, but for those that were refused already. To be called before the frame is
    /// pushed to the inbox: the replica's thread looks here after it has taken the frame.
    pub(crate) fn arrived(&self, stream: StreamId, sampled: Vec<SampledAcquire>, refused: &[v1::ServerItem]) {
        if sampled.is_empty() {
            return;
        }
        let refused: BTreeSet<(u64, u64)> = refused.iter().map(|item| (item.session, item.seq)).collect();
        for SampledAcquire { session, seq, trace } in sampled {
            if refused.contains(&(session.0, seq.0)) {
                continue;
            }
            if self.open.load(Ordering::Relaxed) >= OPEN_MAX {
                observe::trace_dropped();
                continue;
            }
            self.open.fetch_add(1, Ordering::Relaxed);
            let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
            arrived.push(((stream, session, seq), trace));
        }
    }
}

/// Follows the traced acquires through the turns of the replica's thread.
#[derive(Debug)]
pub(crate) struct AcquireTracer {
    node: u64,
    sink: TraceSink,
    arrivals: Arc<TraceArrivals>,
    open: BTreeMap<RequestKey, OpenTrace>,
    /// The `finish` commands of traced acquires, and which they end.
    finishes: BTreeMap<RequestKey, Seq>,
    /// When the replica began the work whose outputs are handed over next.
    working_since: Option<Instant>,
    finished: Vec<AcquireTrace>,
}

impl AcquireTracer {
    pub(crate) fn new(node: u64, sink: TraceSink, arrivals: Arc<TraceArrivals>) -> Self {
        Self {
            node,
            sink,
            arrivals,
            open: BTreeMap::new(),
            finishes: BTreeMap::new(),
            working_since: None,
            finished: Vec::new(),
        }
    }

    /// A turn has taken these events from the inbox.
    pub(crate) fn taken(&mut self, at: Instant, events: &[Event]) {
        let arrived = mem::take(&mut *self.arrivals.arrived.lock().unwrap_or_else(PoisonError::into_inner));
        for (key, trace) in arrived {
            match self.open.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(trace);
                }
                // A repeated call of the same request joins the one in progress.
                Entry::Occupied(_) => {
                    self.arrivals.open.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        if self.open.is_empty() {
            return;
        }
        for event in events {
            match event {
                Event::Frame(stream, requests) => {
                    requests.iter().for_each(|request| self.request(at, *stream, request));
                }
                Event::StreamClosed { stream, .. } => self.stream_ended(at, *stream, "disconnected"),
                _ => {}
            }
        }
    }

    fn request(&mut self, at: Instant, stream: StreamId, request: &Request) {
        match request {
            Request::Denied { request, .. } => self.request(at, stream, request),
            Request::Command { session, seq, command: Command::Acquire(_) } => {
                if let Some(trace) = self.open.get_mut(&(stream, *session, *seq))
                    && !mem::replace(&mut trace.is_taken, true)
                {
                    trace.reach("inbox", at);
                }
            }
            Request::Command { session, seq, command: Command::Finish { target, .. } }
                if self.open.contains_key(&(stream, *session, *target)) =>
            {
                self.finishes.insert((stream, *session, *seq), *target);
            }
            _ => {}
        }
    }

    /// The replica begins to work: it applies, proposes, and answers.
    pub(crate) fn works(&mut self) {
        if !self.open.is_empty() {
            self.working_since.get_or_insert_with(Instant::now);
        }
    }

    /// The replica has proposed these requests, and their log entries are about to be written.
    pub(crate) fn writes(&mut self, requests: impl Iterator<Item = RequestKey>) -> TracedWrite {
        let mut keys = Vec::new();
        if !self.open.is_empty() {
            let now = Instant::now();
            for key in requests {
                if let Some(trace) = self.open.get_mut(&key) {
                    trace.reach("batch", now);
                    keys.push(key);
                }
            }
        }
        TracedWrite(keys)
    }

    /// The write is durable on this node.
    pub(crate) fn synced(&mut self, TracedWrite(keys): TracedWrite) {
        if keys.is_empty() {
            return;
        }
        let now = Instant::now();
        for key in keys {
            if let Some(trace) = self.open.get_mut(&key) {
                trace.reach("log_sync", now);
            }
        }
    }

    /// These outputs are about to be handed to the front.
    pub(crate) fn answers(&mut self, outputs: &[Output]) {
        let since = self.working_since.take();
        if self.open.is_empty() {
            return;
        }
        let now = Instant::now();
        let since = since.unwrap_or(now);
        for output in outputs {
            match output {
                Output::Items(stream, items) => {
                    items.iter().for_each(|item| self.item(since, now, *stream, item));
                }
                Output::EndStream(stream, _) => self.stream_ended(now, *stream, "not-leader"),
                _ => {}
            }
        }
    }

    /// Sends the finished traces. To be called once the outputs are handed over, so that no answer waits for it.
    pub(crate) fn send(&mut self) {
        self.finished.drain(..).for_each(|trace| (self.sink.0)(trace));
    }

    fn item(&mut self, since: Instant, now: Instant, stream: StreamId, item: &v1::ServerItem) {
        let (session, seq) = (SessionId(item.session), Seq(item.seq));
        let Some(what) = &item.what else { return };
        let (outcome, token) = match what {
            What::SessionGone(_) => return self.session_gone(now, stream, session),
            What::Queued(_) => {
                if let Some(trace) = self.open.get_mut(&(stream, session, seq))
                    && !mem::replace(&mut trace.is_queued, true)
                {
                    applied(trace, since, now);
                }
                return;
            }
            What::Granted(granted) => ("granted", Some(granted.token)),
            What::Revoked(revoked) => ("revoked", Some(revoked.token)),
            What::Busy(_) => ("busy", None),
            What::Refused(_) => ("refused", None),
            What::Finished(it) | What::Ended(it) => (end(it.end()), None),
            _ => return,
        };
        // A refused `finish` ends nothing.
        let ended =
            self.finishes.remove(&(stream, session, seq)).filter(|_| matches!(what, What::Finished(_)));
        let target = ended.unwrap_or(seq);
        self.finish((stream, session, target), now, outcome, token, |trace| match trace.is_queued {
            true => trace.reach("wait", now),
            false => applied(trace, since, now),
        });
    }

    fn session_gone(&mut self, now: Instant, stream: StreamId, session: SessionId) {
        self.end_all((stream, session, Seq(0))..=(stream, session, Seq(u64::MAX)), now, "session-gone");
    }

    fn stream_ended(&mut self, now: Instant, stream: StreamId, outcome: &'static str) {
        let (first, last) = (SessionId(0), SessionId(u64::MAX));
        self.end_all((stream, first, Seq(0))..=(stream, last, Seq(u64::MAX)), now, outcome);
    }

    fn end_all(&mut self, keys: RangeInclusive<RequestKey>, now: Instant, outcome: &'static str) {
        let ended: Vec<RequestKey> = self.open.range(keys.clone()).map(|(key, _)| *key).collect();
        for key in ended {
            let is_queued = self.open.get(&key).is_some_and(|trace| trace.is_queued);
            let outcome = if is_queued && outcome == "disconnected" { "queued" } else { outcome };
            self.finish(key, now, outcome, None, |trace| {
                if trace.is_queued {
                    trace.reach("wait", now);
                }
            });
        }
        let finishes: Vec<RequestKey> = self.finishes.range(keys).map(|(key, _)| *key).collect();
        for key in finishes {
            self.finishes.remove(&key);
        }
    }

    fn finish(
        &mut self,
        key: RequestKey,
        now: Instant,
        outcome: &'static str,
        token: Option<u64>,
        last_stage: impl FnOnce(&mut OpenTrace),
    ) {
        let Some(mut trace) = self.open.remove(&key) else { return };
        self.arrivals.open.fetch_sub(1, Ordering::Relaxed);
        last_stage(&mut trace);
        let end = trace.at(now.max(trace.reached));
        self.finished.push(AcquireTrace {
            context: trace.context,
            node: self.node,
            session: key.1.0,
            request: key.2.0,
            names: trace.names,
            name_count: trace.name_count,
            outcome,
            token,
            start: trace.start,
            end,
            stages: trace.stages,
        });
    }
}

/// The traced requests of a write of the log.
pub(crate) struct TracedWrite(Vec<RequestKey>);

/// The replica has answered, in work that began at `since`.
fn applied(trace: &mut OpenTrace, since: Instant, now: Instant) {
    // An answer that needs no log entry has no `commit`.
    if trace.stages.iter().any(|stage| stage.name == "log_sync") {
        trace.reach("commit", since);
    }
    trace.reach("apply", now);
}

fn end(end: v1::End) -> &'static str {
    match end {
        v1::End::Left => "left",
        v1::End::Released => "released",
        v1::End::Broken => "broken",
        v1::End::TimedOut => "timed-out",
        v1::End::NotAcquired => "not-acquired",
        v1::End::Gone | v1::End::Unspecified => "gone",
    }
}
