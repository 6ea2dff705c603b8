//! The project's own tool, run as `cargo xtask`: checks, fixes, tests and benchmarks.
//!
//! Responsible for calling the right tools with the right arguments in the right order, and for reporting the
//! results. Must not contain knowledge about locks: properties of locks are checked by tests.
//!
//! Reading order: `parts` (`verify` and `fix`), `schema` (generated code), `api` (the text of the public
//! API), `testing` (`test`), `record` (counting tests), `weight` (tables of builds and tests), `needs`
//! (required programs and their installation), `foreign` (libraries of other languages), `sim`, `chaos`,
//! `fuzz` (the decoders), `services` (other lock services), `bench` (comparison with those), `dist` and
//! `sbom` (the files of a release), `publish` (crates.io), `book`, `process`.
//!
//! - `verify` changes no file of the project, Cargo.lock included.
//! - Only a process that was started for its own folder is ever stopped (`services/pidfile.rs`).
//! - The last line of `cargo xtask test` is `N passed, M failed`, over all kinds of tests.
//! - No shipped package depends on this one. Clients of other lock services are behind the feature `peers`,
//!   which `cargo xtask bench` turns on.

#![expect(clippy::print_stdout, reason = "a command-line tool: what it finds goes to stdout")]

mod api;
mod bench;
mod book;
mod chaos;
mod dist;
mod features;
mod foreign;
mod fuzz;
mod needs;
mod packages;
mod parts;
mod process;
mod publish;
mod record;
mod sbom;
mod schema;
mod services;
mod sim;
mod testing;
mod weight;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::Bench;
use crate::dist::Dist;
use crate::fuzz::Fuzz;
use crate::parts::Part;
use crate::services::Services;
use crate::testing::Selection;
use crate::weight::Weight;

/// The result of a task. An error is a text for people, of one line unless a tool has already printed more.
pub(crate) type TaskResult<T = ()> = Result<T, String>;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Lockkeeper's own tool: verify, fix, test, services, bench, dist"
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
    /// Generate the Rust code of the wire protocol from its schema, and the text of the public API
    Generate,
    /// Run every test; first install what the tests need
    Test(Selection),
    /// Measure the build, and print what the newest test run took, as tables of docs/benchmarks.md and
    /// docs/testing.md
    #[command(subcommand)]
    Weight(Weight),
    /// Run the simulator: a whole small world by seed (`cargo xtask sim --help` tells its options)
    #[command(disable_help_flag = true)]
    Sim {
        /// For the simulator
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Inject faults into real processes, and check every history (`cargo xtask chaos --help`)
    #[command(disable_help_flag = true)]
    Chaos {
        /// For the harness
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Fuzz the decoders; needs a nightly compiler and cargo-fuzz
    Fuzz(Fuzz),
    /// Start and stop the lock services of others: Redis, PostgreSQL, etcd, ZooKeeper, DynamoDB (emulated)
    #[command(subcommand)]
    Services(Services),
    /// Measure our lock service and those of others, alternately, on this machine
    Bench(Bench),
    /// Make the files of a release: programs, packages for other languages, bill of materials, checksums
    Dist(Dist),
    /// Check that crates.io would take our packages, and print the commands that publish them, in order
    Publishable,
    /// Make a site of the docs
    Book,
    /// Install the cargo tools that `verify` needs and that are missing
    Tools,
}

/// Runs the task of the command line.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = process::enter_workspace().and_then(|()| match Args::parse().task {
        Task::Verify { parts } => parts::verify(&parts),
        Task::Fix => parts::fix(),
        Task::Generate => schema::generate(),
        Task::Test(selection) => testing::test(&selection),
        Task::Weight(what) => weight::weigh(&what),
        Task::Sim { args } => sim::run(&args),
        Task::Chaos { args } => chaos::run(&args),
        Task::Fuzz(choice) => fuzz::fuzz(&choice),
        Task::Services(task) => services::run(&task),
        Task::Bench(choice) => bench::run(&choice),
        Task::Dist(choice) => dist::make(&choice),
        Task::Publishable => publish::check(),
        Task::Book => book::make(),
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
