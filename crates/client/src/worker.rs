//! The thread that keeps sessions alive, with a runtime of its own: a starved or blocked user runtime must not lose
//! locks (Redisson #2665, madelson #190).

use std::thread;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::backend::BoxFuture;

/// Hands futures to the thread. It ends once every handle is gone and every future has ended.
#[derive(Clone)]
pub(crate) struct Worker(UnboundedSender<BoxFuture<()>>);

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
        Ok(Self(jobs))
    }

    /// Never blocks, needs no runtime of the caller's.
    pub(crate) fn run(&self, job: BoxFuture<()>) {
        // The thread outlives every handle, so that this can't fail.
        let _ = self.0.send(job);
    }
}
