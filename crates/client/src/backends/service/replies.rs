//! Processes answers on the runtimes of their callers. Each runtime is woken once for all answers of a frame: a wake-up
//! from another thread is a system call.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::responder::{CallResult, Responder};

pub(super) type Batch = Vec<(Responder, CallResult)>;

/// One task on each runtime of callers, with a queue.
#[derive(Default)]
pub(super) struct ReplyQueues(Mutex<HashMap<Id, UnboundedSender<Batch>>>);

impl ReplyQueues {
    /// Must not be called under a lock that the processing of an answer takes: answers of this thread's runtime, and of
    /// the lease thread, are processed before it returns.
    pub(super) fn send(&self, answers: Batch) {
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
            self.enqueue(&runtime, batch);
        }
    }

    fn enqueue(&self, runtime: &Handle, mut batch: Batch) {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&runtime.id()) {
            match queue.send(batch) {
                Ok(()) => return,
                // The runtime has ended.
                Err(unsent) => batch = unsent.0,
            }
        }
        queues.retain(|_, queue| !queue.is_closed());
        let (queue, receiver) = unbounded_channel();
        // Can't fail: the receiver exists.
        let _ = queue.send(batch);
        queues.insert(runtime.id(), queue);
        drop(queues);
        // An ended runtime drops the task at once, and with it the responders.
        runtime.spawn(process(receiver));
    }
}

async fn process(mut queue: UnboundedReceiver<Batch>) {
    while let Some(batch) = queue.recv().await {
        for (responder, result) in batch {
            responder.send(result);
        }
    }
}
