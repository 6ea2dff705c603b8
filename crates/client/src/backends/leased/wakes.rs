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

type Listener = Arc<dyn Fn(Wake) + Send + Sync>;

/// The entries of one client that want to hear. Cheap to clone; clones are the same list.
#[derive(Clone, Default)]
pub(crate) struct Wakes(Arc<Mutex<HashMap<EntryId, Listener>>>);

impl Wakes {
    /// Tells whoever listens for `id`; nobody, if it is over.
    pub(crate) fn deliver(&self, id: &EntryId, wake: Wake) {
        let listener = self.listeners().get(id).cloned();
        // Not under the lock: a listener may stop listening.
        if let Some(listener) = listener {
            listener(wake);
        }
    }

    /// Everyone may have missed something: a connection was lost and made anew.
    pub(crate) fn deliver_to_all(&self, wake: Wake) {
        let listeners: Vec<Listener> = self.listeners().values().cloned().collect();
        listeners.iter().for_each(|listener| listener(wake));
    }

    /// From now on `listener` hears what is said of `id`.
    pub(crate) fn listen(&self, id: &EntryId, listener: impl Fn(Wake) + Send + Sync + 'static) {
        self.listeners().insert(id.clone(), Arc::new(listener));
    }

    /// Nobody hears of `id` any more.
    pub(crate) fn stop(&self, id: &EntryId) {
        self.listeners().remove(id);
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<EntryId, Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
