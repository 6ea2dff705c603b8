//! Shared code of the `lockkeeper` binary and its tests. Not a public interface: the library is the package
//! `lockkeeper`.
//!
//! # Code map
//!
//! - `args/mod.rs`: the command line
//! - `settings.rs`: values derived from arguments and environment
//! - `commands/mod.rs`: one module for each command; `commands/serve.rs` is the node of our own service
//! - `guardian/mod.rs`: ends the command of `run` before its lock can pass to another holder
//! - `exit.rs`: all exit codes
//! - `commands/torture/mod.rs`: what a lock service loses when its holders stall
//! - `advise/tree.toml`: the decision tree of `advise`; the tree in `docs/choosing.md` is made from it
//! - `otlp.rs`: the exporter of traces
//!
//! # Invariants
//!
//! - No lock rule is implemented here; the command parses, calls the library, prints.
//! - A job under a lock never outlives it: its parent is a guardian process with a timer of its own.
//! - Data go to stdout, the rest to stderr; exit codes and `--json` fields are an interface.
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
mod view;
