//! The options of a lock.

use std::time::Duration;

use lockkeeper::{Kind, Lock, Token, Wait};

/// The options of a lock that were given; each that is `None` or false has the library's default.
#[derive(Clone, Debug, Default)]
pub struct LockOptions {
    pub ttl: Option<Duration>,
    pub no_renew: bool,
    pub wait: Option<Wait>,
    pub max_waiters: Option<u32>,
    pub subtree: bool,
    pub max_hold: Option<Duration>,
    pub min_hold: Option<Duration>,
    pub keep_closed: Option<Duration>,
    pub lock_delay: Option<Duration>,
    pub linger: Option<Duration>,
    pub min_validity: Option<Duration>,
    pub cached: bool,
    pub cache_for: Option<Duration>,
    pub grace: Option<Duration>,
    pub value: Option<Vec<u8>>,
    pub meta: Vec<(String, String)>,
    /// Of holds that the caller keeps until the acquire has ended.
    pub holding: Vec<Token>,
}

impl LockOptions {
    pub(crate) fn on<F: Kind>(&self, mut lock: Lock<F>) -> Lock<F> {
        type Set<F> = fn(Lock<F>, Duration) -> Lock<F>;
        let times: [(Option<Duration>, Set<F>); 9] = [
            (self.ttl, Lock::ttl),
            (self.max_hold, Lock::max_hold),
            (self.min_hold, Lock::min_hold),
            (self.keep_closed, Lock::keep_closed),
            (self.lock_delay, Lock::lock_delay),
            (self.linger, Lock::linger),
            (self.min_validity, Lock::min_validity),
            (self.cache_for, Lock::cache_for),
            (self.grace, Lock::grace),
        ];
        for (value, set) in times {
            if let Some(value) = value {
                lock = set(lock, value);
            }
        }
        if self.no_renew {
            lock = lock.no_renew();
        }
        if self.cached {
            lock = lock.cached();
        }
        if self.subtree {
            lock = lock.subtree();
        }
        if let Some(wait) = self.wait {
            lock = lock.wait(wait);
        }
        if let Some(most) = self.max_waiters {
            lock = lock.max_waiters(most);
        }
        if let Some(value) = &self.value {
            lock = lock.value(value.clone());
        }
        for (key, value) in &self.meta {
            lock = lock.meta(key, value);
        }
        self.holding.iter().fold(lock, |lock, &token| lock.holding_token(token))
    }
}
