//! Delivery of a lock service's messages about entries to the sessions that own them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::store::EntryId;

/// An unsolicited message about an entry. May be lost, and may arrive twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// The lock may be free for it: try again after this time.
    Try(Duration),
    /// An operator broke its hold.
    Revoked,
}

/// Receives the messages about entries; an id of `None` stands for every entry.
type Listener = Arc<dyn Fn(Option<&EntryId>, Wake) + Send + Sync>;

/// The listeners of one client's sessions. Cheap to clone; clones share one list.
#[derive(Clone, Default)]
pub(crate) struct Wakes(Arc<Mutex<Listeners>>);

#[derive(Default)]
struct Listeners {
    sessions: HashMap<String, Listener>,
    /// Receives messages about entries of no session here.
    others: Option<Listener>,
}

impl Wakes {
    /// Delivers a message to the session of `id`. If that has no listener, it goes to the listener for all others, if
    /// any.
    pub(crate) fn deliver(&self, id: &EntryId, wake: Wake) {
        let listeners = self.listeners();
        let listener = listeners.sessions.get(id.session()).or(listeners.others.as_ref()).cloned();
        // The mutex is released first: a listener may call `stop`.
        drop(listeners);
        if let Some(listener) = listener {
            listener(Some(id), wake);
        }
    }

    /// Delivers a message to all listeners: after a lost connection was replaced, any of them may have missed one.
    pub(crate) fn deliver_to_all(&self, wake: Wake) {
        let listeners = self.listeners();
        let all: Vec<Listener> = listeners.sessions.values().chain(&listeners.others).cloned().collect();
        drop(listeners);
        all.iter().for_each(|listener| listener(None, wake));
    }

    /// Registers the listener of a session.
    pub(crate) fn listen(
        &self,
        session: &str,
        listener: impl Fn(Option<&EntryId>, Wake) + Send + Sync + 'static,
    ) {
        self.listeners().sessions.insert(session.to_owned(), Arc::new(listener));
    }

    /// Registers the listener for entries of no registered session.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code, reason = "others have sessions"))]
    pub(crate) fn listen_to_others(&self, listener: impl Fn(Option<&EntryId>, Wake) + Send + Sync + 'static) {
        self.listeners().others = Some(Arc::new(listener));
    }

    /// Removes the listener of a session.
    pub(crate) fn stop(&self, session: &str) {
        self.listeners().sessions.remove(session);
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
