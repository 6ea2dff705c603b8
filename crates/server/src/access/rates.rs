//! Limits each caller's requests per second.
//!
//! Responsible for: a caller that has used up its rate stays limited when files are reloaded or when many
//! other callers arrive, and callers that are silent for a while use no memory.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use parking_lot::Mutex;

use super::identity::Identity;

/// Above this number of callers, the limiter forgets callers whose rate has recovered completely: they are
/// treated like new ones anyway.
const REMEMBERED: usize = 4_096;

/// One rate limiter for each configured rate. A limiter counts each of its callers separately.
#[derive(Default)]
pub(super) struct Rates(Mutex<BTreeMap<NonZeroU32, Arc<Limiter>>>);

struct Limiter {
    callers: DefaultKeyedRateLimiter<Identity>,
    /// The number of callers at which the next sweep forgets the silent ones.
    sweep_at: Mutex<usize>,
}

impl Rates {
    /// Counts a request of a caller that may make `per_second` requests per second, and as many at once.
    ///
    /// # Errors
    /// The rate is exceeded; the message is for the caller.
    pub(super) fn count(&self, per_second: NonZeroU32, caller: &Identity) -> Result<(), String> {
        let limiter = {
            let mut limiters = self.0.lock();
            limiters.entry(per_second).or_insert_with(|| Arc::new(Limiter::new(per_second))).clone()
        };
        limiter.forget_silent();
        limiter.callers.check_key(caller).map_err(|not_until| {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            format!(
                "quota: {caller} may ask for {per_second} things a second at this node; try again in {} ms, or ask the \
                 service's operators for more",
                wait.as_millis() + 1
            )
        })
    }

    /// Removes the limiters without recent callers, such as those of rates that are configured no longer.
    pub(super) fn forget_unused(&self) {
        let mut limiters = self.0.lock();
        limiters.retain(|_, limiter| {
            limiter.callers.retain_recent();
            !limiter.callers.is_empty()
        });
    }
}

impl Limiter {
    fn new(per_second: NonZeroU32) -> Self {
        let callers = RateLimiter::keyed(governor::Quota::per_second(per_second));
        Self { callers, sweep_at: Mutex::new(REMEMBERED) }
    }

    /// Forgets silent callers. A sweep visits all callers, so the next one is due when the number of callers
    /// has doubled.
    fn forget_silent(&self) {
        let mut sweep_at = self.sweep_at.lock();
        if self.callers.len() >= *sweep_at {
            self.callers.retain_recent();
            *sweep_at = REMEMBERED.max(2 * self.callers.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> Identity {
        Identity::new("alice").unwrap()
    }

    fn per_second(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn request_above_the_rate_is_told_when_to_come_again() {
        let rates = Rates::default();
        assert!((0..3).all(|_| rates.count(per_second(3), &alice()).is_ok()), "a second's worth at once");
        let refusal = rates.count(per_second(3), &alice()).unwrap_err();
        assert!(refusal.starts_with("quota: alice may ask for 3 things a second"), "{refusal}");
        let ms = refusal.split("again in ").nth(1).unwrap().split(' ').next().unwrap();
        assert!((1..=334).contains(&ms.parse::<u32>().unwrap()), "{refusal}");
        assert!(rates.count(per_second(3), &Identity::new("bob").unwrap()).is_ok());
    }

    /// One request in an hour, and a second allowed at once, so that no time of the test's own matters.
    #[test]
    fn many_callers_and_new_files_give_no_caller_a_new_burst() {
        let rates = Rates::default();
        let slow = Limiter {
            callers: RateLimiter::keyed(
                governor::Quota::with_period(std::time::Duration::from_secs(3_600)).unwrap(),
            ),
            sweep_at: Mutex::new(REMEMBERED),
        };
        rates.0.lock().insert(per_second(1), Arc::new(slow));
        assert!(rates.count(per_second(1), &alice()).is_ok());
        for number in 0..3 * REMEMBERED {
            let other = Identity::new(&format!("caller-{number}")).unwrap();
            assert!(rates.count(per_second(1), &other).is_ok());
        }
        rates.forget_unused();
        assert!(rates.count(per_second(1), &alice()).is_err());
    }

    #[test]
    fn silent_callers_are_forgotten() {
        let rates = Rates::default();
        // So many a second that a caller counts as silent after a nanosecond.
        let many = per_second(1_000_000_000);
        for number in 0..2 * REMEMBERED {
            let other = Identity::new(&format!("caller-{number}")).unwrap();
            assert!(rates.count(many, &other).is_ok());
        }
        let limiter = rates.0.lock()[&many].clone();
        assert!(limiter.callers.len() <= REMEMBERED, "{}", limiter.callers.len());
        rates.forget_unused();
        assert!(rates.0.lock().is_empty());
    }
}
