//! Arguments of `gate`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::LogFormat;
use crate::settings::duration;

/// `gate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper gate --upstream http://127.0.0.1:8080 --data /var/lib/lockkeeper-gate
  curl -X PUT -H 'Fencing-Token: 17' -H 'Fencing-Mode: exclusive' --data 12 http://127.0.0.1:5630/accounts/42
  lockkeeper gate --upstream http://127.0.0.1:8080 --data ./gate --guard '/accounts/{id}/{*rest}=accounts/{id}' --open /search

Every method but GET, HEAD and OPTIONS needs a token; a lower one than the resource has seen gets 412. It runs until SIGTERM
or SIGINT (exit code 0). docs/gate.md says what is promised.")]
pub struct Gate {
    /// Where requests go: `http://HOST:PORT` or `https://HOST`
    #[arg(long, value_name = "URL")]
    pub upstream: String,
    /// The listen address; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5630")]
    pub listen: SocketAddr,
    /// Serve `https`: the gate's certificate, and those between it and its authority, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM. Both files are read again on SIGHUP, and when they have
    /// changed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The directory of the marks; created if it doesn't exist. One gate at a time
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The listen address of /healthz and /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5631")]
    pub admin_listen: SocketAddr,
    /// A file of rules: which requests are guarded, and how their resources are named; see docs/gate.md
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// A path that is guarded under this name: `/accounts/{id}/{*rest}=accounts/{id}`; may be repeated
    #[arg(long, value_name = "PATH=NAME")]
    pub guard: Vec<String>,
    /// A path that never needs a token; may be repeated
    #[arg(long, value_name = "PATH")]
    pub open: Vec<String>,
    /// How long a resource stays shut for other tokens after a request whose end at the upstream is unknown
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub settle: Duration,
    /// How long a request waits for those with lower tokens to end, before it gets 503
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub wait: Duration,
    /// Time limit of a guarded request at the upstream, its response included
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub timeout: Duration,
    /// On shutdown: time limit for the requests in progress
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub drain: Duration,
    /// Also ask this lock service whether each token is current
    #[arg(long, value_name = "URL")]
    pub locks: Option<String>,
    /// How long the gate waits for a client: for a request on an idle connection, and for a response to be
    /// read, in all
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub client_timeout: Duration,
    /// The largest number of connections at a time; half of them for one network
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub max_connections: usize,
    /// The largest number of requests at a time; half of them for one network, a quarter only for guarded
    /// writes
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub max_requests: usize,
    /// The largest number of marks: one for each resource, and one for each slot of permits
    #[arg(long, value_name = "N", default_value_t = lockkeeper_fence::MARKS_MAX_DEFAULT)]
    pub max_marks: u64,
    /// The format of the log on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log: LogFormat,
    /// The log filter: error, warn, info, debug, trace; or by module, as in `info,lockkeeper_gate=debug`
    #[arg(long, value_name = "LEVEL", env = "LOCKKEEPER_LOG", default_value = "info")]
    pub log_level: String,
    /// Print the startup line on standard output as JSON
    #[arg(long)]
    pub json: bool,
}
