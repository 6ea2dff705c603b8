//! Clients and locks.

use lockkeeper_bindings::{AnyLock, AnyLocks};
use napi::Either;
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

use crate::bridge::{Bridge, CallAnswer};
use crate::errors::throw;
use crate::options::{self, OptionsOf, milliseconds};

/// A client of a lock service.
#[napi(js_name = "Locks")]
pub struct NativeLocks(pub(crate) AnyLocks);

/// A lock that can be acquired.
#[napi(js_name = "Lock")]
pub struct NativeLock(AnyLock);

#[napi]
impl Bridge {
    /// Connects to the lock service of a URL.
    #[napi]
    pub fn connect(&self, call: u32, url: String, label: Option<String>) {
        self.begin(call, async move {
            let connected = AnyLocks::connect(&url, label.as_deref()).await?;
            Ok(CallAnswer::object(NativeLocks(connected)))
        });
    }

    /// Ends the sessions of a client, which releases its holds.
    #[napi]
    pub fn close(&self, call: u32, locks: &NativeLocks, limit: f64) -> napi::Result<()> {
        let (locks, limit) = (locks.0.clone(), milliseconds("limit", limit).map_err(throw)?);
        self.begin(call, async move {
            let _ = locks.shutdown(limit).await;
            Ok(CallAnswer::Nothing)
        });
        Ok(())
    }

    #[napi]
    pub fn acquire(&self, call: u32, lock: &NativeLock, wait: Option<Either<bool, f64>>) -> napi::Result<()> {
        let wait = wait.as_ref().map(options::wait).transpose().map_err(throw)?;
        let lock = lock.0.clone().wait(wait);
        self.begin_hold(call, async move { Ok(Some(lock.acquire().await?)) });
        Ok(())
    }

    /// Acquires a lock if it is free; else `null`.
    #[napi]
    pub fn try_acquire(&self, call: u32, lock: &NativeLock) {
        let lock = lock.0.clone();
        self.begin_hold(call, async move { Ok(lock.try_acquire().await?) });
    }
}

#[napi]
impl NativeLocks {
    /// The same client, whose holds have tokens.
    #[napi]
    pub fn fenced(&self) -> napi::Result<NativeLocks> {
        self.0.fenced().map(Self).map_err(throw)
    }

    /// What the lock service can do: name, and whether it can.
    #[napi]
    pub fn abilities(&self) -> Vec<(String, bool)> {
        let abilities = self.0.capabilities().abilities();
        abilities.into_iter().map(|(name, can)| (name.to_owned(), can)).collect()
    }

    /// The promises: number, name, and how it is kept.
    #[napi]
    pub fn promises(&self) -> Vec<(u32, String, String)> {
        let promise = |(number, name, kept): (usize, &str, _)| {
            (number as u32, name.to_owned(), ToString::to_string(kept))
        };
        self.0.capabilities().promises.list().into_iter().map(promise).collect()
    }

    #[napi]
    pub fn mutex(&self, name: String, options: OptionsOf) -> napi::Result<NativeLock> {
        Ok(NativeLock(self.0.mutex(&name, &options.checked()?)))
    }

    #[napi]
    pub fn read(&self, name: String, options: OptionsOf) -> napi::Result<NativeLock> {
        Ok(NativeLock(self.0.read(&name, &options.checked()?)))
    }

    #[napi]
    pub fn write(&self, name: String, options: OptionsOf) -> napi::Result<NativeLock> {
        Ok(NativeLock(self.0.write(&name, &options.checked()?)))
    }

    #[napi]
    pub fn semaphore(
        &self,
        name: String,
        permits: Option<u32>,
        options: OptionsOf,
    ) -> napi::Result<NativeLock> {
        Ok(NativeLock(self.0.semaphore(&name, permits, &options.checked()?)))
    }

    #[napi]
    pub fn all(&self, names: Vec<String>, options: OptionsOf) -> napi::Result<NativeLock> {
        Ok(NativeLock(self.0.all(&names, &options.checked()?)))
    }

    #[napi]
    pub fn rate(&self, name: String, count: u32, per: f64, options: OptionsOf) -> napi::Result<NativeLock> {
        let per = milliseconds("per", per).map_err(throw)?;
        Ok(NativeLock(self.0.rate(&name, count, per, &options.checked()?)))
    }

    #[napi]
    pub fn striped(
        &self,
        name: String,
        stripes: u32,
        key: Uint8Array,
        options: OptionsOf,
    ) -> napi::Result<NativeLock> {
        Ok(NativeLock(self.0.striped(&name, stripes, &key, &options.checked()?)))
    }
}
