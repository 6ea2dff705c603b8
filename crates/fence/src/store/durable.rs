//! The store in a file: the thread that commits.
//!
//! Responsible for one thread between the checks and the file, and for its end. Checks are decided under a mutex that is
//! never held over a system call.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lockkeeper_core::Token;

use super::disk::Disk;
use super::error::MarksError;
use super::rounds::{Decision, RESOURCES_IN_MEMORY_MAX, Rounds, Told};
use super::{MarkStore, reset_marks};
use crate::resource::Resource;
use crate::rule::{Action, Marks, Passed, Section};

/// Marks in one file, for one process at a time. Closed when dropped, after the commit that is under way.
///
/// Any number of resources; those not asked for lately are on disk only. A killed process and a power loss lose no mark
/// that was acknowledged, as long as the disk keeps what it said was synced.
pub struct DurableMarks {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    rounds: Rounds,
    /// No more is decided: closed, or the thread is gone.
    ended: bool,
}

impl DurableMarks {
    /// Opens the marks in the file `path`, or creates it; checks all of it first. Blocks: some milliseconds, and for a
    /// large file as long as reading it takes.
    ///
    /// # Errors
    /// [`MarksError::InUse`] if another process has it, [`MarksError::Damaged`] for what is no whole file of marks; or
    /// the system's word.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MarksError> {
        Self::with_room(path.as_ref(), RESOURCES_IN_MEMORY_MAX)
    }

    pub(crate) fn with_room(path: &Path, resources: usize) -> Result<Self, MarksError> {
        let disk = Disk::open(path)?;
        let state = Mutex::new(State { rounds: Rounds::new(resources), ended: false });
        let shared = Arc::new(Shared { state, work: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("fence-marks".to_owned())
            .spawn(move || {
                let ending = Ending(of_thread);
                ending.0.run(disk);
            })
            .map_err(|source| MarksError::Io {
                doing: "start the thread for",
                path: path.to_owned(),
                source: Arc::new(source),
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Decides as soon as the marks are in memory, and waits until the decision is durable.
    async fn change(
        &self,
        resource: &Resource,
        change: impl Fn(&mut Marks) -> Result<Passed, MarksError>,
    ) -> Result<Passed, MarksError> {
        loop {
            // In a block, since a guard must not be held over a wait.
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

async fn wait(told: Told) -> Result<(), MarksError> {
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, MarksError> {
        let state = self.lock();
        if state.ended { Err(MarksError::Ended) } else { Ok(state) }
    }

    /// The thread: all that is there to do, in one commit; until closed.
    fn run(&self, mut disk: Disk) {
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
            // What is loaded must not be older than what was just made durable: it may be of the same resource.
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

/// However the thread ends, nobody waits for it in vain.
struct Ending(Arc<Shared>);

impl Drop for Ending {
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
            // A panic of the thread was told by the panic itself.
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
