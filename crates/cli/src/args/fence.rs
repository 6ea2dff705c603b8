//! Arguments of `fence`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lockkeeper::Token;

/// `fence`.
#[derive(Subcommand, Debug)]
pub enum Fence {
    /// Before reading: refuse every lower token from now on
    Enter(FenceArgs),
    /// Check whether a write with this token would pass now (exit code 79 if not)
    Check(FenceArgs),
    /// Replace the file by standard input, if the token still passes
    Write(FenceWrite),
    /// Print the marks: the highest tokens accepted so far
    #[command(after_help = "Example:\n  lockkeeper fence show stock.txt")]
    Show(FenceShow),
    /// Set the marks, after a change to a lock service whose tokens are lower
    #[command(after_help = "\
Example, after all writers were stopped:
  lockkeeper fence reset stock.txt --to 17 --yes")]
    Reset(FenceReset),
}

/// Arguments of `fence enter`, `check` and `write`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example, in a script under `lockkeeper run`:
  lockkeeper fence enter stock.txt --token $LOCKKEEPER_TOKEN || exit
  n=$(cat stock.txt); echo $((n + 1)) | lockkeeper fence write stock.txt --token $LOCKKEEPER_TOKEN")]
pub struct FenceArgs {
    /// The file
    pub file: PathBuf,
    /// The token of the lock that guards it
    #[arg(long, env = "LOCKKEEPER_TOKEN", value_parser = super::token)]
    pub token: Token,
    /// How the lock is held
    #[arg(long, value_enum, default_value_t = FenceMode::Exclusive)]
    pub mode: FenceMode,
    /// Which permit, with `--mode permit`
    #[arg(long, required_if_eq("mode", "permit"))]
    pub slot: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `fence write`.
#[derive(Args, Debug)]
pub struct FenceWrite {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub args: FenceArgs,
    /// Accept an empty standard input: the file will be empty
    #[arg(long)]
    pub allow_empty: bool,
}

/// Selects a fence by its target and resource.
#[derive(Args, Debug)]
pub struct FenceTarget {
    /// The file; or the server that stores the marks, such as `redis://host` or `postgres://host/database`
    pub target: PathBuf,
    /// The resource's name, if the server has many
    pub resource: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `fence show`.
#[derive(Args, Debug)]
pub struct FenceShow {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub which: FenceTarget,
}

/// `fence reset`.
#[derive(Args, Debug)]
pub struct FenceReset {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub which: FenceTarget,
    /// The new marks: the last token of the lock service that continues
    #[arg(long, value_name = "TOKEN", value_parser = super::token)]
    pub to: Token,
    /// Do it; without this, only print the planned change (exit code 64)
    #[arg(long)]
    pub yes: bool,
}

/// The lock modes that a fence distinguishes.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceMode {
    /// The only holder.
    Exclusive,
    /// One of several readers: may enter, not write.
    Shared,
    /// One of N permits: checked against the marks of its slot.
    Permit,
}
