//! Elections and partitions.

use std::sync::Arc;

use lockkeeper_bindings::{CallError, SharedMember};
use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::calls::{InLoop, IntoObject, call};
use crate::locks::NativeLocks;
use crate::options::{Options, seconds};
use crate::process::{self, Owned};

/// A leader: its token, its label, and its value.
struct LeaderNow(Option<lockkeeper::Leader>);

impl IntoObject for LeaderNow {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let leader = self.0.map(|it| (it.token.map(lockkeeper::Token::get), it.label, it.value));
        Ok(leader.into_pyobject(py)?.into_any().unbind())
    }
}

impl IntoObject for SharedMember {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, NativeMember(Owned::new(self)))?.into_any())
    }
}

/// Waits until this client leads.
#[pyfunction]
#[pyo3(signature = (locks, name, value, options, place=None))]
pub(crate) fn campaign(
    locks: &NativeLocks,
    py: Python<'_>,
    name: String,
    value: Vec<u8>,
    options: Options,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let (locks, options) = (locks.0.get()?.clone(), options.checked()?);
    call(py, place, async move { locks.campaign(name, value, &options).await })
}

/// The leader now.
#[pyfunction]
#[pyo3(signature = (locks, name, place=None))]
pub(crate) fn leader(
    locks: &NativeLocks,
    py: Python<'_>,
    name: String,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let locks = locks.0.get()?.clone();
    call(py, place, async move { locks.leader(name).await.map(LeaderNow) })
}

/// The leaders, one after another.
#[pyfunction]
pub(crate) fn observe(locks: &NativeLocks, name: &str) -> PyResult<Leaders> {
    let locks = locks.0.get()?;
    let watch = process::within(|| locks.observe(name))?;
    Ok(Leaders(Owned::new(Arc::new(Mutex::new(watch)))))
}

/// Joins a group that divides partitions.
#[pyfunction]
#[pyo3(signature = (locks, name, count, options, place=None))]
pub(crate) fn join_partitions(
    locks: &NativeLocks,
    py: Python<'_>,
    name: String,
    count: u32,
    options: Options,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let (locks, options) = (locks.0.get()?.clone(), options.checked()?);
    call(py, place, locks.join(name, count, options))
}

/// The leaders of an election.
#[pyclass(frozen, name = "LeaderWatch")]
pub(crate) struct Leaders(Owned<Arc<Mutex<lockkeeper::LeaderWatch>>>);

#[pymethods]
impl Leaders {
    /// Waits for the next leader, or for there to be none.
    #[pyo3(signature = (place=None))]
    fn next(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let watch = self.0.get()?.clone();
        call(
            py,
            place,
            async move { watch.lock().await.next().await.map(LeaderNow).map_err(CallError::from) },
        )
    }
}

/// A member of a group that divides partitions.
#[pyclass(frozen, name = "PartitionMember")]
pub(crate) struct NativeMember(Owned<SharedMember>);

#[pymethods]
impl NativeMember {
    /// Waits until one more partition is this member's; `None` if there was none within `timeout` seconds.
    #[pyo3(signature = (timeout=None, place=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let member = self.0.get()?.clone();
        let limit = timeout.map(|limit| seconds("timeout", limit)).transpose()?;
        call(py, place, async move { member.next(limit).await })
    }

    /// Leaves the group: others get its partitions.
    #[pyo3(signature = (place=None))]
    fn leave(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let member = self.0.get()?;
        call(py, place, process::within(|| member.leave())?)
    }
}
