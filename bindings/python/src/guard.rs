//! Holds.

use std::sync::Arc;

use lockkeeper::{Fenced, Unfenced};
use pyo3::prelude::*;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio_util::sync::CancellationToken;

use crate::calls::{InLoop, IntoObject, Lost, call, cause};
use crate::errors::{self, CallError};
use crate::options::seconds;
use crate::process::{self, Owned};

/// A hold of any kind.
pub(crate) enum AnyHold {
    Plain(lockkeeper::Guard<Unfenced>),
    Fenced(lockkeeper::Guard<Fenced>),
    PlainPartition(lockkeeper::Partition<Unfenced>),
    FencedPartition(lockkeeper::Partition<Fenced>),
}

macro_rules! with {
    ($hold:expr, $it:ident => $do:expr) => {
        match $hold {
            AnyHold::Plain($it) => $do,
            AnyHold::Fenced($it) => $do,
            AnyHold::PlainPartition($it) => $do,
            AnyHold::FencedPartition($it) => $do,
        }
    };
}

/// A hold, until it is released.
#[pyclass(frozen, name = "Guard")]
pub(crate) struct HeldLock {
    hold: Owned<Arc<RwLock<Option<AnyHold>>>>,
    lost: CancellationToken,
    token: Option<u64>,
    slot: Option<u32>,
    index: Option<u32>,
}

impl IntoObject for AnyHold {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let lost = with!(&self, hold => hold.lost());
        let token = with!(&self, hold => hold.token_hint()).map(lockkeeper::Token::get);
        let slot = with!(&self, hold => hold.slot());
        let index = match &self {
            Self::Plain(_) | Self::Fenced(_) => None,
            Self::PlainPartition(partition) => Some(partition.index()),
            Self::FencedPartition(partition) => Some(partition.index()),
        };
        let hold = Owned::new(Arc::new(RwLock::new(Some(self))));
        Ok(Py::new(py, HeldLock { hold, lost, token, slot, index })?.into_any())
    }
}

impl IntoObject for Option<AnyHold> {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.map_or_else(|| Ok(py.None()), |hold| hold.into_object(py))
    }
}

impl HeldLock {
    /// The hold.
    ///
    /// # Errors
    /// It was released, or is being released.
    fn hold(&self) -> PyResult<RwLockReadGuard<'_, Option<AnyHold>>> {
        let hold = self.hold.target()?.try_read().map_err(|_| CallError::Released)?;
        if hold.is_none() { Err(CallError::Released.into()) } else { Ok(hold) }
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
        self.hold.get()?;
        Ok(Lost(Owned::new(self.lost.clone())))
    }

    /// Why the hold is lost; `None` if it is not.
    #[getter]
    fn loss(&self) -> PyResult<Option<&'static str>> {
        let hold = self.hold()?;
        Ok(hold.as_ref().and_then(|hold| cause(with!(hold, it => it.loss()))))
    }

    /// The reading of the system's clock that counts suspend (`CLOCK_BOOTTIME`), in seconds, until which the
    /// hold is certain; `None` if it has no end.
    #[getter]
    fn valid_until(&self) -> PyResult<Option<f64>> {
        let hold = self.hold()?;
        let Some(hold) = hold.as_ref() else { return Ok(None) };
        let until = with!(hold, it => it.valid_until()).map_err(|lost| errors::lost(&lost))?;
        Ok(until.map(|until| until.as_nanos() as f64 / 1e9))
    }

    /// What keeps the lease from being renewed at present.
    #[getter]
    fn trouble(&self) -> PyResult<Option<String>> {
        let hold = self.hold()?;
        Ok(hold.as_ref().and_then(|hold| with!(hold, it => it.trouble())).map(|text| text.to_string()))
    }

    /// Whether a partition is wanted by another member.
    #[getter]
    fn is_leaving(&self) -> PyResult<bool> {
        let hold = self.hold()?;
        Ok(match hold.as_ref() {
            Some(AnyHold::PlainPartition(partition)) => partition.is_leaving(),
            Some(AnyHold::FencedPartition(partition)) => partition.is_leaving(),
            _ => false,
        })
    }

    /// # Errors
    /// `LockLost`, also if less than `need` seconds are certain.
    #[pyo3(signature = (need=0.0))]
    fn check(&self, need: f64) -> PyResult<()> {
        let (hold, need) = (self.hold()?, seconds("need", need)?);
        let Some(hold) = hold.as_ref() else { return Ok(()) };
        with!(hold, it => it.check(need)).map_err(|lost| errors::lost(&lost))
    }

    #[pyo3(signature = (place=None))]
    fn verify(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let hold = self.hold.get()?.clone();
        call(py, place, async move {
            let hold = hold.read().await;
            let hold = hold.as_ref().ok_or(CallError::Released)?;
            with!(hold, it => it.verify().await).map_err(CallError::from)
        })
    }

    #[pyo3(signature = (value, place=None))]
    fn set_value(&self, py: Python<'_>, value: Vec<u8>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let hold = self.hold.get()?.clone();
        call(py, place, async move {
            let hold = hold.read().await;
            let hold = hold.as_ref().ok_or(CallError::Released)?;
            with!(hold, it => it.set_value(value).await).map_err(CallError::from)
        })
    }

    #[pyo3(signature = (place=None))]
    fn downgrade(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let hold = self.hold.get()?.clone();
        call(py, place, async move {
            let hold = hold.read().await;
            let hold = hold.as_ref().ok_or(CallError::Released)?;
            with!(hold, it => it.downgrade().await).map_err(CallError::from)
        })
    }

    /// Waits until a partition is wanted by another member, or lost.
    #[pyo3(signature = (place=None))]
    fn leaving(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let hold = self.hold.get()?.clone();
        call(py, place, async move {
            match hold.read().await.as_ref().ok_or(CallError::Released)? {
                AnyHold::PlainPartition(partition) => partition.leaving().await,
                AnyHold::FencedPartition(partition) => partition.leaving().await,
                hold => with!(hold, it => it.lost()).cancelled().await,
            }
            Ok(())
        })
    }

    /// Releases the hold; waits for calls on it that are in progress.
    #[pyo3(signature = (place=None))]
    fn release(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let hold = self.hold.get()?.clone();
        call(py, place, async move {
            let hold = hold.write().await.take().ok_or(CallError::Released)?;
            with!(hold, it => it.release().await).map_err(CallError::from)
        })
    }

    /// Gives the hold up without waiting: it is released in the background.
    fn abandon(&self) -> PyResult<()> {
        let hold = self.hold.get()?.clone();
        process::within(|| {
            if let Ok(mut hold) = hold.try_write() {
                hold.take();
            }
        })
    }
}
