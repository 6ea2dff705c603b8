//! Who is to be woken when a lock service says something of an entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::store::EntryId;

/// What a lock service says of an entry without being asked. May be lost, and may come twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// It may be its turn: try again after so long.
    Try(Duration),
    /// An operator broke its hold.
    Revoked,
}

/// Hears what is said of one entry; without an id, of each.
type Listener = Arc<dyn Fn(Option<&EntryId>, Wake) + Send + Sync>;

/// The sessions of one client, each of which hears of its own entries. Cheap to clone; clones are the same list.
#[derive(Clone, Default)]
pub(crate) struct Wakes(Arc<Mutex<Listeners>>);

#[derive(Default)]
struct Listeners {
    sessions: HashMap<String, Listener>,
    /// Hears of entries that are of none of these sessions.
    others: Option<Listener>,
}

impl Wakes {
    /// Tells whoever listens for `id`; nobody, if its session is over.
    pub(crate) fn deliver(&self, id: &EntryId, wake: Wake) {
        let listeners = self.listeners();
        let listener = listeners.sessions.get(id.session()).or(listeners.others.as_ref()).cloned();
        // Not under the lock: a listener may stop listening.
        drop(listeners);
        if let Some(listener) = listener {
            listener(Some(id), wake);
        }
    }

    /// Everyone may have missed something: a connection was lost and made anew.
    pub(crate) fn deliver_to_all(&self, wake: Wake) {
        let listeners = self.listeners();
        let all: Vec<Listener> = listeners.sessions.values().chain(&listeners.others).cloned().collect();
        drop(listeners);
        all.iter().for_each(|listener| listener(None, wake));
    }

    /// From now on `listener` hears what is said of the entries of `session`.
    pub(crate) fn listen(
        &self,
        session: &str,
        listener: impl Fn(Option<&EntryId>, Wake) + Send + Sync + 'static,
    ) {
        self.listeners().sessions.insert(session.to_owned(), Arc::new(listener));
    }

    /// From now on `listener` hears what is said of all entries that no session listens for.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code, reason = "others have sessions"))]
    pub(crate) fn listen_to_others(&self, listener: impl Fn(Option<&EntryId>, Wake) + Send + Sync + 'static) {
        self.listeners().others = Some(Arc::new(listener));
    }

    /// Nobody hears of the entries of `session` any more.
    pub(crate) fn stop(&self, session: &str) {
        self.listeners().sessions.remove(session);
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
