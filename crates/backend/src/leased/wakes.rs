//! Delivery of a lock service's messages about entries to the sessions that own them, and to waiting
//! acquires.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::store::EntryId;

/// An unsolicited message about an entry. May be lost, and may arrive twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// The lock may be free for the entry: try again after this time.
    Try(Duration),
    /// An operator broke the entry's hold.
    Revoked,
    /// The entry neither holds nor waits any more.
    Gone,
}

/// Receives the messages about entries; an id of `None` stands for every entry.
type Listener = Arc<dyn Fn(Option<&EntryId>, Wake) + Send + Sync>;

/// The listeners of one client's sessions. Cheap to clone; clones share one list.
#[derive(Clone, Default)]
pub struct Wakes(Arc<Mutex<Listeners>>);

#[derive(Default)]
struct Listeners {
    sessions: HashMap<String, Listener>,
    /// Receives messages about entries whose session is not in `sessions`.
    others: Option<Listener>,
}

impl Wakes {
    /// Delivers a message to the session of `id`; if the session has no listener, to the listener for other
    /// entries, if any.
    pub fn deliver(&self, id: &EntryId, wake: Wake) {
        let listeners = self.listeners();
        let listener = listeners.sessions.get(id.session()).or(listeners.others.as_ref()).cloned();
        // The mutex is released first: a listener may call `stop`.
        drop(listeners);
        if let Some(listener) = listener {
            listener(Some(id), wake);
        }
    }

    /// Delivers a message to all listeners. Used after a reconnect: any listener may have missed a message.
    pub fn deliver_to_all(&self, wake: Wake) {
        let listeners = self.listeners();
        let all: Vec<Listener> = listeners.sessions.values().chain(&listeners.others).cloned().collect();
        drop(listeners);
        all.iter().for_each(|listener| listener(None, wake));
    }

    /// Registers the listener of a session.
    pub fn listen(&self, session: &str, listener: impl Fn(Option<&EntryId>, Wake) + Send + Sync + 'static) {
        self.listeners().sessions.insert(session.to_owned(), Arc::new(listener));
    }

    /// Registers the listener for entries of no registered session.
    pub fn listen_to_others(&self, listener: impl Fn(Option<&EntryId>, Wake) + Send + Sync + 'static) {
        self.listeners().others = Some(Arc::new(listener));
    }

    /// Removes the listener of a session.
    pub fn stop(&self, session: &str) {
        self.listeners().sessions.remove(session);
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a waiting acquire before its next attempt is due. Only one task waits.
#[derive(Default)]
pub(super) struct WakeUp {
    /// The earliest due time of the wake-ups since the last attempt.
    due: Mutex<Option<Instant>>,
    changed: Notify,
}

impl WakeUp {
    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self, after: Duration) {
        // A time that can't be represented never comes.
        let Some(at) = Instant::now().checked_add(after) else { return };
        let mut due = self.due();
        *due = Some(due.map_or(at, |earlier| earlier.min(at)));
        drop(due);
        self.changed.notify_one();
    }

    /// Forgets the wake-ups so far.
    pub(super) fn clear(&self) {
        *self.due() = None;
    }

    /// Waits until the next attempt is due: after `again`, or earlier if a wake-up asks for it.
    pub(super) async fn until_due(&self, again: Duration) {
        let again = Instant::now() + again;
        loop {
            let due = self.due().map_or(again, |due| due.min(again));
            if due <= Instant::now() {
                // tokio rounds timers up to whole milliseconds: even an elapsed sleep would take 1 ms.
                return;
            }
            tokio::select! {
                () = sleep_until(due) => return,
                () = self.changed.notified() => {}
            }
        }
    }
}
