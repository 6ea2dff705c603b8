//! The checks of `verify`, and the fixes of `fix`.
//!
//! Responsible for the arguments of each check. They are defined only here, since CI calls `verify` too.
//! `verify` must not change a file of the project, including Cargo.lock (hence `--locked`).

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;

use crate::TaskResult;
use crate::api;
use crate::features::{self, Targets};
use crate::needs::DENY;
use crate::packages::{COMMAND, LIBRARY};
use crate::process::{cargo, run};

/// One check of `verify`. They run in this order.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The code is formatted as rustfmt.toml says
    Format,
    /// No clippy warning in any target of any package
    Clippy,
    /// The library compiles with each of its lock services alone, and with none
    Features,
    /// The docs build without a warning, private items included; the library's public API is that of its text
    Docs,
    /// Licenses, bans and sources of all dependencies, by deny.toml
    Deny,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Format => "format",
            Part::Clippy => "clippy",
            Part::Features => "features",
            Part::Docs => "docs",
            Part::Deny => "deny",
        })
    }
}

/// Runs `parts`, or all of them; later parts run even if earlier ones fail.
pub(crate) fn verify(parts: &[Part]) -> TaskResult {
    let parts = if parts.is_empty() { Part::value_variants() } else { parts };
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for part in parts {
        let start = Instant::now();
        let verdict = match check(*part) {
            Ok(()) => "ok",
            Err(error) => {
                eprintln!("xtask: {error}");
                failed.push(part.to_string());
                "FAILED"
            }
        };
        lines.push(format!("{:<9}{:>7.1} s  {verdict}", part.to_string(), start.elapsed().as_secs_f64()));
    }
    println!("{}", lines.join("\n"));
    if failed.is_empty() { Ok(()) } else { Err(format!("verify failed: {}", failed.join(", "))) }
}

/// Formats, applies clippy's safe fixes, and formats again. Works with uncommitted changes too, because it is
/// meant to run before a commit.
pub(crate) fn fix() -> TaskResult {
    run(cargo().args(["fmt", "--all"]))?;
    let mut clippy = cargo();
    clippy.args(["clippy", "--fix", "--allow-dirty", "--allow-staged"]);
    Targets::of(&[])?.choose_all(&mut clippy);
    run(&mut clippy)?;
    // Clippy's fixes are not always formatted.
    run(cargo().args(["fmt", "--all"]))
}

fn check(part: Part) -> TaskResult {
    match part {
        Part::Format => run(cargo().args(["fmt", "--all", "--check"])),
        Part::Clippy => {
            let mut cargo = cargo();
            cargo.args(["clippy", "--locked"]);
            Targets::of(&[])?.choose_all(&mut cargo);
            run(cargo.args(["--", "-D", "warnings"]))
        }
        Part::Features => library_features()?.iter().try_for_each(|feature| {
            let mut cargo = cargo();
            cargo.args([
                "clippy",
                "--locked",
                "-p",
                "lockkeeper",
                "--no-default-features",
                "--features",
                feature,
            ]);
            run(cargo.args(["--", "-D", "warnings"]))
        }),
        Part::Docs => docs(),
        Part::Deny => {
            DENY.require()?;
            run(cargo().args(["deny", "--workspace", "--locked", "check", "licenses", "bans", "sources"]))
        }
    }
}

/// The library's features, each of which is checked alone; the empty one stands for none.
fn library_features() -> TaskResult<Vec<String>> {
    let metadata = features::metadata()?;
    let library = metadata.packages.iter().filter(|package| package.name.as_str() == LIBRARY);
    let features = library.flat_map(|package| package.features.keys().cloned());
    let alone = features.filter(|feature| feature != "default");
    Ok(std::iter::once(String::new()).chain(alone).collect())
}

/// Compares the public API with its text, then builds the docs in two runs. The library and the command are
/// both called `lockkeeper`, so their pages have the same address, and cargo warns if one run builds both.
/// The run with the library is the last one, so that its pages remain.
fn docs() -> TaskResult {
    let doc = || {
        let mut cargo = cargo();
        cargo.env("RUSTDOCFLAGS", "-D warnings");
        cargo.args(["doc", "--no-deps", "--document-private-items", "--locked"]);
        cargo
    };
    api::check()?;
    let names = features::metadata()?.packages.into_iter().map(|package| package.name.to_string());
    let (command, rest): (Vec<_>, Vec<_>) = names.partition(|name| name == COMMAND);
    for packages in [command, rest] {
        let mut doc = doc();
        Targets::of(&packages)?.choose_packages(&mut doc);
        run(&mut doc)?;
    }
    Ok(())
}
