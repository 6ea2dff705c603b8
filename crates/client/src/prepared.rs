//! What a cached lock prepares at its first acquire, so that its sections do no work twice.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::encode_meta;
use lockkeeper_core::LockName;

use crate::error::AcquireError;
use crate::guard::Guard;
use crate::kind::Kind;
use crate::lock::Lock;
use crate::machine::cache::CachedLock;
use crate::session::{Caching, Session};

/// The session and the content of a cached lock. Made once its options were checked.
pub(crate) struct Prepared {
    session: Arc<Session>,
    lock: Arc<CachedLock>,
}

/// The limits of [`Lock::cache_for`].
const CACHE_FOR_MIN: Duration = Duration::from_millis(1);
const CACHE_FOR_MAX: Duration = Duration::from_secs(3_600);

impl<F: Kind> Lock<F> {
    /// Caches the lock: after 3 acquires in a row that met no other client, its hold stays with this client
    /// after its release. The next acquires of the same lock then need no round trip, and each one has a
    /// fresh token. As soon as another client wants the lock, the lock service recalls the hold: it is
    /// released at once, or at the end of the section that uses it. After two recalls within 10 s, the lock
    /// is not cached for 10 s.
    ///
    /// For a lock that one client acquires again and again while others rarely want it. If this process dies,
    /// others wait for the ttl (or [`Lock::linger`]) also while the lock is only cached. Only one task of a
    /// client at a time uses a cached hold: another one asks the lock service, which recalls it. An acquire
    /// serves only locks with the same names, [`Lock::subtree`], [`Lock::value`] and [`Lock::meta`]. Keep the
    /// lock and acquire it again, since a new one has to be prepared first. The sections of one hold share
    /// its fate: a token of [`Guard::lost`] that is kept beyond its section fires with the hold.
    ///
    /// Only an exclusive lock with renewal, and without [`Lock::keep_closed`], [`Lock::min_hold`] and
    /// [`Lock::max_hold`], and only where the lock service can recall a hold
    /// ([`Capabilities::cached`](crate::Capabilities::cached)).
    pub fn cached(self) -> Self {
        self.with(|options| options.cached = true)
    }

    /// How long a hold of a [`Lock::cached`] lock stays with this client without a section. 1 ms to 1 h, 10 s
    /// by default. A client keeps at most 4,096 of them in a session, and then releases the one whose time
    /// ends first.
    pub fn cache_for(self, idle: Duration) -> Self {
        self.with(|options| options.cache_for = idle)
    }

    /// What a cached lock must not be, apart from what [`lockkeeper_core::validate`] refuses.
    pub(crate) fn check_cached(&self) -> Result<(), AcquireError> {
        let options = &self.options;
        if !options.cached {
            return Ok(());
        }
        if !(CACHE_FOR_MIN..=CACHE_FOR_MAX).contains(&options.cache_for) {
            let allowed = format!("{CACHE_FOR_MIN:?} to {CACHE_FOR_MAX:?} are allowed");
            return Err(AcquireError::invalid("cache_for", format!("{:?}", options.cache_for), allowed));
        }
        let against = [
            (!options.min_hold.is_zero(), "min_hold", "each section ends at once"),
            (options.max_hold.is_some(), "max_hold", "its hold outlives its sections"),
            (!options.renew, "no_renew", "its hold is kept by renewals"),
        ];
        match against.into_iter().find(|(is_set, ..)| *is_set) {
            None => Ok(()),
            Some((_, option, why)) => {
                let allowed = format!("but a cached lock can't have it: {why}; leave one of the two out");
                Err(AcquireError::invalid(option, "set".to_owned(), allowed))
            }
        }
    }

    /// Prepares sections in this session, if the lock is a cached one.
    pub(crate) fn prepare(&self, session: &Arc<Session>, names: &[LockName]) -> Option<Caching> {
        let options = &self.options;
        if !options.cached {
            return None;
        }
        let prepared = self.prepared.get_or_init(|| {
            let (value, meta) = (options.value.as_slice().into(), encode_meta(&options.meta));
            let lock = CachedLock::new(names.to_vec(), options.subtree, value, meta);
            Arc::new(Prepared { session: session.clone(), lock: Arc::new(lock) })
        });
        Some(Caching { lock: prepared.lock.clone(), cache_for: options.cache_for })
    }

    /// Begins a section with a cached hold, if there is one that may be used.
    pub(crate) fn begin_section(&self) -> Option<Guard<F>> {
        let Prepared { session, lock } = &**self.prepared.get()?;
        session.begin_section(lock, self.options.min_validity).map(Guard::new)
    }
}
