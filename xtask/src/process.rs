//! Starts other programs.
//!
//! Responsible for finding cargo, printing each command before it runs, and formatting exit statuses. Knows
//! nothing about the purpose of a command.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::TaskResult;

/// Changes to the workspace's root, so that every task works from any folder of the clone.
pub(crate) fn enter_workspace() -> TaskResult {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest_dir.parent().unwrap_or(manifest_dir);
    env::set_current_dir(root).map_err(|error| {
        format!(
            "cannot enter the workspace {}: {error}; was the clone moved? then build xtask anew",
            root.display()
        )
    })
}

/// The cargo that started xtask, so that checks and tests use the same toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The compiler settings for tests. If one command of a run lacks them, cargo compiles the workspace a second
/// time.
pub(crate) const TEST_CONFIG: [&str; 2] = ["--config", ".config/tests.toml"];

/// Whether this program of `cargo install` exists and runs.
pub(crate) fn is_installed(program: &str) -> bool {
    // A cargo subcommand gets its own name as the first argument.
    let subcommand = program.strip_prefix("cargo-");
    let mut command = if subcommand.is_some() { cargo() } else { Command::new(program) };
    command
        .args(subcommand)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Prints `command`, runs it with inherited stdin, stdout and stderr, and waits for it.
pub(crate) fn run(command: &mut Command) -> TaskResult {
    eprintln!("$ {}", shown(command));
    let status = command.status().map_err(|error| not_started(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` failed: {status}", shown(command))) }
}

/// Runs `command` and returns what it prints on stdout, without the end of the last line.
pub(crate) fn output(command: &mut Command) -> TaskResult<String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| not_started(command, &error))?;
    if !output.status.success() {
        return Err(format!("`{}` failed: {}", shown(command), output.status));
    }
    let text = String::from_utf8(output.stdout);
    text.map(|text| text.trim_end().to_owned()).map_err(|_| format!("`{}` printed no UTF-8", shown(command)))
}

/// Formats the error of a command that could not be started.
pub(crate) fn not_started(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start `{}`: {error}", shown(command))
}

/// Formats `command` as it would be typed: the program without its folder, then the arguments.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
