//! An in-memory fence: many resources by name, for one process.
//!
//! Makes check and effect one step among the threads of a process. Marks don't survive a restart, so it suits
//! only resources that don't survive one either (a cache, an in-process object), and users' tests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rule::{Action, Marks, Passed, Refused, Section};

/// Marks by resource name. Entries are never removed, since a resource without its mark would accept stale
/// tokens again: each resource seen uses memory until the fence is dropped.
#[derive(Debug, Default)]
pub struct MemoryFence {
    resources: Mutex<HashMap<String, Arc<Mutex<Marks>>>>,
}

impl MemoryFence {
    /// A fence without any marks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the marks of `resource`. Call it before the section reads the data that it will write.
    ///
    /// # Errors
    /// [`Refused::Stale`] if a later section has passed: stop.
    pub fn enter(&self, resource: &str, section: Section) -> Result<(), Refused> {
        self.pass(resource, Action::Enter, section, || ())
    }

    /// Checks and runs `effect` as one step: other checks of this resource wait until `effect` returns. So
    /// `effect` must be short, and must not call this fence for the same resource (deadlock).
    ///
    /// # Errors
    /// [`Refused::Stale`] or [`Refused::SharedWrite`]; `effect` did not run.
    pub fn write<R>(
        &self,
        resource: &str,
        section: Section,
        effect: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        self.pass(resource, Action::Write, section, effect)
    }

    /// As [`write`](Self::write), but each token passes only once, and `enter` is not needed: for an effect
    /// that does not depend on anything read before, executed at most once per grant (rule F-d).
    ///
    /// # Errors
    /// As `write`, and [`Refused::Repeated`] for a token that has passed before; `effect` did not run.
    pub fn check_once<R>(
        &self,
        resource: &str,
        section: Section,
        effect: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        self.pass(resource, Action::CheckOnce, section, effect)
    }

    /// The current marks of `resource`; the default ones if it was never seen.
    #[must_use]
    pub fn marks(&self, resource: &str) -> Marks {
        let found = lock(&self.resources).get(resource).cloned();
        found.map_or_else(Marks::default, |marks| lock(&marks).clone())
    }

    fn pass<R>(
        &self,
        resource: &str,
        action: Action,
        section: Section,
        effect: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        self.change(resource, |marks| {
            let (Passed::Raised | Passed::Unchanged) = marks.check(action, section)?;
            Ok(effect())
        })
    }

    /// Runs `change` on the marks of `resource` under that resource's mutex.
    pub(crate) fn change<R>(&self, resource: &str, change: impl FnOnce(&mut Marks) -> R) -> R {
        // The map is locked only for the lookup: a long effect on one resource must not block the others.
        let marks = {
            let mut resources = lock(&self.resources);
            match resources.get(resource) {
                Some(marks) => Arc::clone(marks),
                None => Arc::clone(resources.entry(resource.to_owned()).or_default()),
            }
        };
        change(&mut lock(&marks))
    }
}

/// Ignores poisoning: a panic in an effect can only leave raised marks behind, which is harmless for later
/// sections.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
