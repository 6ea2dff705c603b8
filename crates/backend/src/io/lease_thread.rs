//! The thread that keeps sessions alive, with its own runtime: a starved or blocked user runtime must not
//! lose locks (Redisson #2665, madelson #190).

use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::box_future::BoxFuture;
use crate::error::{BackendError, BackendErrorKind};

/// Spawns futures on the thread, which ends once all handles are dropped and all futures have completed.
#[derive(Clone)]
pub struct LeaseThread {
    jobs: UnboundedSender<BoxFuture<'static, ()>>,
    runtime: Handle,
}

/// One thread for all its users, for as long as any of them has a handle.
#[derive(Default)]
pub struct SharedLeaseThread(Mutex<Option<Running>>);

struct Running {
    /// The process that has started the thread: a fork has the memory of its parent, and none of its threads.
    process: u32,
    jobs: WeakUnboundedSender<BoxFuture<'static, ()>>,
    runtime: Handle,
}

impl SharedLeaseThread {
    /// Not started yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the running thread, or starts one.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn get(&self, name: &str) -> Result<LeaseThread, BackendError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*shared
            && running.process == std::process::id()
            && let Some(jobs) = running.jobs.upgrade()
        {
            return Ok(LeaseThread { jobs, runtime: running.runtime.clone() });
        }
        let lease_thread = LeaseThread::start(name).map_err(|error| {
            let what = format!("the thread `{name}` can't be started: {error}; raise the limit of threads");
            BackendError::caused(BackendErrorKind::Operator, what, error)
        })?;
        *shared = Some(Running {
            process: std::process::id(),
            jobs: lease_thread.jobs.downgrade(),
            runtime: lease_thread.runtime.clone(),
        });
        Ok(lease_thread)
    }
}

impl LeaseThread {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Self> {
        Self::on(thread::Builder::new().name(name.to_owned()))
    }

    fn on(thread: thread::Builder) -> io::Result<Self> {
        let (jobs, mut queue) = unbounded_channel::<BoxFuture<'static, ()>>();
        let runtime = start_runtime_thread(thread, take_blocking_thread, move |runtime| {
            runtime.block_on(async {
                let mut running = JoinSet::new();
                loop {
                    tokio::select! {
                        job = queue.recv() => match job {
                            Some(job) => drop(running.spawn(job)),
                            None => break,
                        },
                        Some(_) = running.join_next() => {}
                    }
                }
                while running.join_next().await.is_some() {}
            });
        })?;
        Ok(Self { jobs, runtime })
    }

    /// While the guard lives, timers and connections that the current thread creates belong to the lease
    /// thread's runtime. For a future that is first polled on the current thread and then moved to the lease
    /// thread.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Runs jobs on the runtime of the calling test, so that the test controls their time.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_this_test() -> Self {
        let (jobs, mut queue) = unbounded_channel::<BoxFuture<'static, ()>>();
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                tokio::spawn(job);
            }
        });
        Self { jobs, runtime: Handle::current() }
    }

    /// Spawns a future on the thread. Never blocks, and needs no runtime of the caller.
    pub fn run(&self, job: BoxFuture<'static, ()>) {
        // The thread outlives all handles, so this can't fail.
        let _ = self.jobs.send(job);
    }
}

/// Starts a thread for DNS lookups now and keeps it: tokio panics if the system refuses it later, when a
/// connection is lost.
fn take_blocking_thread(runtime: &Runtime) -> io::Result<()> {
    // tokio would panic here, too. Two are tried for one, since the system counts a thread for a moment after
    // its end.
    let tried = [(); 2].map(|()| thread::Builder::new().spawn(|| {}));
    for thread in tried {
        let _ = thread?.join();
    }
    drop(runtime.spawn_blocking(|| {}));
    Ok(())
}

/// Starts a thread that runs `work` on a runtime of its own, after `prepare`.
///
/// # Errors
/// The system gives no thread or no descriptors, or `prepare` failed.
pub fn start_runtime_thread(
    thread: thread::Builder,
    prepare: fn(&Runtime) -> io::Result<()>,
    work: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<Handle> {
    /// Keep-alive of idle threads: longer than any process lives.
    const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
    let (tell, told) = mpsc::channel();
    // The runtime is built on its thread: if the thread is refused, it would be dropped here, and that panics
    // inside of another runtime.
    let build = move || {
        let runtime =
            Builder::new_current_thread().enable_io().enable_time().thread_keep_alive(FOREVER).build()?;
        prepare(&runtime).map(|()| runtime)
    };
    thread.spawn(move || match build() {
        Ok(runtime) => {
            let _ = tell.send(Ok(runtime.handle().clone()));
            work(runtime);
        }
        Err(error) => drop(tell.send(Err(error))),
    })?;
    told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refused_thread_is_an_error() {
        // There is no memory for such a stack.
        assert!(LeaseThread::on(thread::Builder::new().stack_size(1 << 60)).is_err());
    }
}
