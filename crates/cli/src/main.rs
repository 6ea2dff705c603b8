//! The `lockkeeper` command.

use std::process::ExitCode;

use lockkeeper_cli::{args, commands, guardian, output, settings};

fn main() -> ExitCode {
    // First: the guardian process must not parse arguments or start threads.
    if let Some(code) = guardian::main_if_called() {
        return code;
    }
    if settings::shows_password(std::env::args_os()) {
        output::say(
            "the password in the arguments can be seen by other users of this machine (`ps`): put the URL into LOCKKEEPER_URL, \
             or name the password with `?password-file=FILE` or `?password-env=NAME`",
        );
    }
    let ended = args::parse(std::env::args_os()).and_then(commands::run);
    ExitCode::from(ended.unwrap_or_else(|failure| failure.report(args::asks_for_json(std::env::args_os()))))
}
