//! The store of marks in a file: its thread, which commits and loads.
//!
//! Starts and ends this thread. Callers decide checks under a mutex, which is never held during file I/O, and
//! wait for the thread's commit.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lockkeeper_core::Token;

use super::count::{MARKS_MAX_DEFAULT, MarkCount};
use super::disk::MarkDatabase;
use super::error::MarksError;
use super::group_commit::{CommitReceiver, Decision, GroupCommit, RESOURCES_IN_MEMORY_MAX};
use super::{MarkStore, reset_marks};
use crate::resource::Resource;
use crate::rule::{Action, Marks, Passed, Section};

/// Marks in one file, for one process at a time. Dropping this value blocks until all pending changes are
/// committed and the file is closed.
///
/// It keeps up to [`MARKS_MAX_DEFAULT`] marks, or another number; those of at most some 100,000 resources are
/// cached in memory. No acknowledged mark is lost by a killed process or a power loss, provided that the disk
/// keeps the data that it reported as synced.
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
    count: MarkCount,
    /// True once the store is closed or its thread has ended: further checks fail with `Ended`.
    ended: bool,
}

impl DurableMarks {
    /// Opens the file of marks at `path`, or creates it. Reads and verifies the whole file, so this blocks
    /// for some milliseconds, or for longer with a large file.
    ///
    /// # Errors
    /// [`MarksError::InUse`] if another process has the file open, [`MarksError::Damaged`] if it is damaged
    /// or not a file of marks, [`MarksError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MarksError> {
        Self::open_with_limit(path, MARKS_MAX_DEFAULT)
    }

    /// As [`Self::open`], for up to `marks_max` marks: one for each resource, and one for each slot with
    /// marks of its own. Above that, checks of further resources and slots fail with [`MarksError::Full`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_limit(path: impl AsRef<Path>, marks_max: u64) -> Result<Self, MarksError> {
        Self::with_room(path.as_ref(), RESOURCES_IN_MEMORY_MAX, marks_max)
    }

    /// The number of marks: one for each resource, and one for each slot with marks of its own.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shared.lock().count.kept
    }

    pub(crate) fn with_room(path: &Path, resources: usize, marks_max: u64) -> Result<Self, MarksError> {
        let mut disk = MarkDatabase::open(path)?;
        let count = MarkCount { kept: disk.count()?, max: marks_max };
        let state = Mutex::new(DurableState { rounds: GroupCommit::new(resources), count, ended: false });
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

    /// As [`MarkStore::check`], unless `refusal` finds a reason in the marks: both are decided in one step,
    /// on the same marks.
    ///
    /// # Errors
    /// That of `refusal`, which is called first, and those of [`MarkStore::check`].
    #[cfg(feature = "http")]
    pub(crate) async fn check_unless<E: From<MarksError>>(
        &self,
        resource: &Resource,
        action: Action,
        section: Section,
        refusal: impl Fn(&Marks) -> Option<E>,
    ) -> Result<Passed, E> {
        let change = |marks: &mut Marks| match refusal(marks) {
            Some(refusal) => Err(refusal),
            None => Ok(marks.check(action, section).map_err(MarksError::from)?),
        };
        self.change(resource, change).await
    }

    /// Loads the marks if they are not in memory, applies `change`, and waits until the result is durable.
    async fn change<E: From<MarksError>>(
        &self,
        resource: &Resource,
        change: impl Fn(&mut Marks) -> Result<Passed, E>,
    ) -> Result<Passed, E> {
        loop {
            // In a block, so that the mutex guard is not held across an await.
            let decision = {
                let mut state = self.shared.open()?;
                let DurableState { rounds, count, .. } = &mut *state;
                let decision = rounds.decide(resource, |marks| count.bound(marks, &change))?;
                if !matches!(decision, Decision::Now(_)) {
                    self.shared.work.notify_one();
                }
                decision
            };
            match decision {
                Decision::Now(passed) => return Ok(passed),
                Decision::With(passed, receiver) => return Ok(wait(receiver).await.map(|()| passed)?),
                Decision::Load(receiver) => wait(receiver).await?,
            }
        }
    }
}

async fn wait(receiver: CommitReceiver) -> Result<(), MarksError> {
    receiver.await.unwrap_or(Err(MarksError::Ended))
}

impl MarkStore for DurableMarks {
    async fn check(
        &self,
        resource: &Resource,
        action: Action,
        section: Section,
    ) -> Result<Passed, MarksError> {
        self.change(resource, |marks| marks.check(action, section).map_err(MarksError::from)).await
    }

    async fn marks(&self, resource: &Resource) -> Result<Marks, MarksError> {
        loop {
            let decision = {
                let mut state = self.shared.open()?;
                let decision = state.rounds.marks(resource);
                if matches!(decision, Decision::Load(_)) {
                    self.shared.work.notify_one();
                }
                decision
            };
            match decision {
                Decision::Now(marks) => return Ok(marks),
                Decision::With(marks, receiver) => return wait(receiver).await.map(|()| marks),
                Decision::Load(receiver) => wait(receiver).await?,
            }
        }
    }

    async fn reset(&self, resource: &Resource, to: Token) -> Result<(), MarksError> {
        let change = |marks: &mut Marks| {
            *marks = reset_marks(to);
            Ok::<_, MarksError>(Passed::Raised)
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

    /// The thread's loop: makes all pending changes in one commit, then does the pending loads. Ends when the
    /// store is closed and nothing is pending.
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
            // A resource may be both in the commit and in the loads. The loads come second, so that they
            // return the committed marks.
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

/// Makes all waiting checks fail with `Ended` when the thread ends, even by a panic.
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
