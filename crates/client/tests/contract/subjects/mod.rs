//! The backends under test: one module each.

pub(crate) mod memory;
