//! Runs every example in several concurrent processes on real servers, and checks the effects from outside.

use std::process::{Command, Output, Stdio};

mod databases;
mod files;
mod recipes;
mod service;

/// Runs `program` once for each of `lines`, all at the same time; returns their outputs. All must succeed.
#[track_caller]
fn at_once(program: &str, lines: &[Vec<&str>]) -> Vec<String> {
    let children: Vec<_> = lines
        .iter()
        .map(|arguments| {
            let mut command = Command::new(program);
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("it was built with this test")
        })
        .collect();
    let outputs: Vec<Output> =
        children.into_iter().map(|child| child.wait_with_output().expect("a child")).collect();
    outputs
        .into_iter()
        .zip(lines)
        .map(|(output, arguments)| {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {}: {errors}", output.status);
            String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
        })
        .collect()
}

/// Runs the program once and expects a failure; returns its standard error.
#[track_caller]
fn fails(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it was built with this test");
    assert!(!output.status.success(), "{program} {arguments:?} went well");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The number of lines that start with `word`.
fn count(lines: &[String], word: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(word)).count()
}
