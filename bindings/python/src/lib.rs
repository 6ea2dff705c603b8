//! The native module of the Python package `lockkeeper`: the Rust library's locks, for its `__init__.py` and
//! `aio.py`, which are the API.
//!
//! Responsible for: the GIL is released while a call waits, and no thread of the library ever waits for it
//! (renewals go on while Python computes); Ctrl-C and a cancelled future drop the call, which abandons its
//! request; and nothing of a parent process is used after a fork.
//!
//! - `locks.rs`, `guard.rs`, `recipes.rs`, `records.rs`: the classes
//! - `inspect.rs`: what operators see and end
//! - `options.rs`: the options of a lock
//! - `calls.rs`: how a call waits, on a thread or in an event loop
//! - `errors.rs`: errors as the exceptions of `lockkeeper/_errors.py`
//! - `process.rs`: the runtime, and forks
//! - `events.rs`: the library's log events, for `logging`
//! - `fences/`: what Python's fences have from the Rust ones

mod calls;
mod errors;
mod events;
mod fences;
mod guard;
mod inspect;
mod locks;
mod options;
mod process;
mod recipes;
mod records;

use pyo3::prelude::*;

#[pymodule]
mod _lockkeeper {
    #[pymodule_export]
    use crate::calls::{Bridge, Lost};
    #[pymodule_export]
    use crate::events::follow_events;
    #[pymodule_export]
    use crate::fences::{
        dynamodb::{DynamoDbRequest, dynamodb_content, dynamodb_request, dynamodb_reset},
        fence_token,
        http::{HttpPass, NativeHttpFence},
        postgres_fence_grants, postgres_fence_sql,
        redis::{NativeRedisFence, RedisCall, redis_fence},
        sqlite::{sqlite_fence_pass, sqlite_fence_reset, sqlite_fence_sql},
    };
    #[pymodule_export]
    use crate::guard::HeldLock;
    #[pymodule_export]
    use crate::inspect::{NativeWatch, break_hold, check_token, inspect, list, watch};
    #[pymodule_export]
    use crate::locks::{NativeLock, NativeLocks, connect};
    #[pymodule_export]
    use crate::recipes::{Leaders, NativeMember, campaign, join_partitions, leader, observe};
    #[pymodule_export]
    use crate::records::{NativeRecords, records};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
