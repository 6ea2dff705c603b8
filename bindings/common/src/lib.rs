//! What the bindings to other languages (`bindings/node`, `bindings/python`) share.
//!
//! The library's types say at compile time whether a lock has tokens. Other languages learn it at run time:
//! the types here are either. Their errors are one enum, which is described by the name of a class, a text
//! and fields, so that all languages have the same classes.
//!
//! Responsible for: what a lock, hold, record or fence does in a binding is decided here or in the library.
//! How calls run and how results reach the language is each binding's own.
//!
//! - `locks.rs`: clients and locks
//! - `holds.rs`: holds, until they are released
//! - `recipes.rs`: elections and partitions
//! - `records.rs`: records of work that is done once
//! - `options.rs`: the options of a lock
//! - `fences.rs`: what fences take and answer
//! - `words.rs`: words for what operators see
//! - `errors.rs`: errors of calls, and their descriptions
#![allow(missing_docs, reason = "only the bindings use it; the library documents the same calls")]

mod errors;
pub mod fences;
mod holds;
mod locks;
mod options;
mod recipes;
mod records;
pub mod words;

pub use errors::{CallError, ErrorShown, FieldValue};
pub use holds::{AnyHold, SharedHold};
pub use locks::{AnyLock, AnyLocks, Kinds};
pub use options::LockOptions;
pub use recipes::SharedMember;
pub use records::RecordStore;
