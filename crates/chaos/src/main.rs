//! Hours of real faults on real processes, and every history checked: `cargo xtask chaos`.
//!
//! Responsible for the processes (nodes or a server of others, and workers that use the library), for the
//! faults, and for the summary. Judges no history: that is `lockkeeper-verify`.
//!
//! Reading order: `options.rs`, `plan.rs` (the faults of a seed), `run.rs` (rounds), `cluster.rs` and
//! `workers.rs` (processes), `gate.rs` (the gate and its upstream), `inject.rs` (faults),
//! `worker/mod.rs` (what a worker does), `mutant.rs` (planted mistakes), `check.rs`, `summary.rs`,
//! `record.rs` (the page of all recorded runs); `compare/mod.rs` (the table of all locks), `crowd.rs` (many
//! clients at once).
//!
//! # Invariants
//!
//! - The plan follows from the seed: a run with the same seed plays the same faults in the same order.
//! - Never more than a minority of the nodes is away, but for the fault `all`.
//! - A fault counts as bitten only if its effect was measured.

#![expect(clippy::print_stdout, reason = "a command: its summary goes to stdout")]

mod certificates;
mod check;
mod cluster;
mod compare;
mod crowd;
mod gate;
mod inject;
mod mutant;
mod options;
mod others;
mod plan;
mod processes;
mod record;
mod run;
mod samples;
mod summary;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::Parser;

use options::{ChaosCommand, Sub};

/// An error is a text for people.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let ChaosCommand { worker, run } = ChaosCommand::parse();
    let ended = match worker {
        Some(Sub::Worker(options)) => worker::run(&options).map(|()| true),
        Some(Sub::Compare(options)) => compare::run(&options),
        Some(Sub::Crowd(options)) => crowd::run(&options),
        Some(Sub::CrowdWorker(options)) => worker::crowd::run(&options).map(|()| true),
        Some(Sub::Upstream(options)) => gate::upstream(&options).map(|()| true),
        Some(Sub::Contend(options)) => compare::contend(options).map(|()| true),
        None => run::run(run),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}
