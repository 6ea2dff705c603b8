//! The runtime of this process, and values that a fork must not use.
//!
//! A child has the memory of its parent and none of its threads: a client of the parent renews nothing there,
//! and its connections are the parent's.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::errors;

/// The process that has made a runtime, and the runtime. That of a parent process is never dropped.
static RUNTIME: Mutex<Option<(u32, ManuallyDrop<Runtime>)>> = Mutex::new(None);

/// The runtime that drives calls.
pub(crate) fn runtime() -> PyResult<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    match &*runtime {
        Some((process, runtime)) if *process == std::process::id() => Ok(runtime.handle().clone()),
        _ => {
            let new = Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("lockkeeper-calls")
                .enable_all()
                .build()
                .map_err(|error| errors::operator(&format!("no thread can be started: {error}")))?;
            let handle = new.handle().clone();
            *runtime = Some((std::process::id(), ManuallyDrop::new(new)));
            Ok(handle)
        }
    }
}

/// Runs a future on the runtime.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> PyResult<AbortHandle> {
    Ok(runtime()?.spawn(future).abort_handle())
}

/// A value that belongs to the process that has made it. In a child of that process it can't be used, and its
/// drop does nothing.
pub(crate) struct Owned<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// # Errors
    /// `UsedAfterFork` in a child of the process that has made the value.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.process == std::process::id() {
            return Ok(&self.value);
        }
        Err(errors::used_after_fork(self.process))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Enters the runtime, which the library's handles need where they are dropped or first polled.
pub(crate) fn within<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    Ok(work())
}
