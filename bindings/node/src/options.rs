//! The options of a lock, by the names that they have in JavaScript. Times are in milliseconds.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper::{Kind, Lock, Wait};
use napi::Either;
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

use crate::errors::NativeError;

/// The options that were given; see `lib/index.d.cts` for their meaning.
#[napi(object, object_to_js = false)]
pub struct OptionsOf {
    pub ttl: Option<f64>,
    pub renew: Option<bool>,
    pub wait: Option<Either<bool, f64>>,
    pub subtree: Option<bool>,
    pub max_hold: Option<f64>,
    pub min_hold: Option<f64>,
    pub keep_closed: Option<f64>,
    pub lock_delay: Option<f64>,
    pub linger: Option<f64>,
    pub min_validity: Option<f64>,
    pub grace: Option<f64>,
    pub value: Option<Uint8Array>,
    pub meta: Option<HashMap<String, String>>,
}

/// Checked options.
pub(crate) struct LockOptions {
    ttl: Option<Duration>,
    renew: bool,
    wait: Option<Wait>,
    subtree: bool,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    keep_closed: Option<Duration>,
    lock_delay: Option<Duration>,
    linger: Option<Duration>,
    min_validity: Option<Duration>,
    grace: Option<Duration>,
    value: Option<Vec<u8>>,
    meta: Vec<(String, String)>,
}

/// A time in milliseconds.
///
/// # Errors
/// It is negative, no number, or too large.
pub(crate) fn milliseconds(option: &'static str, value: f64) -> Result<Duration, NativeError> {
    Duration::try_from_secs_f64(value / 1e3).map_err(|_| NativeError::Option {
        option,
        value: value.to_string(),
        allowed: "give milliseconds, 0 or more",
    })
}

/// Whether to wait, or for how long.
///
/// # Errors
/// As [`milliseconds`].
pub(crate) fn wait(wait: &Either<bool, f64>) -> Result<Wait, NativeError> {
    Ok(match wait {
        Either::A(true) => Wait::Forever,
        Either::A(false) => Wait::No,
        Either::B(limit) => Wait::For(milliseconds("wait", *limit)?),
    })
}

impl TryFrom<OptionsOf> for LockOptions {
    type Error = NativeError;

    fn try_from(given: OptionsOf) -> Result<Self, NativeError> {
        let time = |option, value: Option<f64>| value.map(|value| milliseconds(option, value)).transpose();
        let mut meta: Vec<_> = given.meta.unwrap_or_default().into_iter().collect();
        meta.sort();
        Ok(Self {
            ttl: time("ttl", given.ttl)?,
            renew: given.renew.unwrap_or(true),
            wait: given.wait.as_ref().map(wait).transpose()?,
            subtree: given.subtree.unwrap_or(false),
            max_hold: time("maxHold", given.max_hold)?,
            min_hold: time("minHold", given.min_hold)?,
            keep_closed: time("keepClosed", given.keep_closed)?,
            lock_delay: time("lockDelay", given.lock_delay)?,
            linger: time("linger", given.linger)?,
            min_validity: time("minValidity", given.min_validity)?,
            grace: time("grace", given.grace)?,
            value: given.value.map(|value| value.to_vec()),
            meta,
        })
    }
}

impl LockOptions {
    pub(crate) fn on<F: Kind>(&self, mut lock: Lock<F>) -> Lock<F> {
        type Set<F> = fn(Lock<F>, Duration) -> Lock<F>;
        let times: [(Option<Duration>, Set<F>); 8] = [
            (self.ttl, Lock::ttl),
            (self.max_hold, Lock::max_hold),
            (self.min_hold, Lock::min_hold),
            (self.keep_closed, Lock::keep_closed),
            (self.lock_delay, Lock::lock_delay),
            (self.linger, Lock::linger),
            (self.min_validity, Lock::min_validity),
            (self.grace, Lock::grace),
        ];
        for (value, set) in times {
            if let Some(value) = value {
                lock = set(lock, value);
            }
        }
        if !self.renew {
            lock = lock.no_renew();
        }
        if self.subtree {
            lock = lock.subtree();
        }
        if let Some(wait) = self.wait {
            lock = lock.wait(wait);
        }
        if let Some(value) = &self.value {
            lock = lock.value(value.clone());
        }
        for (key, value) in &self.meta {
            lock = lock.meta(key, value);
        }
        lock
    }
}
