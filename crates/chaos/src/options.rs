//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::mutant::ChaosMutant;

/// `cargo xtask chaos`.
#[derive(Parser)]
#[command(
    name = "cargo xtask chaos",
    about = "Real faults on real processes, and every history checked",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct ChaosCommand {
    #[command(subcommand)]
    pub(crate) worker: Option<Sub>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

#[derive(Subcommand)]
pub(crate) enum Sub {
    /// One worker process; started by the run
    #[command(hide = true)]
    Worker(WorkerOptions),
    /// The same work and faults on the locks of others, through their own clients and through ours
    Compare(CompareOptions),
    /// Ten thousand sessions after a restart, and a hundred thousand waiters over a change of the leader
    Crowd(CrowdOptions),
    /// One process of a crowd; started by it
    #[command(hide = true)]
    CrowdWorker(CrowdWorkerOptions),
    /// The service behind the gate; started by the run
    #[command(hide = true)]
    Upstream(UpstreamOptions),
    /// One contender of a comparison; started by it
    #[command(hide = true)]
    Contend(ContendOptions),
}

#[derive(Args)]
pub(crate) struct CrowdOptions {
    /// Clients, each with a session
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub(crate) sessions: usize,
    /// Waiters for one lock
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub(crate) waiters: usize,
}

#[derive(Args)]
pub(crate) struct CrowdWorkerOptions {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) sessions: usize,
    #[arg(long)]
    pub(crate) waiters: usize,
}

#[derive(Args)]
pub(crate) struct CompareOptions {
    /// Only these rows
    #[arg(long = "row", value_name = "ROW")]
    pub(crate) rows: Vec<String>,
    /// How long each row
    #[arg(long, default_value_t = 45, value_name = "N")]
    pub(crate) seconds: u64,
    /// The plan of faults and the contenders' choices follow from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the rows into docs/choosing.md
    #[arg(long)]
    pub(crate) record: bool,
    /// Where histories and logs are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ContendOptions {
    #[arg(long)]
    pub(crate) row: String,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) addresses: Vec<String>,
    #[arg(long)]
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) seed: u64,
}

#[derive(Args, Clone)]
pub(crate) struct RunOptions {
    /// The plan and the workers' choices follow from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How long
    #[arg(long, default_value_t = 120, value_name = "N")]
    pub(crate) seconds: u64,
    /// The service: `own`, or one of others
    #[arg(long, default_value = "own", value_name = "WHAT", value_parser = crate::others::NAMES)]
    pub(crate) on: String,
    /// Nodes of our own service
    #[arg(long, default_value = "3", value_parser = ["1", "3", "5"])]
    pub(crate) nodes: String,
    /// The program of another release with the same rules of the table: nodes begin with it, and `upgrade`
    /// goes to the present one, or back
    #[arg(long, value_name = "FILE")]
    pub(crate) previous: Option<PathBuf>,
    /// Only these kinds of faults; `none` for a steady load
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    pub(crate) faults: Vec<String>,
    /// Worker processes, each with a client: `rust`; on our own service also those in other languages
    #[arg(long, value_delimiter = ',', default_value = "rust,rust,rust", value_name = "CLIENT",
          value_parser = crate::workers::CLIENTS)]
    pub(crate) clients: Vec<String>,
    /// Tasks of each worker; in other languages a quarter
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub(crate) tasks: usize,
    /// Seconds of faults between two checks
    #[arg(long, default_value_t = 45, value_name = "N")]
    pub(crate) round: u64,
    /// With `--faults none`: where the plot of what the nodes use is written
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) samples: Option<PathBuf>,
    /// Print the plan, and do nothing else
    #[arg(long)]
    pub(crate) plan: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Append a row to docs/proof.md
    #[arg(long)]
    pub(crate) record: bool,
    /// Also keep the histories of rounds with a pause without a grant of this many milliseconds
    #[arg(long, value_name = "MS")]
    pub(crate) keep_pauses: Option<u64>,
    /// Where histories with violations are kept
    #[arg(long, default_value = "target/chaos", value_name = "DIR")]
    pub(crate) keep: PathBuf,
    /// Plant a mistake: the run ends well if it finds the violation that must follow, and ends at once then
    #[arg(long, hide = true, value_enum, conflicts_with_all = ["record", "on"])]
    pub(crate) mutant: Option<ChaosMutant>,
}

impl RunOptions {
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.parse().unwrap_or(3)
    }
}

#[derive(Args)]
pub(crate) struct UpstreamOptions {
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    #[arg(long)]
    pub(crate) data: PathBuf,
}

#[derive(Args)]
pub(crate) struct WorkerOptions {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) history: PathBuf,
    #[arg(long)]
    pub(crate) ledgers: PathBuf,
    /// The gate in front of a service over HTTP
    #[arg(long)]
    pub(crate) gate: Option<SocketAddr>,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) tasks: usize,
    /// The command line of its driver; none: it uses the Rust library
    #[arg(long)]
    pub(crate) driver: Option<String>,
    /// The name of the service in the history
    #[arg(long)]
    pub(crate) service: String,
    #[arg(long, value_enum)]
    pub(crate) mutant: Option<ChaosMutant>,
}
