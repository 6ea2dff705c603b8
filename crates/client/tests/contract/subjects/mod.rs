//! The backends under test: one module each.

pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod service;
