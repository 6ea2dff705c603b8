//! The options of a lock, by the names that they have in Python. Times are in seconds.

use std::time::Duration;

use lockkeeper::{Token, Wait};
use lockkeeper_bindings::{CallError, LockOptions};
use pyo3::prelude::*;

use crate::errors::exception;

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
    max_waiters: Option<u32>,
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
    cached: Option<bool>,
    #[pyo3(default)]
    cache_for: Option<f64>,
    #[pyo3(default)]
    grace: Option<f64>,
    #[pyo3(default)]
    value: Option<Vec<u8>>,
    #[pyo3(default)]
    holding: Option<Vec<u64>>,
    meta: Vec<(String, String)>,
}

/// Whether to wait, or for how long.
#[derive(Clone, Copy, FromPyObject)]
pub(crate) enum WaitOption {
    Bool(bool),
    Seconds(f64),
}

impl WaitOption {
    pub(crate) fn to_wait(self) -> PyResult<Wait> {
        Ok(match self {
            Self::Bool(true) => Wait::Forever,
            Self::Bool(false) => Wait::No,
            Self::Seconds(limit) => Wait::For(seconds("wait", limit)?),
        })
    }
}

/// A time in seconds.
///
/// # Errors
/// It is negative, no number, or too large.
pub(crate) fn seconds(option: &'static str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        let (value, allowed) = (value.to_string(), "give seconds, from 0 to 1.8e19");
        exception(CallError::Option { option, value, allowed })
    })
}

/// The number of a token.
///
/// # Errors
/// `InvalidOption`: it is none.
pub(crate) fn token(number: u64) -> PyResult<Token> {
    Token::new(number).ok_or_else(|| {
        let (option, value) = ("token", number.to_string());
        let allowed = "give the token of the guard: 1 to 9007199254740991";
        exception(CallError::Option { option, value, allowed })
    })
}

impl Options {
    /// # Errors
    /// `InvalidOption`.
    pub(crate) fn checked(self) -> PyResult<LockOptions> {
        let time = |option, value: Option<f64>| value.map(|value| seconds(option, value)).transpose();
        Ok(LockOptions {
            ttl: time("ttl", self.ttl)?,
            no_renew: self.renew == Some(false),
            wait: self.wait.map(WaitOption::to_wait).transpose()?,
            max_waiters: self.max_waiters,
            subtree: self.subtree == Some(true),
            max_hold: time("max_hold", self.max_hold)?,
            min_hold: time("min_hold", self.min_hold)?,
            keep_closed: time("keep_closed", self.keep_closed)?,
            lock_delay: time("lock_delay", self.lock_delay)?,
            linger: time("linger", self.linger)?,
            min_validity: time("min_validity", self.min_validity)?,
            cached: self.cached == Some(true),
            cache_for: time("cache_for", self.cache_for)?,
            grace: time("grace", self.grace)?,
            value: self.value,
            meta: self.meta,
            holding: self.holding.unwrap_or_default().into_iter().map(token).collect::<PyResult<_>>()?,
        })
    }
}
