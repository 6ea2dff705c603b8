//! The `lockkeeper` command.

use std::process::ExitCode;

use clap::Parser;
use lockkeeper_cli::{args::Cli, commands, guardian};

fn main() -> ExitCode {
    // Before anything else: a guardian must not parse arguments or start threads.
    if let Some(code) = guardian::main_if_called() {
        return code;
    }
    let code = match commands::run(Cli::parse()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    };
    ExitCode::from(code)
}
