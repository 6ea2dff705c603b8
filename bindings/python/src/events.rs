//! The library's log events, for Python's `logging`.
//!
//! They are queued, and passed on by a thread of their own: no other thread of the library may wait for the
//! GIL.

use std::fmt::{self, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::errors;

/// Events that wait for the GIL. Further ones are dropped.
const WAITING_MAX: usize = 1024;

/// An event: the part of the library, the level as `logging` counts it, and the text.
type LogRecord = (String, u8, String);

struct ToPython(SyncSender<LogRecord>);

impl<S: Subscriber> Layer<S> for ToPython {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target().starts_with("lockkeeper") && *metadata.level() <= Level::INFO
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let part = event.metadata().target().replace("::", ".");
        // Fails if too many wait.
        let _ = self.0.try_send((part, level, text.0));
    }
}

/// The message of an event.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Never fails.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// Passes the library's events to `log(part, level, text)` from now on, in this process.
#[pyfunction]
pub(crate) fn follow_events(log: Py<PyAny>) -> PyResult<()> {
    let (sender, records) = sync_channel(WAITING_MAX);
    let subscriber = tracing_subscriber::registry().with(ToPython(sender));
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        return Ok(());
    }
    std::thread::Builder::new()
        .name("lockkeeper-log".to_owned())
        .spawn(move || pass_on(&records, &log))
        .map(drop)
        .map_err(|error| errors::operator(&format!("no thread can be started for log events: {error}")))
}

fn pass_on(records: &Receiver<LogRecord>, log: &Py<PyAny>) {
    while let Ok((part, level, text)) = records.recv() {
        Python::attach(|py| {
            if let Err(error) = log.call1(py, (part, level, text)) {
                error.write_unraisable(py, None);
            }
        });
    }
}
