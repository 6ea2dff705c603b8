//! The project's own tool, run as `cargo xtask`: one front door for checking, mending, testing and measuring.
//!
//! Responsible for calling the right tools with the right arguments, in the right order, and for telling what came
//! of it. May not hold any knowledge about locks: what a test proves stands in that test.
//!
//! Reading order: [`parts`] (what `verify` and `fix` run), [`testing`] (what `test` runs), [`tally`] (how tests are
//! counted), [`needs`] (which programs all this takes, and how they get here), [`foreign`] (which libraries of other
//! languages), [`sim`], [`services`] (lock services of others), [`mod@bench`] (how we compare with them), [`process`].

#![expect(clippy::print_stdout, reason = "a command-line tool: what it finds goes to stdout")]

mod bench;
mod features;
mod foreign;
mod needs;
mod parts;
mod process;
mod services;
mod sim;
mod tally;
mod testing;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::Bench;
use crate::parts::Part;
use crate::services::Services;
use crate::testing::Selection;

/// The result of a task: an error is a text for people, one line unless a tool has already said more.
pub(crate) type Outcome<T = ()> = Result<T, String>;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Lockkeeper's own tool: verify, fix, test, services, bench"
)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check format, lints, docs and dependencies; change no file of the project
    Verify {
        /// What to check [default: all]
        #[arg(value_enum)]
        parts: Vec<Part>,
    },
    /// Format the code, and apply what clippy can mend by itself
    Fix,
    /// Run every test; first install what the tests need
    Test(Selection),
    /// Run the simulator: a whole small world by seed (`cargo xtask sim --help` tells its options)
    #[command(disable_help_flag = true)]
    Sim {
        /// For the simulator
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Start and stop the lock services of others: Redis, etcd, ZooKeeper
    #[command(subcommand)]
    Services(Services),
    /// Measure our lock service and those of others, in turns, on this machine
    Bench(Bench),
    /// Install the cargo tools that `verify` needs and that are missing
    Tools,
}

fn main() -> ExitCode {
    let outcome = process::enter_workspace().and_then(|()| match Args::parse().task {
        Task::Verify { parts } => parts::verify(&parts),
        Task::Fix => parts::fix(),
        Task::Test(selection) => testing::run(&selection),
        Task::Sim { args } => sim::run(&args),
        Task::Services(task) => services::run(&task),
        Task::Bench(choice) => bench::run(&choice),
        Task::Tools => needs::install_cargo_tools(),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
