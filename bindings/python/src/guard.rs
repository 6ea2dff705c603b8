//! Holds.

use std::future::Future;

use lockkeeper::Token;
use lockkeeper_bindings::{AnyHold, CallError, SharedHold};
use pyo3::prelude::*;
use tokio_util::sync::CancellationToken;

use crate::calls::{InLoop, IntoObject, Lost, call};
use crate::errors::exception;
use crate::options::seconds;
use crate::process::{self, Owned};

/// A hold, until it is released.
#[pyclass(frozen, name = "Guard")]
pub(crate) struct HeldLock {
    hold: Owned<SharedHold>,
    lost: Owned<CancellationToken>,
    token: Option<u64>,
    slot: Option<u32>,
    index: Option<u32>,
}

impl IntoObject for AnyHold {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (lost, token) = (Owned::new(self.lost()), self.token().map(Token::get));
        let (slot, index) = (self.slot(), self.index());
        let hold = Owned::new(SharedHold::new(self));
        Ok(Py::new(py, HeldLock { hold, lost, token, slot, index })?.into_any())
    }
}

impl IntoObject for Option<AnyHold> {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.map_or_else(|| Ok(py.None()), |hold| hold.into_object(py))
    }
}

impl HeldLock {
    /// Reads the hold.
    ///
    /// # Errors
    /// It was released, or is being released.
    fn read<T>(&self, read: impl FnOnce(&AnyHold) -> T) -> PyResult<T> {
        self.hold.get()?.read(read).map_err(exception)
    }

    /// Makes a call about the hold.
    fn call<F>(
        &self,
        py: Python<'_>,
        place: Option<InLoop<'_>>,
        work: impl FnOnce(SharedHold) -> F,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<(), CallError>> + Send + 'static,
    {
        call(py, place, work(self.hold.get()?.clone()))
    }
}

#[pymethods]
impl HeldLock {
    /// The token; `None` if the lock service has none.
    #[getter]
    fn token_hint(&self) -> Option<u64> {
        self.token
    }

    #[getter]
    fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// The number of a partition.
    #[getter]
    fn index(&self) -> Option<u32> {
        self.index
    }

    #[getter]
    fn lost(&self) -> PyResult<Lost> {
        Ok(Lost(Owned::new(self.lost.get()?.clone())))
    }

    /// Why the hold is lost; `None` if it is not.
    #[getter]
    fn loss(&self) -> PyResult<Option<&'static str>> {
        Ok(self.read(AnyHold::valid_until)?.err().map(|lost| lost.cause.as_str()))
    }

    /// The reading of the system's clock that counts suspend (`CLOCK_BOOTTIME`), in seconds, until which the
    /// hold is certain; `None` if it has no end.
    #[getter]
    fn valid_until(&self) -> PyResult<Option<f64>> {
        let until = self.read(AnyHold::valid_until)?.map_err(exception)?;
        Ok(until.map(|until| until.as_nanos() as f64 / 1e9))
    }

    /// What keeps the lease from being renewed at present.
    #[getter]
    fn trouble(&self) -> PyResult<Option<String>> {
        Ok(self.read(AnyHold::trouble)?.map(|text| text.to_string()))
    }

    /// Whether a partition is wanted by another member.
    #[getter]
    fn is_leaving(&self) -> PyResult<bool> {
        self.read(AnyHold::is_leaving)
    }

    /// # Errors
    /// `LockLost`, also if less than `need` seconds are certain.
    #[pyo3(signature = (need=0.0))]
    fn check(&self, need: f64) -> PyResult<()> {
        let need = seconds("need", need)?;
        self.read(|hold| hold.check(need))?.map_err(exception)
    }

    #[pyo3(signature = (place=None))]
    fn verify(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        self.call(py, place, |hold| hold.verify())
    }

    #[pyo3(signature = (value, place=None))]
    fn set_value(&self, py: Python<'_>, value: Vec<u8>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        self.call(py, place, |hold| hold.set_value(value))
    }

    #[pyo3(signature = (place=None))]
    fn downgrade(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        self.call(py, place, |hold| hold.downgrade())
    }

    /// Waits until a partition is wanted by another member, or it is lost or released.
    #[pyo3(signature = (place=None))]
    fn leaving(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        self.call(py, place, |hold| hold.leaving())
    }

    /// Releases the hold; waits for calls on it that are in progress.
    #[pyo3(signature = (place=None))]
    fn release(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let hold = self.hold.get()?;
        call(py, place, process::within(|| hold.release())?)
    }

    /// Gives the hold up without waiting: it is released in the background.
    fn abandon(&self) -> PyResult<()> {
        let hold = self.hold.get()?;
        process::within(|| hold.abandon())
    }
}
