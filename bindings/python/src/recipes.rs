//! Elections and partitions.

use std::sync::Arc;

use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::calls::{InLoop, IntoObject, call};
use crate::errors::CallError;
use crate::guard::AnyHold;
use crate::locks::{Either, NativeLocks, with};
use crate::options::{Options, seconds};
use crate::process::Owned;

/// A leader: its token, its label, and its value.
struct LeaderNow(Option<lockkeeper::Leader>);

impl IntoObject for LeaderNow {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let leader = self.0.map(|it| (it.token.map(lockkeeper::Token::get), it.label, it.value));
        Ok(leader.into_pyobject(py)?.into_any().unbind())
    }
}

type AnyMember = Either<
    lockkeeper::PartitionMember<lockkeeper::Unfenced>,
    lockkeeper::PartitionMember<lockkeeper::Fenced>,
>;

impl IntoObject for AnyMember {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let member = Owned::new(Arc::new(Mutex::new(Some(self))));
        Ok(Py::new(py, NativeMember(member))?.into_any())
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
    let locks = locks.0.get()?.clone();
    // Checked here, since the election takes a function that can't fail.
    with!(&locks, locks => drop(options.on(locks.mutex(&name))?));
    call(py, place, async move {
        Ok(match locks {
            Either::Plain(locks) => {
                let election = locks.election(name).with(|lock| options.on(lock.clone()).unwrap_or(lock));
                AnyHold::Plain(election.campaign(value).await?)
            }
            Either::Fenced(locks) => {
                let election = locks.election(name).with(|lock| options.on(lock.clone()).unwrap_or(lock));
                AnyHold::Fenced(election.campaign(value).await?)
            }
        })
    })
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
    call(py, place, async move {
        let leader = with!(locks, locks => locks.election(name).leader().await);
        leader.map(LeaderNow).map_err(CallError::from)
    })
}

/// The leaders, one after another.
#[pyfunction]
pub(crate) fn observe(locks: &NativeLocks, name: &str) -> PyResult<Leaders> {
    let locks = locks.0.get()?;
    let watch = crate::process::within(|| with!(locks, locks => locks.election(name).observe()))?;
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
    let locks = locks.0.get()?.clone();
    with!(&locks, locks => drop(options.on(locks.mutex(&name))?));
    call(py, place, async move {
        Ok(match locks {
            Either::Plain(locks) => {
                let group = locks.partitions(name, count);
                let group = group.with(move |lock| options.on(lock.clone()).unwrap_or(lock));
                AnyMember::Plain(group.join().await?)
            }
            Either::Fenced(locks) => {
                let group = locks.partitions(name, count);
                let group = group.with(move |lock| options.on(lock.clone()).unwrap_or(lock));
                AnyMember::Fenced(group.join().await?)
            }
        })
    })
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
pub(crate) struct NativeMember(Owned<Arc<Mutex<Option<AnyMember>>>>);

#[pymethods]
impl NativeMember {
    /// Waits until one more partition is this member's; `None` if there was none within `timeout` seconds.
    #[pyo3(signature = (timeout=None, place=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let member = self.0.get()?.clone();
        let limit = timeout.map(|limit| seconds("timeout", limit)).transpose()?;
        call(py, place, async move {
            let mut member = member.lock().await;
            let member = member.as_mut().ok_or(CallError::Released)?;
            let next = async {
                Ok::<_, CallError>(match member {
                    Either::Plain(member) => AnyHold::PlainPartition(member.next().await?),
                    Either::Fenced(member) => AnyHold::FencedPartition(member.next().await?),
                })
            };
            match limit {
                None => next.await.map(Some),
                Some(limit) => tokio::time::timeout(limit, next).await.ok().transpose(),
            }
        })
    }

    /// Leaves the group: others get its partitions.
    #[pyo3(signature = (place=None))]
    fn leave(&self, py: Python<'_>, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let member = self.0.get()?.clone();
        call(py, place, async move {
            let member = member.lock().await.take().ok_or(CallError::Released)?;
            with!(member, member => member.leave().await).map_err(CallError::from)
        })
    }
}
