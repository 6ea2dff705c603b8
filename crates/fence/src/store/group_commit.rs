//! Group commit: which check waits for which commit.
//!
//! Decides a check in memory as soon as its resource's marks are loaded, and completes it when these marks
//! are durable. Does no I/O and starts no thread: `durable.rs` takes a batch of changes from here, commits it
//! and reports the outcome.
//!
//! Checks that raise a mark join the *collecting* batch while another one is *committing*. A check that
//! raises no mark completes at once if the marks that it was decided on are durable; otherwise it completes
//! with the batch that contains them.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::error::MarksError;
use crate::resource::Resource;
use crate::rule::{Marks, Passed};

/// Most resources whose marks are kept in memory beside the file. Above this limit, resources with durable
/// marks are evicted, and read again on demand. A resource with one pair of marks takes some 200 bytes.
pub(super) const RESOURCES_IN_MEMORY_MAX: usize = 100_000;

/// Completes when a batch is durable or has failed, or when a load is done.
pub(super) type CommitReceiver = oneshot::Receiver<Result<(), MarksError>>;
type CommitSender = oneshot::Sender<Result<(), MarksError>>;

/// The in-memory state of the store.
#[derive(Debug)]
pub(super) struct GroupCommit {
    resources: HashMap<Resource, CachedMarks>,
    /// Pending loads: resources that are not in memory.
    loads: Vec<(Resource, CommitSender)>,
    collecting: CommitBatch,
    committing: Option<CommitBatch>,
    limit: usize,
}

#[derive(Debug)]
struct CachedMarks {
    marks: Marks,
    kept: Durability,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Durability {
    Durable,
    /// Durable once the batch with this number is committed.
    With(u64),
    /// The commit of the batch failed. The next check that passes adds these marks to the collecting batch.
    Not,
}

/// One commit: the changed resources and the checks that wait for it.
#[derive(Debug, Default)]
struct CommitBatch {
    number: u64,
    changed: Vec<Resource>,
    waiting: Vec<CommitSender>,
}

/// The outcome of a check, or of a read of marks, so far.
#[derive(Debug)]
#[must_use]
pub(super) enum Decision<T> {
    /// Decided, and durable. (Marks that were only read may not be durable yet.)
    Now(T),
    /// Decided; durable once a batch is.
    With(T, CommitReceiver),
    /// Not decided: the marks are not in memory. The caller must repeat the call once they are loaded.
    Load(CommitReceiver),
}

/// The work of one batch, to be done outside the mutex.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) loads: Vec<Resource>,
    pub(super) changes: Vec<(Resource, Marks)>,
}

impl GroupCommit {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            resources: HashMap::new(),
            loads: Vec::new(),
            collecting: CommitBatch { number: 1, ..CommitBatch::default() },
            committing: None,
            limit,
        }
    }

    /// Applies `change` to the marks of `resource`, or requests their load if they are not in memory.
    ///
    /// # Errors
    /// Those of `change`; the marks are unchanged then.
    pub(super) fn decide<E>(
        &mut self,
        resource: &Resource,
        change: impl FnOnce(&mut Marks) -> Result<Passed, E>,
    ) -> Result<Decision<Passed>, E> {
        let Some(entry) = self.resources.get_mut(resource) else {
            let (sender, receiver) = oneshot::channel();
            self.loads.push((resource.clone(), sender));
            return Ok(Decision::Load(receiver));
        };
        let passed = change(&mut entry.marks)?;
        let collecting = Durability::With(self.collecting.number);
        if (passed == Passed::Raised || entry.kept == Durability::Not) && entry.kept != collecting {
            entry.kept = collecting;
            self.collecting.changed.push(resource.clone());
        }
        let round = match entry.kept {
            Durability::With(number) if number == self.collecting.number => &mut self.collecting,
            Durability::With(_) => {
                self.committing.as_mut().expect("a round is collected, then committed, then settled")
            }
            Durability::Durable | Durability::Not => return Ok(Decision::Now(passed)),
        };
        let (sender, receiver) = oneshot::channel();
        round.waiting.push(sender);
        Ok(Decision::With(passed, receiver))
    }

    /// Returns the marks if they are in memory (perhaps not durable yet); otherwise requests their load.
    pub(super) fn marks(&mut self, resource: &Resource) -> Decision<Marks> {
        if let Some(entry) = self.resources.get(resource) {
            return Decision::Now(entry.marks.clone());
        }
        let (sender, receiver) = oneshot::channel();
        self.loads.push((resource.clone(), sender));
        Decision::Load(receiver)
    }

    /// Returns true if there is no pending work.
    pub(super) fn is_idle(&self) -> bool {
        self.loads.is_empty() && self.collecting.changed.is_empty()
    }

    /// Takes all pending work; [`GroupCommit::settle`] must follow.
    pub(super) fn take(&mut self) -> (Work, Loads) {
        debug_assert!(self.committing.is_none(), "one round at a time");
        let next = CommitBatch { number: self.collecting.number + 1, ..CommitBatch::default() };
        let round = mem::replace(&mut self.collecting, next);
        let marks = |resource: &Resource| self.resources.get(resource).map(|entry| entry.marks.clone());
        let changes =
            round.changed.iter().filter_map(|resource| Some((resource.clone(), marks(resource)?))).collect();
        self.committing = Some(round);
        let loads = mem::take(&mut self.loads);
        let to_load = loads.iter().map(|(resource, _)| resource.clone()).collect();
        (Work { loads: to_load, changes }, Loads(loads))
    }

    /// Completes the waiting checks with the outcome of the work.
    pub(super) fn settle(
        &mut self,
        loads: Loads,
        loaded: Vec<Result<Marks, MarksError>>,
        committed: &Result<(), MarksError>,
    ) {
        let round = self.committing.take().unwrap_or_default();
        for resource in &round.changed {
            if let Some(entry) = self.resources.get_mut(resource)
                && entry.kept == Durability::With(round.number)
            {
                entry.kept = if committed.is_ok() { Durability::Durable } else { Durability::Not };
            }
        }
        self.make_room();
        let outcome = committed.clone().map_err(|why| MarksError::NotDurable(Arc::new(why)));
        for sender in round.waiting {
            // A send fails only if the check was cancelled; the same holds below.
            let _ = sender.send(outcome.clone());
        }
        for ((resource, sender), marks) in loads.0.into_iter().zip(loaded) {
            let _ = sender.send(marks.map(|marks| {
                self.resources.entry(resource).or_insert(CachedMarks { marks, kept: Durability::Durable });
            }));
        }
    }

    /// Cancels every wait: the receivers see a closed channel.
    pub(super) fn end(&mut self) {
        self.loads.clear();
        self.collecting.waiting.clear();
        self.committing = None;
    }

    /// Evicts resources with durable marks until half the limit is left. Which ones is arbitrary: an LRU
    /// order would make every check more expensive.
    fn make_room(&mut self) {
        if self.resources.len() <= self.limit {
            return;
        }
        let mut surplus = self.resources.len() - self.limit / 2;
        self.resources.retain(|_, entry| {
            let drop = surplus > 0 && entry.kept == Durability::Durable;
            surplus -= usize::from(drop);
            !drop
        });
    }
}

/// Pending loads and the checks that wait for them.
#[derive(Debug)]
pub(super) struct Loads(Vec<(Resource, CommitSender)>);

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
