//! The thread that keeps sessions alive, with a runtime of its own: a starved or blocked user runtime must not lose
//! locks (Redisson #2665, madelson #190).

use std::sync::{Mutex, PoisonError};
use std::thread;

use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::backend::BoxFuture;

/// Hands futures to the thread. It ends once every handle is gone and every future has ended.
#[derive(Clone)]
pub(crate) struct Worker {
    jobs: UnboundedSender<BoxFuture<()>>,
    runtime: Handle,
}

/// One thread for all who share it, for as long as any of them lives.
pub(crate) struct Shared(Mutex<Option<(WeakUnboundedSender<BoxFuture<()>>, Handle)>>);

impl Shared {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The thread that runs already, or a new one.
    pub(crate) fn get(&self, name: &str) -> std::io::Result<Worker> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((jobs, runtime)) = &*shared
            && let Some(jobs) = jobs.upgrade()
        {
            return Ok(Worker { jobs, runtime: runtime.clone() });
        }
        let worker = Worker::start(name)?;
        *shared = Some((worker.jobs.downgrade(), worker.runtime.clone()));
        Ok(worker)
    }
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (jobs, mut queue) = unbounded_channel::<BoxFuture<()>>();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
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
        Ok(Self { jobs, runtime: handle })
    }

    /// For as long as the guard lives, timers and connections that this thread begins are the worker's: for the first
    /// step of a job that it will be handed.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Runs on the runtime of the test that calls it, so that its time can be the test's.
    #[cfg(all(test, feature = "redlock"))]
    pub(crate) fn of_this_test() -> Self {
        let (jobs, mut queue) = unbounded_channel::<BoxFuture<()>>();
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                tokio::spawn(job);
            }
        });
        Self { jobs, runtime: Handle::current() }
    }

    /// Never blocks, needs no runtime of the caller's.
    pub(crate) fn run(&self, job: BoxFuture<()>) {
        // The thread outlives every handle, so that this can't fail.
        let _ = self.jobs.send(job);
    }
}
