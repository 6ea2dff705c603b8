//! The traces of a node: a thread takes the traces of acquires from a queue, and sends their spans in
//! batches.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper_server::{AcquireTrace, TraceSink};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanExporter};

use super::{CollectorExporter, FLUSH, TRACER, resource};
use crate::exit::{CONFIG, Failure, INTERNAL};

/// Most traces that wait to be sent. Further ones are dropped, and counted by the node.
const QUEUE_MAX: usize = 4_096;
/// Most spans in a batch.
const BATCH_SPANS_MAX: usize = 512;
/// How long a batch waits for further spans.
const BATCH_DELAY: Duration = Duration::from_millis(500);

/// Sends the traces of a node.
pub(crate) struct NodeTraces {
    queue: SyncSender<AcquireTrace>,
    thread: JoinHandle<()>,
}

impl NodeTraces {
    /// Starts sending to the collector at this URL.
    ///
    /// # Errors
    /// The collector can't be used, or a thread can't be started. A collector that is out of reach is no
    /// error.
    pub(crate) fn start(url: &str, report: fn(String)) -> Result<Self, Failure> {
        let mut exporter = CollectorExporter::new(url, report)
            .map_err(|why| Failure::new(CONFIG, format!("traces can't be sent to {url}: {why}")))?;
        exporter.set_resource(&resource("lockkeeper"));
        let (queue, traces) = sync_channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("lockkeeper-traces".to_owned())
            .spawn(move || send(&exporter, &traces))
            .map_err(|error| Failure::new(INTERNAL, format!("a thread can't be started: {error}")))?;
        Ok(Self { queue, thread })
    }

    pub(crate) fn sink(&self) -> TraceSink {
        let queue = self.queue.clone();
        TraceSink(Arc::new(move |trace| queue.try_send(trace).is_ok()))
    }

    /// Sends the queued traces, for at most [`FLUSH`]. To be called after the node has ended, and dropped its
    /// sink.
    pub(crate) fn flush(self) {
        drop(self.queue);
        let until = Instant::now() + FLUSH;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends traces until all their senders are gone.
fn send(exporter: &CollectorExporter, traces: &Receiver<AcquireTrace>) {
    let ids = RandomIdGenerator::default();
    let Some(runtime) = &exporter.runtime.0 else { return };
    while let Ok(first) = traces.recv() {
        let until = Instant::now() + BATCH_DELAY;
        let mut batch = spans(&ids, first);
        while batch.len() < BATCH_SPANS_MAX {
            match traces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(trace) => batch.extend(spans(&ids, trace)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        // A failure was reported.
        let _ = runtime.block_on(exporter.export(batch));
    }
}

/// The spans of an acquire: one of the whole, as a child of the client's span, and one of each stage.
fn spans(ids: &RandomIdGenerator, trace: AcquireTrace) -> Vec<SpanData> {
    let trace_id = TraceId::from(trace.context.trace_id);
    let (client, whole) = (SpanId::from(trace.context.span_id), ids.new_span_id());
    let span = |id, parent, name: String, start_time, end_time| SpanData {
        span_context: SpanContext::new(trace_id, id, TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id: parent,
        parent_span_is_remote: parent == client,
        span_kind: if parent == client { SpanKind::Server } else { SpanKind::Internal },
        name: name.into(),
        start_time,
        end_time,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: Default::default(),
        links: Default::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder(TRACER).build(),
    };
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let names = trace.names.into_iter().map(StringValue::from).collect();
    let mut attributes = vec![
        KeyValue::new("lockkeeper.node", number(trace.node)),
        KeyValue::new("lockkeeper.session", number(trace.session)),
        KeyValue::new("lockkeeper.request", number(trace.request)),
        KeyValue::new("lockkeeper.names", Value::Array(Array::String(names))),
        KeyValue::new("lockkeeper.name_count", number(trace.name_count as u64)),
        KeyValue::new("lockkeeper.outcome", trace.outcome),
    ];
    attributes.extend(trace.token.map(|token| KeyValue::new("lockkeeper.token", number(token))));
    let name = "lockkeeper.service.acquire".to_owned();
    let whole_span = SpanData { attributes, ..span(whole, client, name, trace.start, trace.end) };
    let stages = trace.stages.into_iter().map(|stage| {
        let name = format!("lockkeeper.service.{}", stage.name);
        span(ids.new_span_id(), whole, name, stage.start, stage.end)
    });
    std::iter::once(whole_span).chain(stages).collect()
}
