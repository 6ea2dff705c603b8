//! The `lockkeeper` command.

use std::process::ExitCode;

use lockkeeper_cli::guardian;

fn main() -> ExitCode {
    // Before anything else: a guardian must not parse arguments or start threads.
    if let Some(code) = guardian::main_if_called() {
        return code;
    }
    ExitCode::SUCCESS
}
