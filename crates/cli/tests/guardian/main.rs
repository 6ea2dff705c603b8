//! Tests of the guardian with real processes. `lockkeeper run` (the *wrapper*) starts its command under a
//! second process, the *guardian*, which ends the command by the lock's deadline even if the wrapper is
//! stopped or killed (P5 of `docs/SAFETY.md`).
//!
//! This binary has several roles. Without a role it is the test run; as `role:wrapper` it is a small
//! `lockkeeper run` over a flock ([`wrapper`]); with the argument `__guardian`, by which the wrapper executes
//! `/proc/self/exe`, it is the real guardian; the other roles are commands ([`commands`]) whose behaviour is
//! hard to reproduce with a shell.
//!
//! `GUARDIAN_ROUNDS` is the number of repetitions of the scenarios that kill wrappers (default 25).

mod commands;
mod ends;
mod passes_on;
mod scenario;
mod terminal;
mod who;
mod wrapper;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(code) = lockkeeper_cli::guardian::main_if_called() {
        return code;
    }
    match std::env::args().nth(1).as_deref() {
        Some("role:wrapper") => return wrapper::main(std::env::args_os().skip(2).collect()),
        Some(role) if role.starts_with("role:") => return commands::main(role),
        _ => {}
    }
    let trials: Vec<Trial> = [ends::trials(), passes_on::trials(), terminal::trials(), who::trials()]
        .into_iter()
        .flatten()
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Defines `trials()`, which returns one trial per function, with the function's name.
#[macro_export]
macro_rules! trials {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$(libtest_mimic::Trial::test(stringify!($name), || { $name(); Ok(()) })),+]
        }
    };
}
