//! The `lockkeeper` command.

use std::process::ExitCode;

use clap::Parser;
use lockkeeper_cli::{args::Cli, commands, exit, guardian};

fn main() -> ExitCode {
    // Before anything else: a guardian must not parse arguments or start threads.
    if let Some(code) = guardian::main_if_called() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers; everything else is a mistake in the arguments, whose code is 64 and not
            // clap's 2, which a command may well use itself.
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    ExitCode::from(commands::run(cli).unwrap_or_else(|failure| failure.report()))
}
