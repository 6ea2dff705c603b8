//! How calls wait: a thread without the GIL, or an event loop.
//!
//! A call is a Rust future. On a thread, it is polled there, and dropped if a signal handler raises (Ctrl-C).
//! In an event loop, it is a task of the library's runtime, which appends its result to the queue of the
//! loop's [`Bridge`]. The first result in the queue makes a file descriptor readable, which the loop watches.
//! So no Rust thread waits for the GIL, and many results cost the loop one wake-up.

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_bindings::CallError;
use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::prelude::*;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::errors::{self, exception};
use crate::process::{self, Owned};

/// How often a thread that waits looks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The result of a call, as a Python object.
pub(crate) trait IntoObject: Send + 'static {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

impl IntoObject for () {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

/// Where a call waits: `None`, on the thread that makes it; or in an event loop, whose future it completes.
#[derive(FromPyObject)]
pub(crate) struct InLoop<'py>(Bound<'py, Bridge>, Bound<'py, PyAny>);

/// Makes a call. Returns its answer, or `None` if it waits in an event loop.
///
/// # Errors
/// Those of the call, on a thread; what a signal handler raises.
pub(crate) fn call<T: IntoObject>(
    py: Python<'_>,
    place: Option<InLoop<'_>>,
    future: impl Future<Output = Result<T, CallError>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    match place {
        None => wait(py, future)?.into_object(py),
        Some(InLoop(bridge, result)) => bridge.get().begin(py, result, future).map(|()| py.None()),
    }
}

/// Waits on this thread.
fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T, CallError>> + Send) -> PyResult<T> {
    let runtime = process::runtime()?;
    let mut future = pin!(future);
    loop {
        let ended = py.detach(|| {
            runtime.block_on(async { tokio::time::timeout(SIGNALS_EVERY, future.as_mut()).await })
        });
        match ended {
            Ok(result) => return result.map_err(exception),
            Err(_) => {
                py.check_signals()?;
                // Raises what another thread has set for this one (`PyThreadState_SetAsyncExc`): the time
                // limits of job runners.
                py.run(c"pass", None, None)?;
            }
        }
    }
}

/// What an event loop does with the end of a call.
type Completion = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// The calls of one event loop that have ended, until the loop has taken their results.
///
/// Only the loop owns it, as the reader of its descriptor. When it is dropped, the loop's calls are
/// cancelled: they reference the loop's tasks, which Python could not collect otherwise, nor the holds in
/// them.
#[pyclass(frozen, weakref)]
pub(crate) struct Bridge(Owned<Arc<Completions>>);

impl Drop for Bridge {
    fn drop(&mut self) {
        // A child of the process has none of its tasks.
        if let Ok(completions) = self.0.get() {
            completions.closed.cancel();
            let ended = std::mem::take(&mut *completions.ended());
            // Among them may be holds. Fails only if no runtime could be started.
            let _ = process::within(|| drop(ended));
        }
    }
}

pub(crate) struct Completions {
    /// Cancelled once the loop is closed.
    closed: CancellationToken,
    ended: Mutex<Vec<Completion>>,
    /// Readable while there are completions.
    signal: EventFd,
}

impl Completions {
    fn ended(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, completion: Completion) {
        let mut ended = self.ended();
        ended.push(completion);
        if ended.len() == 1 {
            // Fails only if the counter is at its limit; the descriptor is readable then.
            let _ = self.signal.write(1);
        }
    }
}

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let signal = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| errors::operator(&format!("no file descriptor for an event loop: {error}")))?;
        Ok(Self(Owned::new(Arc::new(Completions {
            closed: CancellationToken::new(),
            ended: Mutex::default(),
            signal,
        }))))
    }

    /// The descriptor for the loop's `add_reader`.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.0.get()?.signal.as_fd().as_raw_fd())
    }

    /// To be called when the descriptor is readable.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        let completions = self.0.get()?;
        let ended = {
            let mut ended = completions.ended();
            // Fails only if there is nothing to read.
            let _ = completions.signal.read();
            std::mem::take(&mut *ended)
        };
        for completion in ended {
            if let Err(error) = completion(py) {
                error.write_unraisable(py, None);
            }
        }
        Ok(())
    }
}

impl Bridge {
    fn begin<T: IntoObject>(
        &self,
        py: Python<'_>,
        result: Bound<'_, PyAny>,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> PyResult<()> {
        let completions = self.0.get()?.clone();
        let ended = result.clone().unbind();
        let task = process::spawn(async move {
            tokio::select! {
                biased;
                () = completions.closed.cancelled() => {}
                answer = call => completions.push(Box::new(move |py| complete(ended.bind(py), answer))),
            }
        })?;
        result.call_method1("add_done_callback", (Py::new(py, AbortIfCancelled(Owned::new(task)))?,))?;
        Ok(())
    }

    /// Calls `callback` in the loop, without arguments, once the token is cancelled.
    pub(crate) fn tell(&self, token: CancellationToken, callback: Py<PyAny>) -> PyResult<Telling> {
        let completions = self.0.get()?.clone();
        let task = process::spawn(async move {
            tokio::select! {
                biased;
                () = completions.closed.cancelled() => {}
                () = token.cancelled() => completions.push(Box::new(move |py| callback.call0(py).map(drop))),
            }
        })?;
        Ok(Telling(Owned::new(task)))
    }
}

/// Sets the result of a loop's future. If that is cancelled, the answer is dropped, and with it a hold.
fn complete<T: IntoObject>(future: &Bound<'_, PyAny>, answer: Result<T, CallError>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match answer.map_err(exception).and_then(|answer| answer.into_object(py)) {
        Ok(answer) => future.call_method1("set_result", (answer,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
    };
    Ok(())
}

/// Drops a call if its future was cancelled, which abandons its request.
#[pyclass(frozen)]
struct AbortIfCancelled(Owned<AbortHandle>);

#[pymethods]
impl AbortIfCancelled {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0("cancelled")?.is_truthy()? {
            self.0.get()?.abort();
        }
        Ok(())
    }
}

/// Registers a callback for a loss; dropping it removes the callback.
#[pyclass(frozen)]
pub(crate) struct Telling(Owned<AbortHandle>);

impl Drop for Telling {
    fn drop(&mut self) {
        // A child of the process has no such task.
        if let Ok(task) = self.0.get() {
            task.abort();
        }
    }
}

/// Whether a hold is lost, like a `threading.Event` that is set by the loss.
#[pyclass(frozen)]
pub(crate) struct Lost(pub(crate) Owned<CancellationToken>);

#[pymethods]
impl Lost {
    fn is_set(&self) -> PyResult<bool> {
        Ok(self.0.get()?.is_cancelled())
    }

    /// Waits until the hold is lost, at most for `timeout` seconds. Returns whether it is lost.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let token = self.0.get()?.clone();
        let limit = timeout.map(|limit| crate::options::seconds("timeout", limit)).transpose()?;
        wait(py, async move {
            match limit {
                None => token.cancelled().await,
                Some(limit) => drop(tokio::time::timeout(limit, token.cancelled()).await),
            }
            Ok(token.is_cancelled())
        })
    }

    /// Calls `callback` in the event loop of `bridge` when the hold is lost, until the returned object is
    /// dropped.
    fn tell(&self, bridge: &Bound<'_, Bridge>, callback: Py<PyAny>) -> PyResult<Telling> {
        bridge.get().tell(self.0.get()?.clone(), callback)
    }

    fn __bool__(&self) -> PyResult<bool> {
        self.is_set()
    }
}
