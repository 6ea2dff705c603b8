//! What can be typed behind `fence`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `fence`.
#[derive(Subcommand, Debug)]
pub enum Fence {
    /// Before reading: turn away everyone with a lower token from now on
    Enter(FenceArgs),
    /// Ask whether a write with this token would pass now (exit code 79 if not)
    Check(FenceArgs),
    /// Replace the file by standard input, if the token still passes
    Write(FenceArgs),
    /// Print the marks: the highest tokens that came through
    #[command(after_help = "Example:\n  lockkeeper fence show stock.txt")]
    Show(FenceShow),
    /// Set the marks, when another lock service takes over whose tokens are lower
    #[command(after_help = "\
Example, after all writers were stopped:
  lockkeeper fence reset stock.txt --to 17 --yes")]
    Reset(FenceReset),
}

/// What `fence enter`, `check` and `write` take.
#[derive(Args, Debug)]
#[command(after_help = "\
Example, in a script under `lockkeeper run`:
  lockkeeper fence enter stock.txt --token $LOCKKEEPER_TOKEN || exit
  n=$(cat stock.txt); echo $((n + 1)) | lockkeeper fence write stock.txt --token $LOCKKEEPER_TOKEN")]
pub struct FenceArgs {
    /// The file
    pub file: PathBuf,
    /// The token of the lock that guards it
    #[arg(long, env = "LOCKKEEPER_TOKEN")]
    pub token: u64,
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

/// Which fence, for those who look after it.
#[derive(Args, Debug)]
pub struct FenceTarget {
    /// The file; or where the fence keeps its marks, such as `redis://host` or `postgres://host/database`
    pub target: PathBuf,
    /// The resource's name, where the fence has many
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
    /// What the marks become: the last token of the lock service that goes on
    #[arg(long, value_name = "TOKEN")]
    pub to: u64,
    /// Do it; without this, only say what it would do (exit code 64)
    #[arg(long)]
    pub yes: bool,
}

/// The modes, for a fence.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceMode {
    /// Alone.
    Exclusive,
    /// Among readers: may enter, not write.
    Shared,
    /// One of N: the marks of its slot.
    Permit,
}
