//! The trace of `run --otlp`: one span of the whole run, which the library's span of the acquire and the
//! command's own spans are parts of.

use std::ffi::OsString;

use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::RunEnd;
use crate::args::Run;
use crate::exit::Failure;
use crate::otlp::{self, RunTraces};
use crate::output;

/// Does the work within a span. The trace is sent when the [`RunTraces`] is dropped.
pub(super) async fn traced(
    args: &Run,
    traces: Option<&RunTraces>,
    work: impl Future<Output = Result<RunEnd, Failure>>,
) -> Result<RunEnd, Failure> {
    let Some(traces) = traces else { return work.await };
    let name = args.command.name.to_string_lossy();
    let span = tracing::info_span!("lockkeeper.run", %name, exit_code = Empty);
    traces.continue_trace(&span);
    let end = work.instrument(span.clone()).await;
    let code = end.as_ref().map_or_else(|failure| failure.code, |end| end.exit_code(args));
    span.record("exit_code", i64::from(code));
    end
}

/// The traces of `--otlp`. If they can't be sent, the run goes on without.
pub(super) fn start(args: &Run) -> Option<RunTraces> {
    let url = args.otlp.as_ref()?;
    let started = RunTraces::start(url, output::say);
    started.inspect_err(|why| output::say(format_args!("traces can't be sent to {url}: {why}"))).ok()
}

/// Adds the current span to the environment of the command, if it is sampled.
pub(super) fn with_span(mut env: Vec<(OsString, Option<OsString>)>) -> Vec<(OsString, Option<OsString>)> {
    env.extend(otlp::traceparent(&Span::current()).map(|span| ("TRACEPARENT".into(), Some(span.into()))));
    env
}
