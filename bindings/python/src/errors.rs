//! Errors as exceptions. Their classes, and what their fields mean, are in `lockkeeper/_errors.py`.

use lockkeeper::{BackendError, BackendErrorKind};
use lockkeeper_bindings::{CallError, ErrorShown, FieldValue};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// The exception of an error.
pub(crate) fn exception(error: impl Into<CallError>) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let ErrorShown { class, text, fields } = error.into().into();
    Python::attach(|py| {
        let made = || {
            let module = MODULE.get_or_try_init(py, || py.import("lockkeeper._errors").map(Bound::unbind))?;
            let values = PyDict::new(py);
            for (field, value) in fields {
                match value {
                    FieldValue::Text(text) => values.set_item(field, text)?,
                    FieldValue::Number(number) => values.set_item(field, number)?,
                    FieldValue::Flag(flag) => values.set_item(field, flag)?,
                    FieldValue::Time(time) => values.set_item(field, time.as_secs_f64())?,
                }
            }
            module.bind(py).getattr(class)?.call((text,), Some(&values))
        };
        made().map_or_else(|error| error, PyErr::from_value)
    })
}

pub(crate) fn operator(text: &str) -> PyErr {
    exception(BackendError::new(BackendErrorKind::Operator, text))
}

pub(crate) fn used_after_fork(process: u32) -> PyErr {
    let text = format!(
        "this was made in process {process}, of which this one is a fork: a fork has no connection and renews \
         nothing; call `lockkeeper.connect` after the fork"
    );
    exception(ErrorShown::new("UsedAfterFork", &text))
}

pub(crate) fn not_fenced(error: &impl ToString) -> PyErr {
    exception(CallError::not_fenced(error))
}
