//! The traces of a process that acquires locks by the library: its spans, and those of the library.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::{CollectorExporter, FLUSH, TRACER, resource};

/// Sends the spans of this process.
pub(crate) struct RunTraces {
    provider: SdkTracerProvider,
    url: String,
    report: fn(String),
    is_failing: Arc<AtomicBool>,
}

impl RunTraces {
    /// Installs this process's subscriber, whose spans are sent to the collector at this URL.
    ///
    /// # Errors
    /// Why the spans can't be sent.
    pub(crate) fn start(url: &str, report: fn(String)) -> Result<Self, String> {
        let exporter = CollectorExporter::new(url, report)?;
        let is_failing = exporter.is_failing.clone();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource("lockkeeper run"))
            .build();
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(TRACER))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        // A target stands for all that begin with it.
        let ours = Targets::new().with_target("lockkeeper", LevelFilter::INFO);
        Registry::default().with(layer.with_filter(ours)).try_init().map_err(|error| error.to_string())?;
        Ok(Self { provider, url: url.to_owned(), report, is_failing })
    }

    /// Sets the parent of this span: the span in the environment variable TRACEPARENT, if there is one.
    pub(crate) fn continue_trace(&self, span: &Span) {
        let parent = std::env::var("TRACEPARENT").map(|parent| ("traceparent".to_owned(), parent));
        let carrier: HashMap<String, String> = parent.into_iter().collect();
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        // Fails if no layer records the span.
        let _ = span.set_parent(parent);
    }
}

impl Drop for RunTraces {
    fn drop(&mut self) {
        let flushed = self.provider.shutdown_with_timeout(FLUSH);
        if flushed.is_err() && !self.is_failing.load(Ordering::Relaxed) {
            (self.report)(format!(
                "the last traces are lost: the collector at {} has not taken them within {} s",
                self.url,
                FLUSH.as_secs()
            ));
        }
    }
}

/// The span for TRACEPARENT; `None` if it is not sampled.
pub(crate) fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span().span_context().clone();
    let (trace, id) = (span.trace_id(), span.span_id());
    (span.is_valid() && span.is_sampled()).then(|| format!("00-{trace}-{id}-01"))
}
