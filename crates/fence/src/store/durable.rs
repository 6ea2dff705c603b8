//! The file store: the thread that commits.
//!
//! Owns the thread between the checks and the file, and its shutdown. Checks are decided under a mutex that is
//! never held across a system call.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lockkeeper_core::Token;

use super::disk::MarkDatabase;
use super::error::MarksError;
use super::group_commit::{CommitReceiver, Decision, GroupCommit, RESOURCES_IN_MEMORY_MAX};
use super::{MarkStore, reset_marks};
use crate::resource::Resource;
use crate::rule::{Action, Marks, Passed, Section};

/// Marks in one file, for one process at a time. Dropping this value closes the file, after the commit that is
/// under way.
///
/// There may be any number of resources; those not checked recently are on disk only. No acknowledged mark is lost
/// by a killed process or a power loss, provided that the disk keeps the data that it reported as synced.
pub struct DurableMarks {
    shared: Arc<DurableShared>,
    thread: Option<JoinHandle<()>>,
}

struct DurableShared {
    state: Mutex<DurableState>,
    work: Condvar,
}

struct DurableState {
    rounds: GroupCommit,
    /// No further checks are decided, since the store is closed or its thread has ended.
    ended: bool,
}

impl DurableMarks {
    /// Opens the marks in the file `path`, or creates it; verifies the whole file first. Blocks for some
    /// milliseconds, and with a large file for the time to read it.
    ///
    /// # Errors
    /// [`MarksError::InUse`] if another process has the file open, [`MarksError::Damaged`] if it is damaged or not
    /// a file of marks, [`MarksError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MarksError> {
        Self::with_room(path.as_ref(), RESOURCES_IN_MEMORY_MAX)
    }

    pub(crate) fn with_room(path: &Path, resources: usize) -> Result<Self, MarksError> {
        let disk = MarkDatabase::open(path)?;
        let state = Mutex::new(DurableState { rounds: GroupCommit::new(resources), ended: false });
        let shared = Arc::new(DurableShared { state, work: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("fence-marks".to_owned())
            .spawn(move || {
                let ending = WakeWaitersOnDrop(of_thread);
                ending.0.run(disk);
            })
            .map_err(|source| MarksError::Io {
                doing: "start the thread for",
                path: path.to_owned(),
                source: Arc::new(source),
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Decides on a change once the marks are in memory, and waits until the decision is durable.
    async fn change(
        &self,
        resource: &Resource,
        change: impl Fn(&mut Marks) -> Result<Passed, MarksError>,
    ) -> Result<Passed, MarksError> {
        loop {
            // In a block, so that the mutex guard is not held across an await.
            let decision = {
                let mut state = self.shared.open()?;
                let decision = state.rounds.decide(resource, &change)?;
                if !matches!(decision, Decision::Now(_)) {
                    self.shared.work.notify_one();
                }
                decision
            };
            match decision {
                Decision::Now(passed) => return Ok(passed),
                Decision::With(passed, told) => return wait(told).await.map(|()| passed),
                Decision::Load(told) => wait(told).await?,
            }
        }
    }
}

async fn wait(told: CommitReceiver) -> Result<(), MarksError> {
    told.await.unwrap_or(Err(MarksError::Ended))
}

impl MarkStore for DurableMarks {
    async fn check(
        &self,
        resource: &Resource,
        action: Action,
        section: Section,
    ) -> Result<Passed, MarksError> {
        self.change(resource, |marks| Ok(marks.check(action, section)?)).await
    }

    async fn marks(&self, resource: &Resource) -> Result<Marks, MarksError> {
        loop {
            let decision = {
                let mut state = self.shared.open()?;
                let decision = state.rounds.marks(resource);
                self.shared.work.notify_one();
                decision
            };
            match decision {
                Decision::Now(marks) => return Ok(marks),
                Decision::With(marks, told) => return wait(told).await.map(|()| marks),
                Decision::Load(told) => wait(told).await?,
            }
        }
    }

    async fn reset(&self, resource: &Resource, to: Token) -> Result<(), MarksError> {
        let change = |marks: &mut Marks| {
            *marks = reset_marks(to);
            Ok(Passed::Raised)
        };
        self.change(resource, change).await.map(|_| ())
    }
}

impl DurableShared {
    fn lock(&self) -> MutexGuard<'_, DurableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, DurableState>, MarksError> {
        let state = self.lock();
        if state.ended { Err(MarksError::Ended) } else { Ok(state) }
    }

    /// The thread's loop: commits all pending changes at once, until the store is closed.
    fn run(&self, mut disk: MarkDatabase) {
        loop {
            let (work, loads) = {
                let mut state = self.lock();
                while state.rounds.is_idle() {
                    if state.ended {
                        return;
                    }
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.rounds.take()
            };
            let committed = disk.commit(&work.changes);
            // Loads come after the commit: a resource may be among those just committed, and the loaded marks must
            // not be older.
            let loaded = work.loads.iter().map(|resource| disk.load(resource)).collect();
            if let Err(why) = &committed {
                tracing::error!(
                    error = why as &dyn std::error::Error,
                    "marks of a fence could not be made durable"
                );
            }
            self.lock().rounds.settle(loads, loaded, &committed);
        }
    }
}

/// Cancels all waiting checks when the thread ends, even by a panic.
struct WakeWaitersOnDrop(Arc<DurableShared>);

impl Drop for WakeWaitersOnDrop {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        state.rounds.end();
    }
}

impl Drop for DurableMarks {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DurableMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableMarks").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "durable_tests.rs"]
mod tests;
