//! The `lockkeeper-lab` command: experiments that start servers. `lockkeeper pitfalls` and `lockkeeper
//! conformance` run it.

mod conform;
mod output;
mod pitfalls;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde_json::json;

use conform::Conformance;
use pitfalls::Pitfalls;

/// The exit codes, a part of those in docs/cli.md.
mod exit {
    pub(crate) const OK: u8 = 0;
    /// A program with a mistake lost no write, or one without lost some; or a client breaks a promise.
    pub(crate) const NO: u8 = 1;
    pub(crate) const USAGE: u8 = 64;
    /// A play itself has failed.
    pub(crate) const INTERNAL: u8 = 70;
    /// Standard output can't be written.
    pub(crate) const IO: u8 = 74;
    /// A program that a play needs is not installed, or a driver does not start.
    pub(crate) const CONFIG: u8 = 78;
}

#[derive(Parser)]
#[command(
    name = "lockkeeper-lab",
    version,
    about = "Experiments with locks, on real servers",
    max_term_width = 100
)]
struct Lab {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Show the classic mistakes with locks: programs that fail on real servers, each beside the right way
    Pitfalls(Pitfalls),
    /// Give a client, in any language, a verdict for each promise
    Conformance(Conformance),
    /// Run the Rust library as a driver for `conformance`: commands on standard input, answers on standard
    /// output
    Driver,
}

/// An exit code, and a message of one line.
struct LabError {
    code: u8,
    message: String,
}

impl LabError {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let ended = match Lab::try_parse_from(&words) {
        Ok(Lab { experiment: Experiment::Pitfalls(args) }) => pitfalls::run(&args),
        Ok(Lab { experiment: Experiment::Conformance(args) }) => conform::run(&args),
        Ok(Lab { experiment: Experiment::Driver }) => {
            let ended = lockkeeper_lab::drive();
            ended.map(|()| exit::OK).map_err(|error| LabError::new(exit::INTERNAL, error.to_string()))
        }
        Err(error) => usage(&error),
    };
    ExitCode::from(ended.unwrap_or_else(|LabError { code, message }| {
        if words.iter().any(|word| word == "--json") {
            output::say(json!({ "error": message, "code": code }));
        } else {
            output::say(format!("lockkeeper-lab: {message}"));
        }
        code
    }))
}

/// Prints help and version; any other error of the arguments becomes one line.
fn usage(error: &clap::Error) -> Result<u8, LabError> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A write error is ignored: the arguments are wrong in any case.
            let _ = error.print();
            Ok(exit::USAGE)
        }
        _ => {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let lines: Vec<_> = lines
                .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
                .collect();
            Err(LabError::new(exit::USAGE, lines.join("; ")))
        }
    }
}
