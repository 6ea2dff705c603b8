//! The runtimes of the callers. Waking another thread takes a system call, so each runtime is woken once for
//! all answers of a frame, and wakes the stream once for all calls that its tasks submit then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lockkeeper_backend::{CallResult, Responder};
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::shared::ServiceShared;

pub(super) type Batch = Vec<(Responder, CallResult)>;

/// One task on each runtime of callers, with a queue.
pub(super) struct CallerRuntimes {
    shared: Weak<ServiceShared>,
    queues: Mutex<HashMap<Id, Arc<RuntimeQueue>>>,
}

struct RuntimeQueue {
    jobs: UnboundedSender<RuntimeJob>,
    /// Whether the queue has a flush.
    has_flush: AtomicBool,
}

enum RuntimeJob {
    Answers(Batch),
    Flush,
}

impl CallerRuntimes {
    pub(super) fn new(shared: Weak<ServiceShared>) -> Self {
        Self { shared, queues: Mutex::default() }
    }

    /// Processes each answer on its caller's runtime. Must not be called under a lock that the processing
    /// takes: answers of this thread's runtime, and of the lease thread, are processed before it returns.
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
            // The send fails if the runtime has ended; this drops the responders, which end their calls.
            let _ = self.queue(&runtime).jobs.send(RuntimeJob::Answers(batch));
        }
    }

    /// Wakes the stream's sending side once the ready tasks of the current runtime have run. If the runtime
    /// then stops, nothing is held back for long: a caller that no longer waits abandons its request, which
    /// wakes the stream.
    pub(super) fn flush_after_ready_tasks(&self, runtime: &Handle) {
        let queue = self.queue(runtime);
        if !queue.has_flush.swap(true, Ordering::SeqCst)
            && queue.jobs.send(RuntimeJob::Flush).is_err()
            && let Some(shared) = self.shared.upgrade()
        {
            // The runtime is shutting down, and has dropped the queue's task.
            shared.flush();
        }
    }

    fn queue(&self, runtime: &Handle) -> Arc<RuntimeQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&runtime.id()) {
            return queue.clone();
        }
        queues.retain(|_, queue| !queue.jobs.is_closed());
        let (jobs, receiver) = unbounded_channel();
        let queue = Arc::new(RuntimeQueue { jobs, has_flush: AtomicBool::new(false) });
        queues.insert(runtime.id(), queue.clone());
        drop(queues);
        // An ended runtime drops the task at once.
        runtime.spawn(run(receiver, Arc::downgrade(&queue), self.shared.clone()));
        queue
    }
}

/// The task of one runtime; ends when the queue's owner is dropped.
async fn run(
    mut jobs: UnboundedReceiver<RuntimeJob>,
    queue: Weak<RuntimeQueue>,
    shared: Weak<ServiceShared>,
) {
    while let Some(job) = jobs.recv().await {
        match job {
            RuntimeJob::Answers(batch) => {
                for (responder, result) in batch {
                    responder.send(result);
                }
            }
            RuntimeJob::Flush => {
                // Completes after the tasks that are ready now have run.
                tokio::task::yield_now().await;
                if let (Some(queue), Some(shared)) = (queue.upgrade(), shared.upgrade()) {
                    queue.has_flush.store(false, Ordering::SeqCst);
                    shared.flush();
                }
            }
        }
    }
}
