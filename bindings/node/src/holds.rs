//! Holds.

use std::future::Future;

use lockkeeper::BootInstant;
use lockkeeper_bindings::{AnyHold, CallError, SharedHold};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

use crate::bridge::{Bridge, CallAnswer, within};
use crate::errors::throw;
use crate::options::milliseconds;

/// What JavaScript has of a hold.
pub(crate) struct HoldFacts {
    /// Below 2^53 (rule T3).
    pub(crate) token: Option<f64>,
    pub(crate) slot: Option<u32>,
    /// The number of a partition.
    pub(crate) index: Option<u32>,
}

impl From<&AnyHold> for HoldFacts {
    fn from(hold: &AnyHold) -> Self {
        let token = hold.token().map(|token| token.get() as f64);
        Self { token, slot: hold.slot(), index: hold.index() }
    }
}

impl Bridge {
    /// Reads a hold.
    ///
    /// # Errors
    /// It was released, or is being released.
    fn read<T>(&self, hold: u32, read: impl FnOnce(&AnyHold) -> T) -> napi::Result<T> {
        self.hold(hold).ok_or(CallError::Released).and_then(|hold| hold.read(read)).map_err(throw)
    }

    /// Runs a call about a hold.
    fn begin_on<F>(&self, call: u32, hold: Option<SharedHold>, work: impl FnOnce(SharedHold) -> F)
    where
        F: Future<Output = Result<(), CallError>> + Send + 'static,
    {
        let work = hold.map(work).ok_or(CallError::Released);
        self.begin(call, async move {
            work?.await?;
            Ok(CallAnswer::Nothing)
        });
    }
}

#[napi]
impl Bridge {
    /// Throws `LockLost`, also if less than `need` milliseconds are certain.
    #[napi]
    pub fn check(&self, hold: u32, need: f64) -> napi::Result<()> {
        let need = milliseconds("need", need).map_err(throw)?;
        self.read(hold, |hold| hold.check(need))?.map_err(throw)
    }

    /// The milliseconds for which the hold is certain; `null` if it has no end. Throws `LockLost`.
    #[napi]
    pub fn valid_for(&self, hold: u32) -> napi::Result<Option<f64>> {
        let until = self.read(hold, AnyHold::valid_until)?.map_err(throw)?;
        Ok(until.map(|until| (until - BootInstant::now()).as_secs_f64() * 1e3))
    }

    /// What keeps the lease from being renewed at present.
    #[napi]
    pub fn trouble(&self, hold: u32) -> napi::Result<Option<String>> {
        Ok(self.read(hold, AnyHold::trouble)?.map(|text| text.to_string()))
    }

    /// Whether a partition is wanted by another member.
    #[napi]
    pub fn is_leaving(&self, hold: u32) -> napi::Result<bool> {
        self.read(hold, AnyHold::is_leaving)
    }

    #[napi]
    pub fn verify(&self, call: u32, hold: u32) {
        self.begin_on(call, self.hold(hold), |hold| hold.verify());
    }

    #[napi]
    pub fn set_value(&self, call: u32, hold: u32, value: Uint8Array) {
        let value = value.to_vec();
        self.begin_on(call, self.hold(hold), |hold| hold.set_value(value));
    }

    #[napi]
    pub fn downgrade(&self, call: u32, hold: u32) {
        self.begin_on(call, self.hold(hold), |hold| hold.downgrade());
    }

    /// Waits until a partition is wanted by another member, or it is lost or released.
    #[napi]
    pub fn leaving(&self, call: u32, hold: u32) {
        self.begin_on(call, self.hold(hold), |hold| hold.leaving());
    }

    /// Releases a hold; waits for calls on it that are in progress.
    #[napi]
    pub fn release(&self, call: u32, hold: u32) {
        self.begin_on(call, self.take_hold(hold), |hold| async move { hold.release().await });
    }

    /// Gives a hold up: it is released in the background.
    #[napi]
    pub fn abandon(&self, hold: u32) {
        let kept = self.take_hold(hold);
        within(|| drop(kept));
    }
}
