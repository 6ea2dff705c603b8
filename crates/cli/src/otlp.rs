//! Traces for a collector, by OTLP over gRPC (`--otlp`).
//!
//! Traces never delay or fail a lock: spans are queued (2,048 at most, further ones are dropped) and sent by a thread of
//! their own; a collector that can't be reached is reported once. `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
//! `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_*` and `OTEL_TRACES_SAMPLER` work as OpenTelemetry defines them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_server::{AcquireTrace, TraceSink};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState,
    TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData};
use tokio::runtime::Runtime;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::exit::{Failure, INTERNAL};

/// The name of the tracer.
const TRACER: &str = "lockkeeper";
/// A batch that the collector has not taken after this time has failed.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process that ends waits for its last spans to be sent.
const FLUSH: Duration = Duration::from_secs(2);

/// The connection to a collector.
pub(crate) struct Collector {
    provider: SdkTracerProvider,
    /// Carries the connection; taken out when this is dropped.
    runtime: Option<Runtime>,
}

impl Collector {
    /// Begins to send spans to the collector at this URL. `service` is the name of this program in the traces; `report`
    /// is called when sending begins to fail, and when it succeeds again.
    ///
    /// # Errors
    /// A thread can't be started. An unreachable collector is no error.
    pub(crate) fn start(url: &str, service: &str, report: fn(String)) -> Result<Self, Failure> {
        let failure = |what: String| Failure::new(INTERNAL, format!("traces can't be sent: {what}"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockkeeper-otlp")
            .enable_all()
            .build()
            .map_err(|error| failure(error.to_string()))?;
        let entered = runtime.enter();
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(url)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| failure(error.to_string()))?;
        drop(entered);
        let exporter =
            ReportingExporter { exporter, url: url.to_owned(), report, is_failing: AtomicBool::new(false) };
        let resource = Resource::builder();
        let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
            Some(_) => resource,
            None => resource.with_service_name(service.to_owned()),
        };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Self { provider, runtime: Some(runtime) })
    }

    /// Where a node sends its traces of acquires.
    pub(crate) fn sink(&self) -> TraceSink {
        let tracer = self.provider.tracer(TRACER);
        TraceSink(Arc::new(move |trace| export(&tracer, trace)))
    }

    /// Installs this process's subscriber, which makes spans of the library's.
    ///
    /// # Errors
    /// There is one already.
    pub(crate) fn subscribe(&self) -> Result<(), Failure> {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(TRACER))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        let ours = Targets::new()
            .with_target("lockkeeper", LevelFilter::INFO)
            .with_target("lockkeeper_cli", LevelFilter::INFO);
        Registry::default()
            .with(layer.with_filter(ours))
            .try_init()
            .map_err(|error| Failure::new(INTERNAL, format!("traces can't be made: {error}")))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // Failed exports were reported.
        let _ = self.provider.shutdown_with_timeout(FLUSH);
        // Not awaited: this may be dropped on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends the spans of an acquire: one of the whole, as a child of the client's span, and one of each stage.
fn export(tracer: &SdkTracer, trace: AcquireTrace) {
    let parent = SpanContext::new(
        TraceId::from(trace.context.trace_id),
        SpanId::from(trace.context.span_id),
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
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
    let mut span = SpanBuilder::from_name("lockkeeper.service.acquire")
        .with_kind(SpanKind::Server)
        .with_start_time(trace.start)
        .with_attributes(attributes)
        .start_with_context(tracer, &Context::new().with_remote_span_context(parent));
    let context = Context::new().with_remote_span_context(span.span_context().clone());
    for stage in trace.stages {
        SpanBuilder::from_name(format!("lockkeeper.service.{}", stage.name))
            .with_start_time(stage.start)
            .start_with_context(tracer, &context)
            .end_with_timestamp(stage.end);
    }
    span.end_with_timestamp(trace.end);
}

/// The span of whoever has started this process, by the environment variable TRACEPARENT; empty without one.
pub(crate) fn context_of_environment() -> Context {
    let parent = std::env::var("TRACEPARENT").map(|parent| ("traceparent".to_owned(), parent));
    let carrier: HashMap<String, String> = parent.into_iter().collect();
    TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier)
}

/// The span for TRACEPARENT; `None` if it is not sampled.
pub(crate) fn traceparent(span: &tracing::Span) -> Option<String> {
    let context = span.context();
    let span = context.span().span_context().clone();
    let (trace, id) = (span.trace_id(), span.span_id());
    (span.is_valid() && span.is_sampled()).then(|| format!("00-{trace}-{id}-01"))
}

/// Reports the first failure of a series, and its end.
#[derive(Debug)]
struct ReportingExporter {
    exporter: SpanExporter,
    url: String,
    report: fn(String),
    is_failing: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for ReportingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let url = &self.url;
        match &result {
            Err(error) if !self.is_failing.swap(true, Ordering::Relaxed) => (self.report)(format!(
                "traces are lost until the collector at {url} takes them ({error}); locks are not affected"
            )),
            Ok(()) if self.is_failing.swap(false, Ordering::Relaxed) => {
                (self.report)(format!("the collector at {url} takes traces again"));
            }
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
