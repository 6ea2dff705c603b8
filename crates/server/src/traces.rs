//! Traces of acquires at the leader: when each stage of an acquire began and ended.
//!
//! A client whose span is sampled sends that span's context with the acquire (`traceparent`). The front
//! records the arrival ([`TraceArrivals`]), the replica's thread the rest ([`AcquireTracer`]); the finished
//! trace goes to the [`TraceSink`]. Traces never affect a lock: an acquire that can't be traced is served all
//! the same, and counted.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use lockkeeper_core::{Command, Seq, SessionId};
use lockkeeper_replica::{CallId, CallRequest, Event, Output, Requester, StreamId};
use lockkeeper_wire::TraceContext;
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, StreamEndReason, client_item, server_item::What};
use parking_lot::Mutex;

use crate::observe;

/// Maximum number of acquires that a node traces at a time. Further ones are not traced.
const OPEN_MAX: usize = 1 << 12;
/// Maximum number of traced acquires that wait for a lock. If one more waits, the trace of the one that has
/// waited longest ends, so that long waits leave room for other traces.
const WAITING_MAX: usize = OPEN_MAX / 2;
/// Maximum number of names in a trace.
const NAMES_MAX: usize = 8;

/// Receives the traces of acquires. Called on the replica's thread: it must neither block nor panic. Returns
/// false if it has no room for the trace, which is then counted as dropped.
#[derive(Clone)]
pub struct TraceSink(pub Arc<dyn Fn(AcquireTrace) -> bool + Send + Sync>);

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

/// The trace of one acquire at the leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireTrace {
    /// The trace context of the client's span.
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
    /// The outcome of the acquire; docs/metrics.md lists the outcomes.
    pub outcome: &'static str,
    /// The fencing token, if it was granted.
    pub token: Option<u64>,
    /// When the request had arrived, on this node's clock.
    pub start: SystemTime,
    /// When its answer was handed to the connection.
    pub end: SystemTime,
    /// The stages that the request reached, in order and without gaps.
    pub stages: Vec<TraceStage>,
}

/// A stage of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceStage {
    /// `inbox`: until the replica's thread takes the request. `batch`: until its log entry is written; a
    /// cluster's leader may wait for the commit of the previous batch. `log_sync`: until the entry is durable
    /// on this node. `commit`: until a majority has the entry, and this thread begins to apply it. `apply`:
    /// until the answer is handed to the connection. `wait`: in the lock's queue.
    pub name: &'static str,
    /// The start of the stage.
    pub start: SystemTime,
    /// The end of the stage.
    pub end: SystemTime,
}

/// The stage in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AcquireStage {
    Inbox,
    Batch,
    LogSync,
    Commit,
    Apply,
    Wait,
}

impl AcquireStage {
    fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Batch => "batch",
            Self::LogSync => "log_sync",
            Self::Commit => "commit",
            Self::Apply => "apply",
            Self::Wait => "wait",
        }
    }
}

/// The stream or call by which a request arrived, its session, and its number in the session.
type RequestKey = (Requester, SessionId, Seq);

/// A client's sampled acquire that has arrived.
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
    stage: AcquireStage,
    /// The end of the last stage.
    reached: Instant,
    /// The key of this trace in [`AcquireTracer::waiting`].
    waiting_number: u64,
    /// The `finish` command that is about to end the request.
    finish: Option<Seq>,
}

impl SampledAcquire {
    fn new(session: u64, acquire: &v1::Acquire, context: TraceContext) -> Self {
        let (arrived, start) = (Instant::now(), SystemTime::now());
        let trace = OpenTrace {
            context,
            names: acquire.names.iter().take(NAMES_MAX).cloned().collect(),
            name_count: acquire.names.len(),
            arrived,
            start,
            stages: Vec::new(),
            stage: AcquireStage::Inbox,
            reached: arrived,
            waiting_number: 0,
            finish: None,
        };
        Self { session: SessionId(session), seq: Seq(acquire.seq), trace }
    }
}

impl OpenTrace {
    fn at(&self, time: Instant) -> SystemTime {
        self.start + time.saturating_duration_since(self.arrived)
    }

    /// Ends the stage in progress.
    fn end_stage(&mut self, until: Instant) {
        let until = until.max(self.reached);
        let (start, end) = (self.at(self.reached), self.at(until));
        self.stages.push(TraceStage { name: self.stage.name(), start, end });
        self.reached = until;
    }

    /// Ends the stage in progress if it is `from`. Otherwise does nothing: a repeated command passes the same
    /// stages again.
    fn advance(&mut self, from: AcquireStage, to: AcquireStage, at: Instant) {
        if self.stage == from {
            self.end_stage(at);
            self.stage = to;
        }
    }

    /// To be called when the replica has answered, in work that began at `since`.
    fn applied(&mut self, since: Instant) {
        self.advance(AcquireStage::Commit, AcquireStage::Apply, since);
        // An answer that needs no log entry.
        if self.stage == AcquireStage::Batch {
            self.stage = AcquireStage::Apply;
        }
    }
}

/// The acquires that have arrived, from the front to the replica's thread.
#[derive(Debug, Default)]
pub(crate) struct TraceArrivals {
    arrived: Mutex<Vec<(RequestKey, OpenTrace)>>,
    /// The number of open traces, here and in the tracer.
    open: AtomicUsize,
}

impl TraceArrivals {
    /// The sampled acquires among the items of a frame, as far as there is room for them.
    pub(crate) fn sampled<'items>(&self, items: &'items [v1::ClientItem]) -> Vec<SampledAcquire> {
        let acquire = |item: &'items v1::ClientItem| match &item.what {
            Some(client_item::What::Acquire(acquire)) => {
                let context = TraceContext::sampled(&acquire.traceparent)?;
                Some((item.session, acquire, context))
            }
            _ => None,
        };
        let room = OPEN_MAX.saturating_sub(self.open.load(Ordering::Relaxed));
        let mut acquires = items.iter().filter_map(acquire);
        let traced = acquires.by_ref().take(room);
        let sampled = traced
            .map(|(session, acquire, context)| SampledAcquire::new(session, acquire, context))
            .collect();
        observe::traces_dropped(acquires.count());
        sampled
    }

    /// Begins the traces of the sampled acquires that are passed to the replica: those that are among
    /// `requests` and not denied. To be called before the requests are pushed to the inbox, so that the
    /// replica's thread finds the arrivals of each frame that it takes.
    pub(crate) fn arrived(&self, stream: StreamId, sampled: Vec<SampledAcquire>, requests: &[Request]) {
        if sampled.is_empty() {
            return;
        }
        let acquire = |request: &Request| match request {
            Request::Command { session, seq, command: Command::Acquire(_) } => Some((*session, *seq)),
            _ => None,
        };
        let handed_on: BTreeSet<(SessionId, Seq)> = requests.iter().filter_map(acquire).collect();
        let traced = sampled.into_iter().filter(|it| handed_on.contains(&(it.session, it.seq)));
        self.begin(Requester::Stream(stream), traced);
    }

    /// As [`TraceArrivals::arrived`], for the request of a call.
    pub(crate) fn called(&self, call: CallId, sampled: Vec<SampledAcquire>) {
        if !sampled.is_empty() {
            self.begin(Requester::Call(call), sampled.into_iter());
        }
    }

    fn begin(&self, from: Requester, traced: impl Iterator<Item = SampledAcquire>) {
        let traced: Vec<_> = traced.map(|it| ((from, it.session, it.seq), it.trace)).collect();
        self.open.fetch_add(traced.len(), Ordering::Relaxed);
        self.arrived.lock().extend(traced);
    }

    fn take(&self) -> Vec<(RequestKey, OpenTrace)> {
        mem::take(&mut *self.arrived.lock())
    }

    fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Follows the traced acquires through the turns of the replica's thread.
#[derive(Debug)]
pub(crate) struct AcquireTracer {
    node: u64,
    sink: TraceSink,
    arrivals: Arc<TraceArrivals>,
    open: BTreeMap<RequestKey, OpenTrace>,
    /// The traces of acquires that wait for a lock, in the order in which they began to wait.
    waiting: BTreeMap<u64, RequestKey>,
    last_waiting: u64,
    /// The pending `finish` commands, at most one for each open trace, with the seq of the request that each
    /// ends.
    finishes: BTreeMap<RequestKey, Seq>,
    /// The time at which the replica began the work whose outputs are passed on next.
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
            waiting: BTreeMap::new(),
            last_waiting: 0,
            finishes: BTreeMap::new(),
            working_since: None,
            finished: Vec::new(),
        }
    }

    /// To be called when a turn has taken these events from the inbox.
    pub(crate) fn taken(&mut self, at: Instant, events: &[Event]) {
        for (key, trace) in self.arrivals.take() {
            match self.open.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(trace);
                }
                // A repeated call of the same request joins the one in progress.
                Entry::Occupied(_) => self.arrivals.closed(),
            }
        }
        if self.open.is_empty() {
            return;
        }
        for event in events {
            match event {
                Event::Frame(stream, requests) => {
                    for request in requests {
                        if let Request::Command { session, seq, command } = request {
                            self.command(at, (Requester::Stream(*stream), *session, *seq), command);
                        }
                    }
                }
                Event::Called(call, called) => {
                    if let CallRequest::Command { session, seq, command, .. } = &called.request {
                        self.command(at, (Requester::Call(*call), *session, *seq), command);
                    }
                }
                Event::StreamClosed { stream, .. } => {
                    self.requester_gone(at, Requester::Stream(*stream), "disconnected");
                }
                Event::CallDropped(call) => self.requester_gone(at, Requester::Call(*call), "disconnected"),
                _ => {}
            }
        }
    }

    fn command(&mut self, at: Instant, key: RequestKey, command: &Command) {
        let (from, session, seq) = key;
        let of = |seq| (from, session, seq);
        match command {
            Command::Acquire(_) => {
                if let Some(trace) = self.open.get_mut(&key) {
                    trace.advance(AcquireStage::Inbox, AcquireStage::Batch, at);
                }
            }
            Command::Finish { target, .. } => {
                if let Some(trace) = self.open.get_mut(&of(*target))
                    && trace.finish.is_none()
                {
                    trace.finish = Some(seq);
                    self.finishes.insert(key, *target);
                }
            }
            _ => {}
        }
    }

    /// To be called before the replica applies entries.
    pub(crate) fn work_begins(&mut self) {
        if !self.open.is_empty() {
            self.working_since.get_or_insert_with(Instant::now);
        }
    }

    /// To be called before the log entries of these acquires are written.
    pub(crate) fn write_begins(&mut self, acquires: impl Iterator<Item = RequestKey>) -> TracedWrite {
        let mut keys = Vec::new();
        if !self.open.is_empty() {
            let now = Instant::now();
            for key in acquires {
                if let Some(trace) = self.open.get_mut(&key) {
                    trace.advance(AcquireStage::Batch, AcquireStage::LogSync, now);
                    keys.push(key);
                }
            }
        }
        TracedWrite(keys)
    }

    /// To be called when the write is durable on this node.
    pub(crate) fn write_ends(&mut self, TracedWrite(keys): TracedWrite) {
        if keys.is_empty() {
            return;
        }
        let now = Instant::now();
        for key in keys {
            if let Some(trace) = self.open.get_mut(&key) {
                trace.advance(AcquireStage::LogSync, AcquireStage::Commit, now);
            }
        }
    }

    /// To be called before these outputs are passed to the front.
    pub(crate) fn answered(&mut self, outputs: &[Output]) {
        let since = self.working_since.take();
        if self.open.is_empty() {
            return;
        }
        let now = Instant::now();
        let since = since.unwrap_or(now);
        for output in outputs {
            match output {
                Output::Items(stream, items) => {
                    items.iter().for_each(|item| self.item(since, now, Requester::Stream(*stream), item));
                }
                Output::CallWaits(call, v1::SessionCallResponse { item: Some(item), .. }) => {
                    self.item(since, now, Requester::Call(*call), item);
                }
                Output::Called(call, v1::SessionCallResponse { item: Some(item), .. }) => {
                    let from = Requester::Call(*call);
                    self.item(since, now, from, item);
                    // A refusal that names no request ends the call's acquire too.
                    self.requester_gone(now, from, "refused");
                }
                Output::EndStream(stream, end) => {
                    self.requester_gone(now, Requester::Stream(*stream), outcome_of(end));
                }
                Output::CallEnded(call, end) => {
                    self.requester_gone(now, Requester::Call(*call), outcome_of(end));
                }
                _ => {}
            }
        }
    }

    /// Sends the finished traces. To be called after the outputs were passed to the front.
    pub(crate) fn send(&mut self) {
        let refused =
            self.finished.drain(..).filter_map(|trace| (!(self.sink.0)(trace)).then_some(())).count();
        observe::traces_dropped(refused);
    }

    /// Ends all traces, since the replica's thread ends.
    pub(crate) fn stop(&mut self) {
        let now = Instant::now();
        let all: Vec<RequestKey> = self.open.keys().copied().collect();
        all.into_iter().for_each(|key| self.finish(key, now, "shutdown", None));
        self.send();
    }

    fn item(&mut self, since: Instant, now: Instant, from: Requester, item: &v1::ServerItem) {
        let (session, seq) = (SessionId(item.session), Seq(item.seq));
        let key = (from, session, seq);
        let (outcome, token) = match &item.what {
            Some(What::SessionGone(_)) => return self.session_gone(now, from, session),
            Some(What::Queued(_)) => return self.queued(since, now, key),
            Some(What::Granted(granted)) => ("granted", Some(granted.token)),
            Some(What::Revoked(revoked)) => ("revoked", Some(revoked.token)),
            Some(What::Busy(_)) => ("busy", None),
            Some(What::Refused(_)) => ("refused", None),
            Some(What::Finished(it) | What::Ended(it)) => (end(it.end()), None),
            Some(
                What::Opened(_)
                | What::Done(_)
                | What::Recalled(_)
                | What::Attached(_)
                | What::KeptAlive(_)
                | What::Nodes(_)
                | What::StreamEnd(_),
            )
            | None => return,
        };
        let mut ended = key;
        if let Some(target) = self.finishes.remove(&key) {
            let target = (from, session, target);
            if let Some(trace) = self.open.get_mut(&target) {
                trace.finish = None;
            }
            // A refused `finish` ends nothing.
            if matches!(item.what, Some(What::Finished(_))) {
                ended = target;
            }
        }
        if let Some(trace) = self.open.get_mut(&ended) {
            trace.applied(since);
            self.finish(ended, now, outcome, token);
        }
    }

    fn queued(&mut self, since: Instant, now: Instant, key: RequestKey) {
        let Some(trace) = self.open.get_mut(&key).filter(|trace| trace.stage != AcquireStage::Wait) else {
            return;
        };
        trace.applied(since);
        trace.advance(AcquireStage::Apply, AcquireStage::Wait, now);
        self.last_waiting += 1;
        trace.waiting_number = self.last_waiting;
        self.waiting.insert(self.last_waiting, key);
        if self.waiting.len() > WAITING_MAX
            && let Some((_, longest)) = self.waiting.first_key_value()
        {
            self.finish(*longest, now, "queued", None);
        }
    }

    fn session_gone(&mut self, now: Instant, from: Requester, session: SessionId) {
        self.end_all((from, session, Seq(0))..=(from, session, Seq(u64::MAX)), now, "session-gone");
    }

    fn requester_gone(&mut self, now: Instant, from: Requester, outcome: &'static str) {
        let (first, last) = (SessionId(0), SessionId(u64::MAX));
        self.end_all((from, first, Seq(0))..=(from, last, Seq(u64::MAX)), now, outcome);
    }

    fn end_all(&mut self, keys: RangeInclusive<RequestKey>, now: Instant, outcome: &'static str) {
        let ended: Vec<(RequestKey, AcquireStage)> =
            self.open.range(keys).map(|(key, trace)| (*key, trace.stage)).collect();
        for (key, stage) in ended {
            let is_queued = stage == AcquireStage::Wait && outcome == "disconnected";
            self.finish(key, now, if is_queued { "queued" } else { outcome }, None);
        }
    }

    /// Ends a trace, and the stage in progress.
    fn finish(&mut self, key: RequestKey, now: Instant, outcome: &'static str, token: Option<u64>) {
        let Some(mut trace) = self.open.remove(&key) else { return };
        self.arrivals.closed();
        self.waiting.remove(&trace.waiting_number);
        if let Some(finish) = trace.finish {
            self.finishes.remove(&(key.0, key.1, finish));
        }
        trace.end_stage(now);
        let end = trace.at(trace.reached);
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

/// The traced acquires of a write of the log.
pub(crate) struct TracedWrite(Vec<RequestKey>);

fn outcome_of(end: &v1::StreamEnd) -> &'static str {
    match end.reason() {
        StreamEndReason::NotLeader => "not-leader",
        StreamEndReason::Shutdown => "shutdown",
        _ => "disconnected",
    }
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
