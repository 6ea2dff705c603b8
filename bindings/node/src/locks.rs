//! Clients and locks.

use lockkeeper::{Fenced, Unfenced};
use napi::Either;
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

use crate::bridge::{Bridge, CallAnswer};
use crate::errors::throw;
use crate::holds::AnyHold;
use crate::options::{self, LockOptions, OptionsOf, milliseconds};

/// One of two types, of locks without tokens and of fenced ones.
#[derive(Clone)]
pub(crate) enum Kinds<P, F> {
    Plain(P),
    Fenced(F),
}

pub(crate) type AnyLocks = Kinds<lockkeeper::Locks<Unfenced>, lockkeeper::Locks<Fenced>>;
type AnyLock = Kinds<lockkeeper::Lock<Unfenced>, lockkeeper::Lock<Fenced>>;

macro_rules! each {
    ($either:expr, $it:ident => $do:expr) => {
        match $either {
            Kinds::Plain($it) => Kinds::Plain($do),
            Kinds::Fenced($it) => Kinds::Fenced($do),
        }
    };
}
macro_rules! with {
    ($either:expr, $it:ident => $do:expr) => {
        match $either {
            Kinds::Plain($it) => $do,
            Kinds::Fenced($it) => $do,
        }
    };
}
pub(crate) use with;

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
            let connected = match label {
                Some(label) => lockkeeper::Locks::connect_as(&url, &label).await,
                None => lockkeeper::Locks::connect(&url).await,
            };
            Ok(CallAnswer::object(NativeLocks(Kinds::Plain(connected?))))
        });
    }

    /// Ends the sessions of a client, which releases its holds.
    #[napi]
    pub fn close(&self, call: u32, locks: &NativeLocks, limit: f64) -> napi::Result<()> {
        let (locks, limit) = (locks.0.clone(), milliseconds("limit", limit).map_err(throw)?);
        self.begin(call, async move {
            let _ = with!(locks, locks => locks.shutdown(limit).await);
            Ok(CallAnswer::Nothing)
        });
        Ok(())
    }

    #[napi]
    pub fn acquire(&self, call: u32, lock: &NativeLock, wait: Option<Either<bool, f64>>) -> napi::Result<()> {
        let mut lock = lock.0.clone();
        if let Some(wait) = wait {
            let wait = options::wait(&wait).map_err(throw)?;
            lock = each!(lock, lock => lock.wait(wait));
        }
        self.begin_hold(call, async move {
            Ok(Some(match lock {
                Kinds::Plain(lock) => AnyHold::Plain(lock.acquire().await?),
                Kinds::Fenced(lock) => AnyHold::Fenced(lock.acquire().await?),
            }))
        });
        Ok(())
    }

    /// Acquires a lock if it is free; else `null`.
    #[napi]
    pub fn try_acquire(&self, call: u32, lock: &NativeLock) {
        let lock = lock.0.clone();
        self.begin_hold(call, async move {
            Ok(match lock {
                Kinds::Plain(lock) => lock.try_acquire().await?.map(AnyHold::Plain),
                Kinds::Fenced(lock) => lock.try_acquire().await?.map(AnyHold::Fenced),
            })
        });
    }
}

#[napi]
impl NativeLocks {
    /// The same client, whose holds have tokens.
    #[napi]
    pub fn fenced(&self) -> napi::Result<NativeLocks> {
        let fenced = match self.0.clone() {
            Kinds::Plain(locks) => locks.fenced().map_err(|error| throw(error.into()))?,
            Kinds::Fenced(locks) => locks,
        };
        Ok(Self(Kinds::Fenced(fenced)))
    }

    /// What the lock service can do: name, and whether it can.
    #[napi]
    pub fn abilities(&self) -> Vec<(String, bool)> {
        let abilities = with!(&self.0, locks => locks.capabilities().abilities());
        abilities.into_iter().map(|(name, can)| (name.to_owned(), can)).collect()
    }

    /// The promises: number, name, and how it is kept.
    #[napi]
    pub fn promises(&self) -> Vec<(u32, String, String)> {
        let promises = with!(&self.0, locks => locks.capabilities().promises);
        let promise = |(number, name, kept): (usize, &str, _)| {
            (number as u32, name.to_owned(), ToString::to_string(kept))
        };
        promises.list().into_iter().map(promise).collect()
    }

    #[napi]
    pub fn mutex(&self, name: String, options: OptionsOf) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        Ok(NativeLock(each!(&self.0, locks => options.on(locks.mutex(&name)))))
    }

    #[napi]
    pub fn read(&self, name: String, options: OptionsOf) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        Ok(NativeLock(each!(&self.0, locks => options.on(locks.rw(&name).read()))))
    }

    #[napi]
    pub fn write(&self, name: String, options: OptionsOf) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        Ok(NativeLock(each!(&self.0, locks => options.on(locks.rw(&name).write()))))
    }

    #[napi]
    pub fn semaphore(
        &self,
        name: String,
        permits: Option<u32>,
        options: OptionsOf,
    ) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        Ok(NativeLock(match permits {
            Some(permits) => each!(&self.0, locks => options.on(locks.semaphore(&name, permits))),
            None => each!(&self.0, locks => options.on(locks.semaphore_in_force(&name))),
        }))
    }

    #[napi]
    pub fn all(&self, names: Vec<String>, options: OptionsOf) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        Ok(NativeLock(each!(&self.0, locks => options.on(locks.all(&names)))))
    }

    #[napi]
    pub fn rate(&self, name: String, count: u32, per: f64, options: OptionsOf) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        let per = milliseconds("per", per).map_err(throw)?;
        Ok(NativeLock(each!(&self.0, locks => options.on(locks.rate(&name, count, per)))))
    }

    #[napi]
    pub fn striped(
        &self,
        name: String,
        stripes: u32,
        key: Uint8Array,
        options: OptionsOf,
    ) -> napi::Result<NativeLock> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        Ok(NativeLock(each!(&self.0, locks => options.on(locks.striped(&name, stripes).for_key(&key)))))
    }
}
