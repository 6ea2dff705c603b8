//! A test that runs itself again as a child process.
//!
//! With `CHILD` set, a test acts as the child and does not run the parent's part.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// The environment variables with the address of the child's resource, and with its argument.
const CHILD: &str = "LOCKKEEPER_FENCE_TEST_CHILD";
const ARGUMENT: &str = "LOCKKEEPER_FENCE_TEST_ARGUMENT";

/// In the child process: the address of its resource, and its argument.
pub(crate) fn as_child() -> Option<(String, u64)> {
    let address = env::var(CHILD).ok()?;
    let argument = env::var(ARGUMENT).expect("set with the address");
    Some((address, argument.parse().expect("a number")))
}

/// Runs the test `name` of this program as a child. The child reports line by line on stderr, since the test
/// harness writes to stdout.
pub(crate) fn spawn(name: &str, address: &str, argument: u64) -> Child {
    command(name, address, argument).spawn().expect("a child")
}

/// The command of [`spawn`].
pub(crate) fn command(name: &str, address: &str, argument: u64) -> Command {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, address)
        .env(ARGUMENT, argument.to_string())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stderr.take().expect("piped")).lines().map(|line| line.expect("text"))
}

/// Prints a line in one write call, so that a kill never leaves a partial line.
pub(crate) fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
}

/// Returns the child's output if it exited successfully; otherwise panics with that output.
pub(crate) fn finished_well(mut child: Child) -> Vec<String> {
    let told: Vec<_> = lines(&mut child).collect();
    let status = child.wait().expect("a child");
    assert!(status.success(), "{status}: {told:#?}");
    told
}
