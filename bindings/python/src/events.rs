//! The library's log events, for Python's `logging`.
//!
//! They are queued, and passed on by a thread of their own: no other thread of the library may wait for the
//! GIL. A fork has no such thread: it starts one with its first event.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
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

/// The function that takes the events.
static LOG: OnceLock<Py<PyAny>> = OnceLock::new();

/// The queue of a process: that of this one, or of the parent of which it is a fork. A lock is of no use
/// here, since another thread may have it when the process forks. A queue is never freed.
static QUEUE: AtomicPtr<LogQueue> = AtomicPtr::new(std::ptr::null_mut());

struct LogQueue {
    process: u32,
    sender: SyncSender<LogRecord>,
}

/// The queue of this process.
///
/// # Errors
/// No thread can be started.
fn queue() -> std::io::Result<&'static SyncSender<LogRecord>> {
    let process = std::process::id();
    let current = QUEUE.load(Ordering::Acquire);
    // SAFETY: it is null, or a queue, which is never freed.
    match unsafe { current.as_ref() } {
        Some(queue) if queue.process == process => return Ok(&queue.sender),
        _ => {}
    }
    let (sender, records) = sync_channel(WAITING_MAX);
    std::thread::Builder::new().name("lockkeeper-log".to_owned()).spawn(move || pass_on(&records))?;
    let new = Box::into_raw(Box::new(LogQueue { process, sender }));
    let stored = QUEUE.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: the new queue is stored, or this thread's own; one that was stored is never freed.
    Ok(unsafe {
        match stored {
            Ok(_) => &(*new).sender,
            Err(other) => {
                // Its thread ends.
                drop(Box::from_raw(new));
                &(*other).sender
            }
        }
    })
}

struct ToPython;

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
        if let Ok(queue) = queue() {
            // Fails if too many wait.
            let _ = queue.try_send((part, level, text.0));
        }
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
    let subscriber = tracing_subscriber::registry().with(ToPython);
    if LOG.set(log).is_err() || tracing::subscriber::set_global_default(subscriber).is_err() {
        return Ok(());
    }
    queue()
        .map(drop)
        .map_err(|error| errors::operator(&format!("no thread can be started for log events: {error}")))
}

fn pass_on(records: &Receiver<LogRecord>) {
    while let (Ok((part, level, text)), Some(log)) = (records.recv(), LOG.get()) {
        let passed = Python::try_attach(|py| {
            if let Err(error) = log.call1(py, (part, level, text)) {
                error.write_unraisable(py, None);
            }
        });
        // The interpreter is ending.
        if passed.is_none() {
            return;
        }
    }
}
