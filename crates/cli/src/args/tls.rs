//! Arguments of `tls`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::service::node;

/// `tls`.
#[derive(Subcommand, Debug)]
pub enum TlsCommand {
    /// Make an authority, certificates of the nodes of a new cluster, and one of a client
    #[command(after_help = "\
Example:
  lockkeeper tls init ./tls --nodes 3 --host 1=db1.example --host 2=db2.example --host 3=db3.example
  lockkeeper serve --data ./data --tls-cert ./tls/node-1.pem --tls-key ./tls/node-1.key --tls-ca ./tls/ca.pem
  lockkeeper ls --locks 'lockkeepers://db1.example?tls-ca=./tls/ca.pem&tls-cert=./tls/client.pem&tls-key=./tls/client.key'")]
    Init(TlsInit),
    /// Make a further certificate by the authority of `tls init`: of a node that is to be added, or of a
    /// client
    #[command(after_help = "\
Examples:
  lockkeeper tls issue ./tls --node 4 --host db4.example
  lockkeeper tls issue ./tls --any-node --host db.example
  lockkeeper tls issue ./tls --client billing")]
    Issue(TlsIssue),
    /// Renew the certificates of a directory: same names and keys, a new end. The authority is not renewed
    #[command(after_help = "\
Example:
  lockkeeper tls renew ./tls

Nodes read new files by themselves within ten seconds, or at once by SIGHUP.")]
    Renew(TlsRenew),
    /// Show whom certificates are of, and when they end
    #[command(after_help = "Example:\n  lockkeeper tls show ./tls")]
    Show(TlsShow),
}

/// `tls init`.
#[derive(Args, Debug)]
pub struct TlsInit {
    /// The directory; created if it doesn't exist. It must not have an authority yet
    pub dir: PathBuf,
    /// How many nodes the cluster has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=32))]
    pub nodes: u64,
    /// A host name or IP address by which clients reach a node; can be repeated. Loopback is always there
    #[arg(long, value_name = "N=HOST", value_parser = host_of_node)]
    pub host: Vec<(u64, String)>,
    /// The cluster's name in the certificates of its nodes; by default a random one
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub cluster_name: Option<String>,
    /// For how many days the certificates of nodes and clients are valid; the authority is so for ten years
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub days: u64,
}

/// `tls issue`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("whom").required(true))]
pub struct TlsIssue {
    /// The directory of `tls init`
    pub dir: PathBuf,
    /// The id of a node
    #[arg(long, value_name = "N", group = "whom", value_parser = node)]
    pub node: Option<u64>,
    /// A certificate that all nodes of the cluster can use, for nodes whose ids change (`serve --rejoin`)
    #[arg(long, group = "whom")]
    pub any_node: bool,
    /// The name of a client
    #[arg(long, value_name = "NAME", group = "whom", value_parser = name)]
    pub client: Option<String>,
    /// A host name or IP address by which clients reach the node; can be repeated
    #[arg(long, value_name = "HOST", conflicts_with = "client", value_parser = host)]
    pub host: Vec<String>,
    /// The name of the node's cluster; by default that of the nodes whose certificates are in the directory
    #[arg(long, value_name = "NAME", conflicts_with = "client", value_parser = name)]
    pub cluster_name: Option<String>,
    /// For how many days it is valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub days: u64,
}

/// `tls renew`.
#[derive(Args, Debug)]
pub struct TlsRenew {
    /// The directory of `tls init`
    pub dir: PathBuf,
    /// For how many days they are valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub days: u64,
}

/// `tls show`.
#[derive(Args, Debug)]
pub struct TlsShow {
    /// Certificates in PEM, or directories that have some
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn host_of_node(typed: &str) -> Result<(u64, String), String> {
    let example = "give N=HOST, as in `1=db1.example`";
    let (number, named) = typed.split_once('=').ok_or(example)?;
    Ok((node(number)?, host(named)?))
}

fn host(typed: &str) -> Result<String, String> {
    let is_name = |it: &str| {
        (1..=253).contains(&it.len()) && it.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
    };
    if typed.parse::<IpAddr>().is_ok() || is_name(typed) {
        Ok(typed.to_owned())
    } else {
        Err(format!("`{typed}` is no host name or IP address (without a port)"))
    }
}

fn name(typed: &str) -> Result<String, String> {
    let is_name = (1..=64).contains(&typed.len())
        && typed.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if is_name {
        Ok(typed.to_owned())
    } else {
        Err("give 1 to 64 letters, digits, `.`, `_` or `-`".to_owned())
    }
}
