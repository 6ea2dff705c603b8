//! Fences: the check of a fencing token at the resource.
//!
//! A lock service can't guarantee that a client still holds a lock when its write arrives. A lock is safe
//! only if the resource checks its *token*: a fence stores the highest token seen (its *mark*) and refuses
//! lower ones.
//!
//! Call `enter` before reading. If only writes were checked, updates could be lost: A (token 5) reads 10 and
//! stalls; B (token 6) reads 10; A resumes and writes 11, which is accepted because token 6 has not written
//! yet; B writes 11. So a section calls `enter` first, which raises the mark durably, and reads only after
//! that:
//!
//! ```
//! use lockkeeper_core::Token;
//! use lockkeeper_fence::{FileFence, Section};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("stock");
//! # let token = Token::MIN;
//! let fence = FileFence::new(path)?;
//! let section = Section::exclusive(token); // the token of the guard
//! fence.enter(section)?;
//! let old = fence.read()?.unwrap_or_default();
//! fence.write(section, &[&old[..], b"one more\n"].concat())?;
//! # Ok(())
//! # }
//! ```
//!
//! Every fence except `HttpFence`, which is a `tower` layer, has the same calls: `enter(section)`, a write
//! whose check and effect are one atomic step, and `check_once` for a single write that depends on nothing
//! read before. All take a [`Section`] and refuse with [`Refused`]. They share no trait because effects
//! differ in type (bytes, a closure, a statement in the caller's transaction); they share the rule of
//! [`Marks::check`] and the tests.
//!
//! Rules are cited by the numbers of `docs/table-rules.md` (F-a …), promises as P1–P12 (`docs/SAFETY.md`).
//!
//! # Code map
//!
//! `rule.rs` is the rule of the two marks; `postgres/fence.sql` and the Lua of `redis` implement it again.
//! `door.rs` decides which sections may run at the same time (a reader-writer queue ordered by token), and
//! `store/mod.rs` keeps durable marks with one sync for many checks (group commit). `tests/suite/mod.rs` runs
//! against every fence.
//!
//! - With all features off the crate depends on `lockkeeper-core` at most, so that owners of resources pull
//!   in no network stack.
//! - A fence uses no lock service and no clock. Its only input is the marks beside the resource.
//! - Check and effect are one atomic, durable step (P3).

/// Compiles the examples of the guide. Needs the features of all fences that the examples use.
#[cfg(all(
    doctest,
    target_os = "linux",
    feature = "http",
    feature = "object_store",
    feature = "redis",
    feature = "sqlite",
    feature = "tokio-postgres"
))]
#[doc = include_str!("../../../docs/fencing.md")]
pub struct Guide;

#[cfg(feature = "http")]
pub mod door;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(any(feature = "store", target_os = "linux"))]
mod format;
#[cfg(all(any(test, fuzzing), feature = "http", feature = "object_store", feature = "dynamodb"))]
pub mod fuzzing;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(target_os = "linux", feature = "object_store", feature = "store"))]
mod lines;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "object_store")]
pub mod object_store;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod resource;
pub mod rule;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "sqlite-marks")]
pub mod sqlite_marks;
#[cfg(feature = "store")]
pub mod store;

#[cfg(target_os = "linux")]
pub mod file;

#[cfg(feature = "http")]
pub use self::http::HttpFence;
#[cfg(feature = "mysql")]
pub use self::mysql::MySqlError;
#[cfg(feature = "object_store")]
pub use self::object_store::{ObjectError, ObjectFence, PointerFence};
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresError;
#[cfg(feature = "redis")]
pub use self::redis::{RedisFence, RedisFenceError};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteError;
#[cfg(feature = "dynamodb")]
pub use dynamodb::{DynamoDbError, DynamoDbFence};
#[cfg(target_os = "linux")]
pub use file::{FileError, FileFence};
pub use lockkeeper_core::{ModeKind, Slot, Token};
pub use memory::MemoryFence;
pub use resource::{BadResource, RESOURCE_BYTES_MAX, Resource};
pub use rule::{Action, Marks, Pair, Passed, Refused, Section};
#[cfg(feature = "store")]
pub use store::{DurableMarks, MARKS_MAX_DEFAULT, MarkStore, MarksError};
