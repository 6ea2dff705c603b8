//! The runtimes of the callers. A wake-up from another thread is a system call, so that each runtime is woken once for
//! all answers of a frame, and it wakes the stream once for all calls that its tasks then submit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::shared::ServiceShared;
use crate::responder::{CallResult, Responder};

pub(super) type Batch = Vec<(Responder, CallResult)>;

/// One task on each runtime of callers, with a queue.
pub(super) struct CallerRuntimes {
    shared: Weak<ServiceShared>,
    queues: Mutex<HashMap<Id, Arc<RuntimeQueue>>>,
}

struct RuntimeQueue {
    jobs: UnboundedSender<RuntimeJob>,
    /// Whether a flush is in the queue.
    flushes: AtomicBool,
}

enum RuntimeJob {
    Answers(Batch),
    Flush,
}

impl CallerRuntimes {
    pub(super) fn new(shared: Weak<ServiceShared>) -> Self {
        Self { shared, queues: Mutex::default() }
    }

    /// Processes each answer on its caller's runtime. Must not be called under a lock that the processing takes: answers
    /// of this thread's runtime, and of the lease thread, are processed before it returns.
    pub(super) fn answer(&self, answers: Batch) {
        let here = Handle::try_current().ok().map(|here| here.id());
        let mut elsewhere: Vec<(Handle, Batch)> = Vec::new();
        for (responder, result) in answers {
            match responder.runtime().filter(|runtime| Some(runtime.id()) != here) {
                None => responder.send(result),
                Some(runtime) => match elsewhere.iter_mut().find(|(known, _)| known.id() == runtime.id()) {
                    Some((_, batch)) => batch.push((responder, result)),
                    None => elsewhere.push((runtime.clone(), vec![(responder, result)])),
                },
            }
        }
        for (runtime, batch) in elsewhere {
            // The send fails if the runtime has ended. This drops the responders.
            let _ = self.queue(&runtime).jobs.send(RuntimeJob::Answers(batch));
        }
    }

    /// Wakes the stream's sending side once the tasks of this runtime that are ready have run.
    pub(super) fn flush_after_ready_tasks(&self, runtime: &Handle) {
        let queue = self.queue(runtime);
        if !queue.flushes.swap(true, Ordering::SeqCst) {
            // If the runtime has ended, so has the caller.
            let _ = queue.jobs.send(RuntimeJob::Flush);
        }
    }

    fn queue(&self, runtime: &Handle) -> Arc<RuntimeQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&runtime.id()) {
            return queue.clone();
        }
        queues.retain(|_, queue| !queue.jobs.is_closed());
        let (jobs, receiver) = unbounded_channel();
        let queue = Arc::new(RuntimeQueue { jobs, flushes: AtomicBool::new(false) });
        queues.insert(runtime.id(), queue.clone());
        drop(queues);
        let task = RuntimeTask { queue: Arc::downgrade(&queue), shared: self.shared.clone() };
        runtime.spawn(task.run(receiver));
        queue
    }
}

struct RuntimeTask {
    queue: Weak<RuntimeQueue>,
    shared: Weak<ServiceShared>,
}

impl RuntimeTask {
    async fn run(self, mut jobs: UnboundedReceiver<RuntimeJob>) {
        while let Some(job) = jobs.recv().await {
            match job {
                RuntimeJob::Answers(batch) => {
                    for (responder, result) in batch {
                        responder.send(result);
                    }
                }
                RuntimeJob::Flush => {
                    tokio::task::yield_now().await;
                    self.flush();
                }
            }
        }
    }

    fn flush(&self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.flushes.store(false, Ordering::SeqCst);
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.flush();
        }
    }
}

impl Drop for RuntimeTask {
    fn drop(&mut self) {
        // The runtime ends: a flush that it owes is done now.
        self.flush();
    }
}
