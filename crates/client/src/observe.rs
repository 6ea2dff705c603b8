//! Metrics through the `metrics` facade (`docs/metrics.md` lists their names), and the trace context of an
//! acquire, which is sent to the lock service.

use std::time::Duration;

use lockkeeper_backend::LossCause;
use lockkeeper_core::LockName;

use crate::error::AcquireError;
use crate::guard::Guard;
use crate::kind::Kind;

pub(crate) fn acquired(backend: &'static str, outcome: &'static str, waited: Duration) {
    metrics::counter!("lockkeeper_acquires_total", "backend" => backend, "outcome" => outcome).increment(1);
    metrics::histogram!("lockkeeper_wait_seconds", "backend" => backend).record(waited.as_secs_f64());
}

/// The result of an acquire, in a word.
pub(crate) fn outcome<F: Kind>(result: &Result<Guard<F>, AcquireError>) -> &'static str {
    match result {
        Ok(_) => "acquired",
        Err(AcquireError::Busy(_)) => "busy",
        Err(AcquireError::Deadlock { .. }) => "deadlock",
        Err(AcquireError::TimedOut { .. }) => "timed-out",
        Err(AcquireError::Ambiguous { .. }) => "ambiguous",
        Err(_) => "failed",
    }
}

pub(crate) fn released(backend: &'static str, held: Duration) {
    metrics::histogram!("lockkeeper_hold_seconds", "backend" => backend).record(held.as_secs_f64());
}

/// The metrics of sections of cached locks. Registered once: that costs more than a section.
pub(crate) struct SectionMetrics {
    acquires: metrics::Counter,
    waits: metrics::Histogram,
    holds: metrics::Histogram,
}

impl SectionMetrics {
    pub(crate) fn register(backend: &'static str) -> Self {
        Self {
            acquires: metrics::counter!(
                "lockkeeper_acquires_total", "backend" => backend, "outcome" => "acquired"
            ),
            waits: metrics::histogram!("lockkeeper_wait_seconds", "backend" => backend),
            holds: metrics::histogram!("lockkeeper_hold_seconds", "backend" => backend),
        }
    }

    pub(crate) fn began(&self) {
        self.acquires.increment(1);
        self.waits.record(0.0);
    }

    pub(crate) fn ended(&self, held: Duration) {
        self.holds.record(held.as_secs_f64());
    }
}

pub(crate) fn lost(backend: &'static str, names: &[LockName], cause: LossCause) {
    metrics::counter!("lockkeeper_lost_total", "backend" => backend, "cause" => cause.as_str()).increment(1);
    let names = names.iter().map(LockName::as_str).collect::<Vec<_>>().join(", ");
    tracing::warn!(backend, cause = cause.as_str(), "the lock `{names}` was lost: {cause}");
}

#[cfg(feature = "service")]
pub(crate) fn stream_ended(cause: &'static str) {
    metrics::counter!("lockkeeper_stream_ends_total", "cause" => cause).increment(1);
}

/// The span as a W3C `traceparent` header, if a layer of `tracing-opentelemetry` records and samples it.
#[cfg(feature = "opentelemetry")]
pub(crate) fn traceparent(span: &tracing::Span) -> Option<Box<str>> {
    use opentelemetry::trace::TraceContextExt;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    // The program's filter may leave out the library's span; the service then continues the program's own.
    let context = if span.is_disabled() { tracing::Span::current().context() } else { span.context() };
    let span = context.span().span_context().clone();
    let (trace, id) = (span.trace_id(), span.span_id());
    (span.is_valid() && span.is_sampled()).then(|| format!("00-{trace}-{id}-01").into())
}

/// Without the feature `opentelemetry`, no trace context is sent.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn traceparent(_: &tracing::Span) -> Option<Box<str>> {
    None
}
