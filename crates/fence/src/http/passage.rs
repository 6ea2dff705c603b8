//! The doors of all resources, and the way through one: knock, wait, check durably.
//!
//! Responsible for keeping a door as long as somebody is at it, for the bounded wait, and for the leaving: a [`Pass`]
//! leaves when it is dropped, however the work behind it ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::problem::Problem;
use crate::door::{Answer, Door, Knock, Place};
use crate::resource::Resource;
use crate::rule::{Action, Refused, Section};
use crate::store::MarkStore;

/// What whoever waits is told.
type Verdict = oneshot::Receiver<Result<(), Refused>>;

/// The doors at which somebody is.
#[derive(Debug, Default)]
pub(super) struct Doors {
    doors: Mutex<HashMap<Resource, Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    door: Door,
    waiting: HashMap<Place, oneshot::Sender<Result<(), Refused>>>,
}

impl Kept {
    fn tell(&mut self, answers: Vec<Answer>) {
        for Answer { place, verdict } in answers {
            if let Some(teller) = self.waiting.remove(&place) {
                // Who stopped waiting meanwhile leaves by itself.
                let _ = teller.send(verdict);
            }
        }
    }
}

/// A place at a door, from the knock on.
#[derive(Debug)]
pub(super) struct Pass {
    doors: Arc<Doors>,
    resource: Resource,
    place: Place,
}

impl Doors {
    /// Through the door, with the mark durable; or a word for whoever asked.
    ///
    /// Inside first, checked then (`door.rs` says why). Cancel safe: a dropped future has left.
    pub(super) async fn pass(
        self: &Arc<Self>,
        store: &impl MarkStore,
        wait_at_most: Duration,
        resource: Resource,
        action: Action,
        section: Section,
    ) -> Result<Pass, Problem> {
        let (pass, waiting) = self.knock(resource, action, section)?;
        if let Some(verdict) = waiting {
            match tokio::time::timeout(wait_at_most, verdict).await {
                Ok(Ok(verdict)) => verdict?,
                // A teller is dropped without a word only when we leave, which is not now.
                Ok(Err(_)) | Err(_) => return Err(Problem::busy(wait_at_most)),
            }
        }
        let _ = store.check(&pass.resource, action, section).await?;
        Ok(pass)
    }

    fn knock(
        self: &Arc<Self>,
        resource: Resource,
        action: Action,
        section: Section,
    ) -> Result<(Pass, Option<Verdict>), Refused> {
        let mut doors = self.lock();
        let kept = doors.entry(resource.clone()).or_default();
        let mut answers = Vec::new();
        let knock = kept.door.knock(action, section, &mut answers);
        kept.tell(answers);
        let pass = |place| Pass { doors: Arc::clone(self), resource: resource.clone(), place };
        match knock {
            Ok(Knock::Inside(place)) => Ok((pass(place), None)),
            Ok(Knock::Waits(place)) => {
                let (teller, verdict) = oneshot::channel();
                kept.waiting.insert(place, teller);
                Ok((pass(place), Some(verdict)))
            }
            Err(refused) => {
                if kept.door.is_unused() {
                    doors.remove(&resource);
                }
                Err(refused)
            }
        }
    }

    /// How many doors are kept.
    pub(super) fn in_use(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Resource, Kept>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut doors = self.doors.lock();
        let Some(kept) = doors.get_mut(&self.resource) else { return };
        let mut answers = Vec::new();
        kept.door.leave(self.place, &mut answers);
        kept.waiting.remove(&self.place);
        kept.tell(answers);
        if kept.door.is_unused() {
            doors.remove(&self.resource);
        }
    }
}
