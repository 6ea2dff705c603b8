//! Arguments of the commands that only the `lockkeeper://` service supports, including `serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::ServiceArgs;
use super::values::{not_blank, reason};
use crate::settings::duration;

/// `serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "\
Examples:
  lockkeeper serve --data /var/lib/lockkeeper-serve
  lockkeeper serve --data ./data --listen 127.0.0.1:0 --json     # any free port
  lockkeeper run --locks lockkeeper://127.0.0.1 orders/42 -- echo it works

One of three nodes that form a cluster (the others: --node 2, --node 3):
  lockkeeper serve --data ./data-1 --node 1 --listen 127.0.0.1:5625 \\
    --cluster 1=127.0.0.1:5641,2=127.0.0.1:5642,3=127.0.0.1:5643

It serves until SIGTERM or SIGINT (exit code 0). docs/service.md says what is promised, docs/operating.md how to run it.",
    args_override_self = true
)]
pub struct Serve {
    /// Take options from this TOML file; its keys are the long names, and the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the options in force as such a file, and do nothing else
    #[arg(long)]
    pub print_config: bool,
    /// With `print_config`: the options in force, as TOML.
    #[arg(skip)]
    pub in_force: String,
    /// The data directory; created if it doesn't exist. One process at a time
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The listen address; port 0 takes any free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5625")]
    pub listen: String,
    /// The listen address for HTTP/JSON, or `off`; by default 127.0.0.1:5627 if --listen has port 5625, else
    /// off
    #[arg(long, value_name = "HOST:PORT")]
    pub http_listen: Option<String>,
    /// By how many leading segments of their names /metrics counts holds and waiters; 0: not by name
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub metrics_segments: u8,
    /// Send traces of acquires to this collector, by OTLP over gRPC: http://HOST:4317. Only of clients that
    /// sample them
    #[arg(long, value_name = "URL", value_parser = super::values::collector)]
    pub otlp: Option<String>,
    /// The address that clients should connect to, if it is not --listen
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The certificate of this node, in PEM: TLS for clients and other nodes (`lockkeeper tls init`)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The authorities whose certificates are accepted, of clients and of other nodes, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// The tokens by which clients without a certificate identify themselves (`lockkeeper token`)
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// The permissions, in TOML: which client may do what with which names; without it all may do everything
    #[arg(long, value_name = "FILE")]
    pub permissions: Option<PathBuf>,
    /// Append operators' actions and refused calls to this file: one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Listen where other machines can reach it, although there is no encryption and no authentication
    #[arg(long)]
    pub insecure: bool,
    /// This node's id in its cluster, from 1
    #[arg(long, value_name = "N", value_parser = node)]
    pub node: Option<u64>,
    /// For an empty data directory: the nodes that bootstrap a cluster, this one included, the same list for
    /// all of them. Ignored once it is bootstrapped
    #[arg(long, value_name = "N=HOST:PORT,...", value_delimiter = ',', value_parser = listed)]
    pub cluster: Vec<(u64, String)>,
    /// For an empty data directory: join the cluster of the node at this address (`lockkeeper cluster add`)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "cluster", requires = "node")]
    pub join: Option<String>,
    /// For an empty data directory: a node that the cluster knows with other data, has removed or does not
    /// know waits to be added, under a new id if need be (`lockkeeper cluster replace`), instead of ending
    #[arg(long)]
    pub rejoin: bool,
    /// The listen address for other nodes; by default this node's address in --cluster
    #[arg(long, value_name = "HOST:PORT")]
    pub peer_listen: Option<String>,
    /// The shortest time without a message from the leader after which a follower starts an election: many
    /// times the latency between two nodes. The same for all nodes of a cluster
    #[arg(long, value_name = "DURATION", value_parser = election_timeout, default_value = "240ms")]
    pub election_timeout: Duration,
    /// While this node leads, write a backup so often; needs --backup-dir
    #[arg(long, value_name = "DURATION", value_parser = backup_every, requires = "backup_dir")]
    pub backup_every: Option<Duration>,
    /// The directory for these backups, which must exist; nodes may share it
    #[arg(long, value_name = "DIR", requires = "backup_every")]
    pub backup_dir: Option<PathBuf>,
    /// How many of these backups are kept: the newest
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..))]
    pub backup_keep: u16,
    /// For an empty data directory: the first token is above this one
    #[arg(long, value_name = "TOKEN")]
    pub tokens_above: Option<u64>,
    /// The largest number of connections at a time
    #[arg(long, value_name = "N", default_value_t = lockkeeper_server::CONNECTIONS_MAX, value_parser = connections)]
    pub max_connections: usize,
    /// The largest number of connections of one identity, and of one network; by default half of all
    #[arg(long, value_name = "N", value_parser = connections)]
    pub max_connections_per_client: Option<usize>,
    /// How many of the connections are kept for operators and other nodes, at most half; by default a
    /// sixteenth of all
    #[arg(long, value_name = "N")]
    pub reserved_connections: Option<usize>,
    /// How long a connection stays open without a session, a watch or a call
    #[arg(long, value_name = "DURATION", value_parser = idle_timeout, default_value = "60s")]
    pub idle_timeout: Duration,
    /// For tests: take a snapshot after this many bytes of log
    #[arg(long, value_name = "BYTES", hide = true)]
    pub snapshot_after: Option<u64>,
    /// For tests: start a new log segment after this many bytes
    #[arg(long, value_name = "BYTES", hide = true)]
    pub segment_bytes: Option<u64>,
    /// The format of the log on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log: LogFormat,
    /// The log filter: error, warn, info, debug, trace; or by module, as in `info,lockkeeper_server=debug`
    #[arg(long, value_name = "LEVEL", env = "LOCKKEEPER_LOG", default_value = "info")]
    pub log_level: String,
    /// Print the startup line on standard output as JSON
    #[arg(long)]
    pub json: bool,
}

/// The log format.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Plain text lines.
    Text,
    /// One JSON object per line.
    Json,
}

/// `backup`.
#[derive(Args, Debug)]
pub struct Backup {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The file; an earlier backup there is replaced once the new one is complete
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `restore`.
#[derive(Args, Debug)]
pub struct Restore {
    /// The backup
    pub file: PathBuf,
    /// The data directory of the new node: empty, or created if it doesn't exist
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The new node's id
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub node: u64,
    /// The first token is above this one as well; without it, a clock behind the backup is refused
    #[arg(long, value_name = "TOKEN")]
    pub tokens_above: Option<u64>,
    /// A file of an audit trail (`serve --audit`), which gets a record
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn election_timeout(typed: &str) -> Result<Duration, String> {
    let sensible = Duration::from_millis(100)..=Duration::from_secs(10);
    let duration = duration(typed)?;
    if sensible.contains(&duration) { Ok(duration) } else { Err("give 100ms to 10s".to_owned()) }
}

fn backup_every(typed: &str) -> Result<Duration, String> {
    let sensible = Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);
    let duration = duration(typed)?;
    if sensible.contains(&duration) { Ok(duration) } else { Err("give 1s to 31days".to_owned()) }
}

fn idle_timeout(typed: &str) -> Result<Duration, String> {
    let sensible = Duration::from_secs(1)..=Duration::from_secs(86_400);
    let duration = duration(typed)?;
    if sensible.contains(&duration) { Ok(duration) } else { Err("give 1s to 24h".to_owned()) }
}

pub(super) fn node(typed: &str) -> Result<u64, String> {
    let number = typed.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "nodes are numbered from 1".to_owned())
}

pub(super) fn listed(typed: &str) -> Result<(u64, String), String> {
    let example = "give N=HOST:PORT for each node, as in `1=127.0.0.1:5641,2=127.0.0.1:5642`";
    let (number, address) = typed.split_once('=').ok_or(example)?;
    let address = peer_address(address).map_err(|why| format!("{why}; {example}"))?;
    Ok((node(number)?, address))
}

pub(super) fn peer_address(typed: &str) -> Result<String, String> {
    match typed.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()) {
        None => Err(format!("`{typed}` is no address")),
        Some(0) => Err(format!("`{typed}` has no port that others could know")),
        Some(_) => Ok(typed.to_owned()),
    }
}

fn connections(typed: &str) -> Result<usize, String> {
    let number = typed.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| "give a number from 1 to 1000000".to_owned())
}

/// `sessions`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Sessions {
    /// What to do instead of listing them.
    #[command(subcommand)]
    pub task: Option<SessionsTask>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The tasks of `sessions`.
#[derive(Subcommand, Debug)]
pub enum SessionsTask {
    /// End sessions with all that they hold and wait for, as if their clients were gone
    #[command(
        after_help = "Example:\n  lockkeeper sessions end --label web1 --reason 'web1 is dead' --locks lockkeeper://127.0.0.1"
    )]
    End(SessionsEnd),
}

/// `sessions end`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").args(["ids", "label", "identity"]).required(true).multiple(true))]
pub struct SessionsEnd {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The sessions, by id
    #[arg(value_name = "ID", conflicts_with_all = ["label", "identity"])]
    pub ids: Vec<u64>,
    /// All sessions whose owner, as `sessions` prints it, has these words: a host, `pid 71`
    #[arg(long, value_name = "WORDS", value_parser = not_blank)]
    pub label: Option<String>,
    /// All sessions of this identity, as the service has authenticated it
    #[arg(long, value_parser = not_blank)]
    pub identity: Option<String>,
    /// The reason, for the audit log
    #[arg(long, value_parser = reason, required_unless_present = "dry_run")]
    pub reason: Option<String>,
    /// The author; the current user by default
    #[arg(long)]
    pub by: Option<String>,
    /// End also sessions whose client is attached: it may use its locks until it has stopped by itself
    #[arg(long)]
    pub now: bool,
    /// Only list the sessions that would end
    #[arg(long)]
    pub dry_run: bool,
    /// Don't ask for a confirmation: needed without a terminal
    #[arg(long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `set-limit`.
#[derive(Args, Debug)]
pub struct SetLimit {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The semaphore's name
    pub name: OsString,
    /// How many permits; `none` removes the number
    #[arg(value_name = "N", value_parser = permits)]
    pub permits: Permits,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A number of permits; `None` removes the stored number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permits(pub Option<u32>);

fn permits(typed: &str) -> Result<Permits, String> {
    if typed == "none" {
        return Ok(Permits(None));
    }
    let number = typed.parse().map_err(|_| "give a number of permits, or `none`".to_owned())?;
    Ok(Permits(Some(number)))
}
