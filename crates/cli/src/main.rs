//! The `lockkeeper` command.

use std::process::ExitCode;

use lockkeeper_cli::{args, commands, guardian};

fn main() -> ExitCode {
    // First: the guardian process must not parse arguments or start threads.
    if let Some(code) = guardian::main_if_called() {
        return code;
    }
    let ended = args::parse(std::env::args_os()).and_then(commands::run);
    ExitCode::from(ended.unwrap_or_else(|failure| failure.report(args::asks_for_json(std::env::args_os()))))
}
