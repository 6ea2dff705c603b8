//! Shared code of the `lockkeeper` binary and its tests. Not a public interface: the library is the package
//! `lockkeeper`.
//!
//! Reading order: [`args`] (the command line), [`settings`] (values derived from arguments and environment),
//! [`commands`] (one module per command), [`exit`] (exit codes), [`guardian`] (ends the command of `run` before its
//! lock can pass to another holder).
//!
//! P1 to P12 in comments are the promises of `docs/SAFETY.md`.

pub mod advise;
pub mod args;
pub mod commands;
pub mod exit;
pub mod guardian;
#[cfg(feature = "otlp")]
mod otlp;
pub mod output;
mod progress;
pub mod settings;
mod table;
