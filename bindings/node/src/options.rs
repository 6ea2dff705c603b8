//! The options of a lock, by the names that they have in JavaScript. Times are in milliseconds.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper::{Token, Wait};
use lockkeeper_bindings::{CallError, LockOptions};
use napi::Either;
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

use crate::errors::throw;

/// The options that were given; see `lib/index.d.cts` for their meaning.
#[napi(object, object_to_js = false)]
pub struct OptionsOf {
    pub ttl: Option<f64>,
    pub renew: Option<bool>,
    pub wait: Option<Either<bool, f64>>,
    pub max_waiters: Option<u32>,
    pub subtree: Option<bool>,
    pub max_hold: Option<f64>,
    pub min_hold: Option<f64>,
    pub keep_closed: Option<f64>,
    pub lock_delay: Option<f64>,
    pub linger: Option<f64>,
    pub min_validity: Option<f64>,
    pub cached: Option<bool>,
    pub cache_for: Option<f64>,
    pub grace: Option<f64>,
    pub value: Option<Uint8Array>,
    pub meta: Option<HashMap<String, String>>,
    pub holding: Option<Vec<f64>>,
}

/// A time in milliseconds.
///
/// # Errors
/// It is negative, no number, or too large.
pub(crate) fn milliseconds(option: &'static str, value: f64) -> Result<Duration, CallError> {
    Duration::try_from_secs_f64(value / 1e3).map_err(|_| CallError::Option {
        option,
        value: value.to_string(),
        allowed: "give milliseconds, from 0 to 1.8e22",
    })
}

/// A token that JavaScript has given.
///
/// # Errors
/// It is none.
pub(crate) fn token_of(value: f64) -> Result<Token, CallError> {
    let whole = (value.fract() == 0.0 && value >= 1.0).then_some(value as u64);
    whole.and_then(Token::new).ok_or_else(|| CallError::Option {
        option: "token",
        value: value.to_string(),
        allowed: "give a guard's token: 1 to 2^53 - 1",
    })
}

/// Whether to wait, or for how long.
///
/// # Errors
/// As [`milliseconds`].
pub(crate) fn wait(wait: &Either<bool, f64>) -> Result<Wait, CallError> {
    Ok(match wait {
        Either::A(true) => Wait::Forever,
        Either::A(false) => Wait::No,
        Either::B(limit) => Wait::For(milliseconds("wait", *limit)?),
    })
}

impl OptionsOf {
    /// # Errors
    /// A time is negative, no number, or too large.
    pub(crate) fn checked(self) -> napi::Result<LockOptions> {
        self.options().map_err(throw)
    }

    fn options(self) -> Result<LockOptions, CallError> {
        let time = |option, value: Option<f64>| value.map(|value| milliseconds(option, value)).transpose();
        let mut meta: Vec<_> = self.meta.unwrap_or_default().into_iter().collect();
        meta.sort();
        Ok(LockOptions {
            ttl: time("ttl", self.ttl)?,
            no_renew: self.renew == Some(false),
            wait: self.wait.as_ref().map(wait).transpose()?,
            max_waiters: self.max_waiters,
            subtree: self.subtree == Some(true),
            max_hold: time("maxHold", self.max_hold)?,
            min_hold: time("minHold", self.min_hold)?,
            keep_closed: time("keepClosed", self.keep_closed)?,
            lock_delay: time("lockDelay", self.lock_delay)?,
            linger: time("linger", self.linger)?,
            min_validity: time("minValidity", self.min_validity)?,
            cached: self.cached == Some(true),
            cache_for: time("cacheFor", self.cache_for)?,
            grace: time("grace", self.grace)?,
            value: self.value.map(|value| value.to_vec()),
            meta,
            holding: self.holding.unwrap_or_default().into_iter().map(token_of).collect::<Result<_, _>>()?,
        })
    }
}
