//! Clients and locks.

use lockkeeper_bindings::{AnyLock, AnyLocks, Kinds};
use pyo3::prelude::*;

use crate::calls::{InLoop, IntoObject, call};
use crate::errors::exception;
use crate::options::{Options, WaitOption, seconds};
use crate::process::Owned;

/// A client of a lock service.
#[pyclass(frozen, name = "Locks")]
pub(crate) struct NativeLocks(pub(crate) Owned<AnyLocks>);

impl IntoObject for AnyLocks {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, NativeLocks(Owned::new(self)))?.into_any())
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
    call(py, place, async move { Ok(AnyLocks::connect(&url, label.as_deref()).await?) })
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
        Ok(Self(Owned::new(self.0.get()?.fenced().map_err(exception)?)))
    }

    #[getter]
    fn is_fenced(&self) -> PyResult<bool> {
        Ok(matches!(self.0.get()?, Kinds::Fenced(_)))
    }

    /// What the lock service can do: name, and whether it can.
    fn abilities(&self) -> PyResult<Vec<(&'static str, bool)>> {
        Ok(self.0.get()?.capabilities().abilities().to_vec())
    }

    /// The promises: number, name, and how it is kept.
    fn promises(&self) -> PyResult<Vec<(usize, &'static str, String)>> {
        let promises = self.0.get()?.capabilities().promises.list();
        Ok(promises.into_iter().map(|(number, name, kept)| (number, name, kept.to_string())).collect())
    }

    fn mutex(&self, name: &str, options: Options) -> PyResult<NativeLock> {
        self.lock(|locks| Ok(locks.mutex(name, &options.checked()?)))
    }

    fn read(&self, name: &str, options: Options) -> PyResult<NativeLock> {
        self.lock(|locks| Ok(locks.read(name, &options.checked()?)))
    }

    fn write(&self, name: &str, options: Options) -> PyResult<NativeLock> {
        self.lock(|locks| Ok(locks.write(name, &options.checked()?)))
    }

    fn semaphore(&self, name: &str, permits: Option<u32>, options: Options) -> PyResult<NativeLock> {
        self.lock(|locks| Ok(locks.semaphore(name, permits, &options.checked()?)))
    }

    fn all(&self, names: Vec<String>, options: Options) -> PyResult<NativeLock> {
        self.lock(|locks| Ok(locks.all(&names, &options.checked()?)))
    }

    fn rate(&self, name: &str, count: u32, per: f64, options: Options) -> PyResult<NativeLock> {
        let per = seconds("per", per)?;
        self.lock(|locks| Ok(locks.rate(name, count, per, &options.checked()?)))
    }

    fn striped(&self, name: &str, stripes: u32, key: Vec<u8>, options: Options) -> PyResult<NativeLock> {
        self.lock(|locks| Ok(locks.striped(name, stripes, &key, &options.checked()?)))
    }

    /// Ends the client's sessions, which releases its holds.
    #[pyo3(signature = (limit, place=None))]
    fn shutdown(&self, py: Python<'_>, limit: f64, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let (locks, limit) = (self.0.get()?.clone(), seconds("limit", limit)?);
        call(py, place, async move { Ok(locks.shutdown(limit).await) })
    }
}

impl NativeLocks {
    fn lock(&self, make: impl FnOnce(&AnyLocks) -> PyResult<AnyLock>) -> PyResult<NativeLock> {
        Ok(NativeLock(Owned::new(make(self.0.get()?)?)))
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
        let lock = self.0.get()?.clone().wait(wait.map(WaitOption::to_wait).transpose()?);
        call(py, place, async move { Ok(lock.acquire().await?) })
    }

    /// Acquires the lock if it is free; else `None`.
    #[pyo3(signature = (place=None))]
    fn try_acquire(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let lock = self.0.get()?.clone();
        call(py, place, async move { Ok(lock.try_acquire().await?) })
    }
}
