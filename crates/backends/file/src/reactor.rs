//! One thread of the process that turns events of descriptors and timers into wake-ups.
//!
//! So waiting works on any runtime of the caller, also one without timers. The thread also runs the tasks
//! that read the sessions' pipes, but no code of the library's users.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_backend::io::start_runtime_thread;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// The thread's runtime; started once.
///
/// # Errors
/// The system gives no thread or no descriptors.
pub(super) fn start() -> io::Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    let waits = |runtime: tokio::runtime::Runtime| runtime.block_on(std::future::pending());
    let thread = std::thread::Builder::new().name("lockkeeper-file".to_owned());
    let handle = start_runtime_thread(thread, |_| Ok(()), waits)?;
    Ok(HANDLE.get_or_init(|| handle))
}

/// Sleeps, by a timer of the thread.
pub(super) async fn sleep(duration: Duration) {
    let Ok(handle) = start() else {
        // Without the thread there are no timers; a short blocking sleep keeps a loop from spinning.
        std::thread::sleep(duration.min(Duration::from_millis(10)));
        return;
    };
    let sleep = {
        let _context = handle.enter();
        tokio::time::sleep(duration)
    };
    sleep.await;
}

/// Runs a task on the thread.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(handle) = start() {
        handle.spawn(task);
    }
}

/// Registers a pipe for events on the thread.
///
/// # Errors
/// Out of descriptors or memory.
pub(super) fn register(pipe: impl Into<OwnedFd>) -> io::Result<AsyncFd<OwnedFd>> {
    let _context = start()?.enter();
    lockkeeper_backend::io::fd::watch(pipe.into(), Interest::READABLE)
}

/// Returns when all writers of a pipe are gone; never returns if the pipe cannot be registered.
pub(super) async fn hang_up(pipe: File) {
    let Ok(pipe) = register(pipe) else { return std::future::pending().await };
    loop {
        match pipe.readable().await {
            Ok(guard) if guard.ready().is_read_closed() => return,
            // Bytes in the pipe are read by its owner.
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return std::future::pending().await,
        }
    }
}
