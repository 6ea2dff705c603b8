//! The arguments of `verify`.

use std::path::PathBuf;

use clap::Args;

/// `verify`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  export LOCKKEEPER_HISTORY=/var/tmp/locks.history       # for every program on the library, and for `run`
  lockkeeper verify /var/tmp/locks.history
  lockkeeper verify /var/tmp/locks.history --html locks.html
  lockkeeper verify --follow /var/tmp/locks.history --locks lockkeeper://127.0.0.1

The format of histories, and what is checked: docs/verify.md.")]
pub struct Verify {
    /// Histories; they are one history together
    #[arg(value_name = "FILE", required_unless_present_any = ["locks", "fences"])]
    pub files: Vec<PathBuf>,
    /// Go on with what is written from now on, until a signal comes
    #[arg(long)]
    pub follow: bool,
    /// With --follow: also compare with what this lock service says of its holders; may be repeated
    #[arg(long, value_name = "URL", requires = "follow")]
    pub locks: Vec<String>,
    /// With --follow: also look at the marks of this fence, a file, or a server with `#` and the resource's
    /// name, such as `redis://host/0#stock`; may be repeated
    #[arg(long = "fence", value_name = "TARGET", requires = "follow")]
    pub fences: Vec<String>,
    /// With --follow: write the figures into this file once a second, for Prometheus
    #[arg(long, value_name = "FILE.prom", requires = "follow")]
    pub metrics: Option<PathBuf>,
    /// Write a page for browsers, in one file: the violations, and a timeline of all that happened
    #[arg(long, value_name = "OUT.html", conflicts_with = "follow")]
    pub html: Option<PathBuf>,
    /// How many violations are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub show: u64,
    /// Print JSON: a line for each violation, and a last one with the figures
    #[arg(long)]
    pub json: bool,
}
