//! The trace of `run --otlp`: one span of the whole run, which the library's span of the acquire and the command's own
//! spans are parts of.

use std::ffi::OsString;

use tracing::field::Empty;
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::RunEnd;
use crate::args::Run;
use crate::exit::Failure;
use crate::otlp::{self, Collector};
use crate::output;

/// Does the work within a span, if `--otlp` is given, and sends the trace at its end.
pub(super) async fn traced(
    args: &Run,
    work: impl Future<Output = Result<RunEnd, Failure>>,
) -> Result<RunEnd, Failure> {
    let Some(url) = &args.otlp else { return work.await };
    let collector = Collector::start(url, "lockkeeper run", output::say)?;
    collector.subscribe()?;
    let name = args.command.name.to_string_lossy();
    let span = tracing::info_span!("lockkeeper.run", %name, exit_code = Empty);
    // Fails if no layer records the span.
    let _ = span.set_parent(otlp::context_of_environment());
    let end = work.instrument(span.clone()).await;
    let code = end.as_ref().map_or_else(|failure| failure.code, |end| end.exit_code(args));
    span.record("exit_code", i64::from(code));
    end
}

/// Adds the current span to the environment of the command, if it is sampled.
pub(super) fn with_span(mut env: Vec<(OsString, Option<OsString>)>) -> Vec<(OsString, Option<OsString>)> {
    env.extend(otlp::traceparent(&Span::current()).map(|span| ("TRACEPARENT".into(), Some(span.into()))));
    env
}
