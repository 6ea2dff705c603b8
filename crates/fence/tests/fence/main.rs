//! The rule, and the fences that need nothing but this machine's memory and files.

mod contract;
#[cfg(target_os = "linux")]
mod file;
mod histories;
#[cfg(target_os = "linux")]
mod processes;
mod rule;
#[path = "../suite/mod.rs"]
mod suite;
