//! The HTTP fence, for the middleware of ASGI and WSGI.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use lockkeeper_bindings::fences::{Admission, ServerFence, admit, http_fence};
use lockkeeper_fence::http::{Fenced, Pass};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::{InLoop, IntoObject, call};
use crate::errors::{exception, not_fenced};
use crate::options::seconds;
use crate::process::Owned;

/// A fence with its marks in a file.
#[pyclass(frozen, name = "HttpFence")]
pub(crate) struct NativeHttpFence(Owned<ServerFence>);

/// A request that was admitted, until it ends.
#[pyclass(frozen)]
pub(crate) struct HttpPass {
    pass: Owned<Mutex<Option<Pass>>>,
    fenced: Fenced,
}

impl IntoObject for Admission {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Free => py.None(),
            Self::Passed(pass, fenced) => {
                let pass = Owned::new(Mutex::new(Some(pass)));
                Py::new(py, HttpPass { pass, fenced })?.into_any()
            }
            Self::Answered(response) => {
                let (parts, body) = response.into_parts();
                let header = |(name, value): (&::http::HeaderName, &::http::HeaderValue)| {
                    (PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes()))
                };
                let headers: Vec<_> = parts.headers.iter().map(header).collect();
                let answer = (parts.status.as_u16(), headers, PyBytes::new(py, &body));
                answer.into_pyobject(py)?.into_any().unbind()
            }
        })
    }
}

#[pymethods]
impl NativeHttpFence {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, wait: f64) -> PyResult<Self> {
        let wait = seconds("wait", wait)?;
        let fence = py.detach(|| http_fence(&path, wait)).map_err(exception)?;
        Ok(Self(Owned::new(fence)))
    }

    /// Admits a request: `None` if it needs no token, the answer to one that is refused, or its pass.
    #[pyo3(signature = (method, path, headers, token_required=None, resource=None, place=None))]
    #[expect(clippy::too_many_arguments, reason = "the parts of a request")]
    fn admit(
        &self,
        py: Python<'_>,
        method: &[u8],
        path: &[u8],
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        token_required: Option<bool>,
        resource: Option<String>,
        place: Option<InLoop<'_>>,
    ) -> PyResult<Py<PyAny>> {
        let request = headers
            .iter()
            .fold(::http::Request::builder().method(method).uri(path), |request, (name, value)| {
                request.header(&name[..], &value[..])
            });
        let request = request.body(()).map_err(|error| not_fenced(&error))?;
        let fence = self.0.get()?.clone();
        call(py, place, async move { Ok(admit(&fence, request, token_required, resource).await) })
    }
}

#[pymethods]
impl HttpPass {
    #[getter]
    fn resource(&self) -> &str {
        self.fenced.resource.as_str()
    }

    #[getter]
    fn action(&self) -> String {
        self.fenced.action.to_string()
    }

    #[getter]
    fn token(&self) -> u64 {
        self.fenced.section.token().get()
    }

    #[getter]
    fn mode(&self) -> String {
        self.fenced.section.mode().to_string()
    }

    #[getter]
    fn slot(&self) -> Option<u32> {
        self.fenced.section.slot()
    }

    /// The request has ended.
    fn end(&self) -> PyResult<()> {
        self.pass.get()?.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
}
