//! The admission of requests to all resources, each by its [`Door`]: asks for admission, and waits.
//!
//! Keeps a [`Door`] for each resource in use, and bounds the wait. Dropping a [`Pass`] removes the request
//! from its `Door`, however the request ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::problem::Problem;
use crate::door::{AdmissionId, Door, Knock, WaitOutcome};
use crate::resource::Resource;
use crate::rule::{Action, Refused, Section};

/// Receives the verdict for a waiting request.
type AdmissionReceiver = oneshot::Receiver<Result<(), Refused>>;

/// The `Door`s in use, by resource.
#[derive(Debug, Default)]
pub(super) struct Doors {
    doors: Mutex<HashMap<Resource, DoorEntry>>,
}

#[derive(Debug, Default)]
struct DoorEntry {
    door: Door,
    waiting: HashMap<AdmissionId, oneshot::Sender<Result<(), Refused>>>,
}

impl DoorEntry {
    fn deliver(&mut self, answers: Vec<WaitOutcome>) {
        for WaitOutcome { id, verdict } in answers {
            if let Some(sender) = self.waiting.remove(&id) {
                // Sending fails if the request was cancelled. Its `Pass` is dropped then, and removes it from
                // the `Door`.
                let _ = sender.send(verdict);
            }
        }
    }
}

/// An admitted or waiting request. Dropping it removes the request from its resource: it has ended.
#[derive(Debug)]
pub struct Pass {
    doors: Arc<Doors>,
    resource: Resource,
    id: AdmissionId,
}

impl Doors {
    /// Waits for admission. The caller checks the durable marks next (`door.rs` gives the reason for this
    /// order). Cancel safe: dropping the future drops the `Pass`.
    pub(super) async fn admit(
        self: &Arc<Self>,
        wait_at_most: Duration,
        resource: Resource,
        action: Action,
        section: Section,
    ) -> Result<Pass, Problem> {
        let (pass, waiting) = self.knock(resource, action, section)?;
        if let Some(verdict) = waiting {
            match tokio::time::timeout(wait_at_most, verdict).await {
                Ok(Ok(verdict)) => verdict?,
                // `Ok(Err)` can't happen: only dropping `pass`, which is still alive, drops the sender
                // without a verdict.
                Ok(Err(_)) | Err(_) => return Err(Problem::busy(wait_at_most)),
            }
        }
        Ok(pass)
    }

    fn knock(
        self: &Arc<Self>,
        resource: Resource,
        action: Action,
        section: Section,
    ) -> Result<(Pass, Option<AdmissionReceiver>), Refused> {
        let mut doors = self.lock();
        let kept = doors.entry(resource.clone()).or_default();
        let mut answers = Vec::new();
        let knock = kept.door.knock(action, section, &mut answers);
        kept.deliver(answers);
        let pass = |id| Pass { doors: Arc::clone(self), resource: resource.clone(), id };
        match knock {
            Ok(Knock::Inside(id)) => Ok((pass(id), None)),
            Ok(Knock::Waits(id)) => {
                let (sender, verdict) = oneshot::channel();
                kept.waiting.insert(id, sender);
                Ok((pass(id), Some(verdict)))
            }
            Err(refused) => {
                if kept.door.is_unused() {
                    doors.remove(&resource);
                }
                Err(refused)
            }
        }
    }

    /// Number of `Door`s in use.
    pub(super) fn in_use(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Resource, DoorEntry>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut doors = self.doors.lock();
        let Some(kept) = doors.get_mut(&self.resource) else { return };
        let mut answers = Vec::new();
        kept.door.leave(self.id, &mut answers);
        kept.waiting.remove(&self.id);
        kept.deliver(answers);
        if kept.door.is_unused() {
            doors.remove(&self.resource);
        }
    }
}
