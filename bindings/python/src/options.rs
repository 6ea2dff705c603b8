//! The options of a lock, by the names that they have in Python. Times are in seconds.

use std::time::Duration;

use lockkeeper::{Kind, Lock, Wait};
use pyo3::prelude::*;

use crate::errors;

/// The options that were given; see `lockkeeper/_options.py` for their meaning.
#[derive(FromPyObject, Default)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    #[pyo3(default)]
    ttl: Option<f64>,
    #[pyo3(default)]
    renew: Option<bool>,
    #[pyo3(default)]
    wait: Option<WaitOption>,
    #[pyo3(default)]
    subtree: Option<bool>,
    #[pyo3(default)]
    max_hold: Option<f64>,
    #[pyo3(default)]
    min_hold: Option<f64>,
    #[pyo3(default)]
    keep_closed: Option<f64>,
    #[pyo3(default)]
    lock_delay: Option<f64>,
    #[pyo3(default)]
    linger: Option<f64>,
    #[pyo3(default)]
    min_validity: Option<f64>,
    #[pyo3(default)]
    grace: Option<f64>,
    #[pyo3(default)]
    value: Option<Vec<u8>>,
    meta: Vec<(String, String)>,
}

/// Whether to wait, or for how long.
#[derive(FromPyObject)]
pub(crate) enum WaitOption {
    Bool(bool),
    Seconds(f64),
}

impl WaitOption {
    pub(crate) fn to_wait(&self) -> PyResult<Wait> {
        Ok(match self {
            Self::Bool(true) => Wait::Forever,
            Self::Bool(false) => Wait::No,
            Self::Seconds(limit) => Wait::For(seconds("wait", *limit)?),
        })
    }
}

/// A time in seconds.
///
/// # Errors
/// It is negative, no number, or too large.
pub(crate) fn seconds(option: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| errors::invalid_option(option, &value.to_string(), "give seconds, 0 or more"))
}

impl Options {
    /// # Errors
    /// `InvalidOption`.
    pub(crate) fn on<F: Kind>(&self, mut lock: Lock<F>) -> PyResult<Lock<F>> {
        type Set<F> = fn(Lock<F>, Duration) -> Lock<F>;
        let times: [(&str, Option<f64>, Set<F>); 8] = [
            ("ttl", self.ttl, Lock::ttl),
            ("max_hold", self.max_hold, Lock::max_hold),
            ("min_hold", self.min_hold, Lock::min_hold),
            ("keep_closed", self.keep_closed, Lock::keep_closed),
            ("lock_delay", self.lock_delay, Lock::lock_delay),
            ("linger", self.linger, Lock::linger),
            ("min_validity", self.min_validity, Lock::min_validity),
            ("grace", self.grace, Lock::grace),
        ];
        for (option, value, set) in times {
            if let Some(value) = value {
                lock = set(lock, seconds(option, value)?);
            }
        }
        if self.renew == Some(false) {
            lock = lock.no_renew();
        }
        if self.subtree == Some(true) {
            lock = lock.subtree();
        }
        if let Some(wait) = &self.wait {
            lock = lock.wait(wait.to_wait()?);
        }
        if let Some(value) = &self.value {
            lock = lock.value(value.clone());
        }
        for (key, value) in &self.meta {
            lock = lock.meta(key, value);
        }
        Ok(lock)
    }
}
