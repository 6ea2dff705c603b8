//! Clients and locks.

use std::time::Duration;

use lockkeeper::{Fenced, Unfenced};
use pyo3::prelude::*;

use crate::calls::{InLoop, IntoObject, call};
use crate::errors::{self, CallError};
use crate::guard::AnyHold;
use crate::options::{Options, WaitOption, seconds};
use crate::process::Owned;

/// One of two types, of locks without tokens and of fenced ones.
#[derive(Clone)]
pub(crate) enum Either<P, F> {
    Plain(P),
    Fenced(F),
}

pub(crate) type AnyLocks = Either<lockkeeper::Locks<Unfenced>, lockkeeper::Locks<Fenced>>;
type AnyLock = Either<lockkeeper::Lock<Unfenced>, lockkeeper::Lock<Fenced>>;

macro_rules! each {
    ($either:expr, $it:ident => $do:expr) => {
        match $either {
            Either::Plain($it) => Either::Plain($do),
            Either::Fenced($it) => Either::Fenced($do),
        }
    };
}
macro_rules! with {
    ($either:expr, $it:ident => $do:expr) => {
        match $either {
            Either::Plain($it) => $do,
            Either::Fenced($it) => $do,
        }
    };
}
pub(crate) use with;

/// A client of a lock service.
#[pyclass(frozen, name = "Locks")]
pub(crate) struct NativeLocks(pub(crate) Owned<AnyLocks>);

impl IntoObject for lockkeeper::Locks {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, NativeLocks(Owned::new(Either::Plain(self))))?.into_any())
    }
}

/// Connects to the lock service of a URL.
#[pyfunction]
#[pyo3(signature = (url, label=None, place=None))]
pub(crate) fn connect(
    py: Python<'_>,
    url: String,
    label: Option<String>,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    call(py, place, async move {
        let connected = match label {
            Some(label) => lockkeeper::Locks::connect_as(&url, &label).await,
            None => lockkeeper::Locks::connect(&url).await,
        };
        connected.map_err(CallError::from)
    })
}

/// A number of closed clients, and of those that are left.
impl IntoObject for lockkeeper::ShutdownReport {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok((self.closed, self.left).into_pyobject(py)?.into_any().unbind())
    }
}

#[pymethods]
impl NativeLocks {
    /// The same client, whose holds have tokens.
    fn fenced(&self) -> PyResult<Self> {
        let fenced = match self.0.get()?.clone() {
            Either::Plain(locks) => locks.fenced().map_err(|error| errors::unsupported(&error))?,
            Either::Fenced(locks) => locks,
        };
        Ok(Self(Owned::new(Either::Fenced(fenced))))
    }

    #[getter]
    fn is_fenced(&self) -> PyResult<bool> {
        Ok(matches!(self.0.get()?, Either::Fenced(_)))
    }

    /// What the lock service can do: name, and whether it can.
    fn abilities(&self) -> PyResult<Vec<(&'static str, bool)>> {
        Ok(with!(self.0.get()?, locks => locks.capabilities().abilities().to_vec()))
    }

    /// The promises: number, name, and how it is kept.
    fn promises(&self) -> PyResult<Vec<(usize, &'static str, String)>> {
        let promises = with!(self.0.get()?, locks => locks.capabilities().promises);
        Ok(promises.list().into_iter().map(|(number, name, kept)| (number, name, kept.to_string())).collect())
    }

    fn mutex(&self, name: &str, options: Options) -> PyResult<NativeLock> {
        self.lock(each!(self.0.get()?, locks => options.on(locks.mutex(name))?))
    }

    fn read(&self, name: &str, options: Options) -> PyResult<NativeLock> {
        self.lock(each!(self.0.get()?, locks => options.on(locks.rw(name).read())?))
    }

    fn write(&self, name: &str, options: Options) -> PyResult<NativeLock> {
        self.lock(each!(self.0.get()?, locks => options.on(locks.rw(name).write())?))
    }

    fn semaphore(&self, name: &str, permits: Option<u32>, options: Options) -> PyResult<NativeLock> {
        self.lock(match permits {
            Some(permits) => each!(self.0.get()?, locks => options.on(locks.semaphore(name, permits))?),
            None => each!(self.0.get()?, locks => options.on(locks.semaphore_in_force(name))?),
        })
    }

    fn all(&self, names: Vec<String>, options: Options) -> PyResult<NativeLock> {
        self.lock(each!(self.0.get()?, locks => options.on(locks.all(&names))?))
    }

    fn rate(&self, name: &str, count: u32, per: f64, options: Options) -> PyResult<NativeLock> {
        let per = seconds("per", per)?;
        self.lock(each!(self.0.get()?, locks => options.on(locks.rate(name, count, per))?))
    }

    fn striped(&self, name: &str, stripes: u32, key: Vec<u8>, options: Options) -> PyResult<NativeLock> {
        self.lock(each!(self.0.get()?, locks => options.on(locks.striped(name, stripes).for_key(&key))?))
    }

    /// Ends the client's sessions, which releases its holds.
    #[pyo3(signature = (limit, place=None))]
    fn shutdown(&self, py: Python<'_>, limit: f64, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let (locks, limit): (_, Duration) = (self.0.get()?.clone(), seconds("limit", limit)?);
        call(py, place, async move { Ok(with!(locks, locks => locks.shutdown(limit).await)) })
    }
}

impl NativeLocks {
    fn lock(&self, lock: AnyLock) -> PyResult<NativeLock> {
        Ok(NativeLock(Owned::new(lock)))
    }
}

/// A lock that can be acquired.
#[pyclass(frozen, name = "Lock")]
pub(crate) struct NativeLock(Owned<AnyLock>);

#[pymethods]
impl NativeLock {
    #[pyo3(signature = (wait=None, place=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        wait: Option<WaitOption>,
        place: Option<InLoop<'_>>,
    ) -> PyResult<Py<PyAny>> {
        let mut lock = self.0.get()?.clone();
        if let Some(wait) = wait {
            let wait = wait.to_wait()?;
            lock = each!(lock, lock => lock.wait(wait));
        }
        call(py, place, async move {
            Ok(match lock {
                Either::Plain(lock) => AnyHold::Plain(lock.acquire().await?),
                Either::Fenced(lock) => AnyHold::Fenced(lock.acquire().await?),
            })
        })
    }

    /// Acquires the lock if it is free; else `None`.
    #[pyo3(signature = (place=None))]
    fn try_acquire(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let lock = self.0.get()?.clone();
        call(py, place, async move {
            Ok(match lock {
                Either::Plain(lock) => lock.try_acquire().await?.map(AnyHold::Plain),
                Either::Fenced(lock) => lock.try_acquire().await?.map(AnyHold::Fenced),
            })
        })
    }
}
