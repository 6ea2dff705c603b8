//! Arguments of `token` and `access`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `token`.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Make a token for a client, and add its hash to the nodes' file
    #[command(after_help = "\
Example:
  lockkeeper token add billing --file tokens --out billing.token
  lockkeeper ls --locks 'lockkeepers://db1.example?tls-ca=ca.pem&token-file=billing.token'

The token can't be shown again. Nodes read a new file by themselves within ten seconds, or at once by SIGHUP.")]
    Add(TokenAdd),
    /// Remove the token of a client from the nodes' file
    #[command(after_help = "Example:\n  lockkeeper token remove billing --file tokens")]
    Remove(TokenOf),
    /// List the clients with a token
    #[command(after_help = "Example:\n  lockkeeper token list --file tokens")]
    List(TokenList),
}

/// `token add`.
#[derive(Args, Debug)]
pub struct TokenAdd {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub of: TokenOf,
    /// Write the token to this new file, which only you can read, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `token add`, `token remove`.
#[derive(Args, Debug)]
pub struct TokenOf {
    /// The client's name: what permissions call it
    pub name: String,
    /// The file of tokens that the nodes are given (`serve --tokens`)
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
}

/// `token list`.
#[derive(Args, Debug)]
pub struct TokenList {
    /// The file of tokens that the nodes are given (`serve --tokens`)
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `access`.
#[derive(Subcommand, Debug)]
pub enum AccessCommand {
    /// Say whether a file of permissions allows something, and the line that decides (exit code 1: it does
    /// not)
    #[command(after_help = "\
Examples:
  lockkeeper access check billing acquire orders/42 --file permissions.toml
  lockkeeper access check root admin --file permissions.toml")]
    Check(AccessCheck),
    /// Print the quota that a file of permissions gives to a client
    #[command(after_help = "\
Example:
  lockkeeper access quota billing --file permissions.toml")]
    Quota(AccessQuota),
}

/// `access quota`.
#[derive(Args, Debug)]
pub struct AccessQuota {
    /// The client's name, from its certificate or token; `anonymous` for one without
    pub identity: String,
    /// The file of permissions that the nodes are given (`serve --permissions`)
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `access check`.
#[derive(Args, Debug)]
pub struct AccessCheck {
    /// The client's name, from its certificate or token; `anonymous` for one without
    pub identity: String,
    /// The action, as in the file
    pub action: ActionArg,
    /// The lock's name, with all below it; none stands for all names
    pub name: Option<OsString>,
    /// The file of permissions that the nodes are given (`serve --permissions`)
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// An action of a file of permissions.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionArg {
    /// Acquire locks.
    Acquire,
    /// See their state.
    Read,
    /// Break holds.
    Break,
    /// Set the number of permits.
    Limit,
    /// Change the cluster, make backups.
    Admin,
}
