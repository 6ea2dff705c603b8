//! Operators' calls: inspect, list, watch and break holds; check a token.

use std::sync::Arc;
use std::time::SystemTime;

use lockkeeper::{
    BackendError, BreakOrder, HolderInfo, HolderState, LockInfo, LockName, Token, WaiterInfo, WatchEvent,
};
use lockkeeper_bindings::{with, words};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokio::sync::Mutex;

use crate::calls::{InLoop, IntoObject, call};
use crate::errors::exception;
use crate::locks::NativeLocks;
use crate::options::token;
use crate::process::{self, Owned};

/// The fields of `lockkeeper/_info.py`, by name.
fn info<'py>(py: Python<'py>, lock: LockInfo) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let holds = lock.holds.into_iter().map(|hold| self::hold(py, hold)).collect::<PyResult<Vec<_>>>()?;
    let waiters =
        lock.waiters.into_iter().map(|waiter| self::waiter(py, waiter)).collect::<PyResult<Vec<_>>>()?;
    fields.set_item("name", lock.name.as_str())?;
    fields.set_item("holds", holds)?;
    fields.set_item("hold_count", lock.hold_count)?;
    fields.set_item("waiters", waiters)?;
    fields.set_item("waiter_count", lock.waiter_count)?;
    fields.set_item("permits", lock.permits)?;
    fields.set_item("permits_stored", lock.permits_stored)?;
    Ok(fields)
}

/// Seconds since 1970; `None` before that.
fn since_1970(time: Option<SystemTime>) -> Option<f64> {
    time?.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

fn hold<'py>(py: Python<'py>, hold: HolderInfo) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let state = words::hold_state(&hold.state);
    let (reason, by, left) = match hold.state {
        HolderState::Revoked { reason, by } => (Some(reason), Some(by), None),
        HolderState::Closed { left } => (None, None, Some(left.as_secs_f64())),
        _ => (None, None, None),
    };
    fields.set_item("token", hold.token.map(Token::get))?;
    fields.set_item("session", hold.session)?;
    fields.set_item("mode", hold.mode.to_string())?;
    fields.set_item("subtree", hold.subtree)?;
    fields.set_item("slot", hold.slot)?;
    fields.set_item("label", hold.label)?;
    fields.set_item("identity", hold.identity)?;
    fields.set_item("held_for", hold.held_for.map(|time| time.as_secs_f64()))?;
    fields.set_item("since", since_1970(hold.since))?;
    fields.set_item("state", state)?;
    fields.set_item("reason", reason)?;
    fields.set_item("by", by)?;
    fields.set_item("left", left)?;
    fields.set_item("meta", hold.meta)?;
    fields.set_item("value", PyBytes::new(py, &hold.value))?;
    Ok(fields)
}

fn waiter<'py>(py: Python<'py>, waiter: WaiterInfo) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("session", waiter.session)?;
    fields.set_item("mode", waiter.mode.to_string())?;
    fields.set_item("subtree", waiter.subtree)?;
    fields.set_item("label", waiter.label)?;
    fields.set_item("identity", waiter.identity)?;
    fields.set_item("waiting_for", waiter.waiting_for.map(|time| time.as_secs_f64()))?;
    fields.set_item("since", since_1970(waiter.since))?;
    fields.set_item("meta", waiter.meta)?;
    Ok(fields)
}

/// A converted answer.
struct Converted<T>(T);

impl IntoObject for Converted<LockInfo> {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(info(py, self.0)?.into_any().unbind())
    }
}

impl IntoObject for Converted<Vec<LockInfo>> {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let locks = self.0.into_iter().map(|lock| info(py, lock)).collect::<PyResult<Vec<_>>>()?;
        Ok(locks.into_pyobject(py)?.into_any().unbind())
    }
}

/// The status of a token in a word, and the tokens of the live holds.
impl IntoObject for Converted<(&'static str, Vec<Token>)> {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (word, live) = self.0;
        let live: Vec<u64> = live.into_iter().map(Token::get).collect();
        Ok((word, live).into_pyobject(py)?.into_any().unbind())
    }
}

/// The kind of an event, and the lock; `None` after the last one.
impl IntoObject for Converted<Option<WatchEvent>> {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (kind, lock) = match self.0 {
            None => return Ok(py.None()),
            Some(WatchEvent::State(lock)) => ("state", Some(lock)),
            Some(WatchEvent::Changed(lock)) => ("changed", Some(lock)),
            Some(_) => ("synced", None),
        };
        let lock = lock.map(|lock| info(py, lock)).transpose()?;
        Ok((kind, lock).into_pyobject(py)?.into_any().unbind())
    }
}

/// The holds and waiters of a lock.
#[pyfunction]
#[pyo3(signature = (locks, name, place=None))]
pub(crate) fn inspect(
    locks: &NativeLocks,
    py: Python<'_>,
    name: String,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let locks = locks.0.get()?.clone();
    call(py, place, async move { Ok(Converted(with!(locks, locks => locks.inspect(&name).await)?)) })
}

/// The locks in use at and below a name, or all.
#[pyfunction]
#[pyo3(signature = (locks, prefix=None, place=None))]
pub(crate) fn list(
    locks: &NativeLocks,
    py: Python<'_>,
    prefix: Option<String>,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let locks = locks.0.get()?.clone();
    call(py, place, async move { Ok(Converted(with!(locks, locks => locks.list(prefix.as_deref()).await)?)) })
}

/// Whether a token is that of a live hold.
#[pyfunction]
#[pyo3(signature = (locks, name, token, place=None))]
pub(crate) fn check_token(
    locks: &NativeLocks,
    py: Python<'_>,
    name: String,
    token: u64,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let (locks, token) = (locks.0.get()?.clone(), self::token(token)?);
    call(py, place, async move {
        let status = with!(locks, locks => locks.check_token(&name, token).await)?;
        Ok(Converted(words::token_status(token, status)))
    })
}

/// Ends another client's hold.
#[pyfunction]
#[pyo3(signature = (locks, name, token, reason, by, now, place=None))]
#[expect(clippy::too_many_arguments, reason = "the fields of an order")]
pub(crate) fn break_hold(
    locks: &NativeLocks,
    py: Python<'_>,
    name: String,
    token: u64,
    reason: String,
    by: String,
    now: bool,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let (locks, token) = (locks.0.get()?.clone(), self::token(token)?);
    call(py, place, async move {
        let name = LockName::parse(&name).map_err(BackendError::from)?;
        let order = BreakOrder { name, token, reason, by, now };
        Ok(Converted(words::broken(with!(locks, locks => locks.break_hold(order).await)?)))
    })
}

/// The locks at and below a name, and their changes.
#[pyfunction]
#[pyo3(signature = (locks, prefix=None))]
pub(crate) fn watch(locks: &NativeLocks, prefix: Option<&str>) -> PyResult<NativeWatch> {
    let locks = locks.0.get()?;
    let watch = process::within(|| with!(locks, locks => locks.watch(prefix)))?;
    Ok(NativeWatch(Owned::new(Arc::new(Mutex::new(watch.map_err(exception)?)))))
}

/// A watch, until it is garbage.
#[pyclass(frozen, name = "Watch")]
pub(crate) struct NativeWatch(Owned<Arc<Mutex<lockkeeper::Watch>>>);

#[pymethods]
impl NativeWatch {
    /// Waits for the next event; `None` after the last one.
    #[pyo3(signature = (place=None))]
    fn next(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let watch = self.0.get()?.clone();
        call(py, place, async move { Ok(Converted(watch.lock().await.next().await.transpose()?)) })
    }
}
