//! Arguments of `cluster`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::ServiceArgs;
use super::service::{listed, node, peer_address};
use crate::settings::duration;

/// `cluster`.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// List the nodes: the leader, the voters, and how far each is behind
    #[command(after_help = "\
Example:
  lockkeeper cluster status --locks lockkeeper://db1,db2,db3

Exit code 80 if a node does not answer, 69 if too few do for the service to work.")]
    Status(ClusterStatus),
    /// Add a node that runs `serve --join`, and wait until it votes
    #[command(after_help = "\
Example, on the new node and then anywhere:
  lockkeeper serve --data ./data --node 4 --join db1.example:5626 --peer-listen db4.example:5626
  lockkeeper cluster add 4=db4.example:5626 --locks lockkeeper://db1.example")]
    Add(ClusterAdd),
    /// Remove a node for good: its id is never reused
    #[command(after_help = "Example:\n  lockkeeper cluster remove 2 --locks lockkeeper://db1.example")]
    Remove(ClusterRemove),
    /// Replace a node whose data are lost by the empty one at its address: remove it, and add that one under
    /// the next id
    #[command(after_help = "\
Example, on the machine of the lost node and then anywhere:
  lockkeeper serve --data ./data --node 2 --cluster 1=db1:5626,2=db2:5626,3=db3:5626 --rejoin
  lockkeeper cluster replace 2 --locks lockkeeper://db1")]
    Replace(ClusterReplace),
    /// Keep the members in step with the nodes that run, until a signal: add the empty nodes at the given
    /// addresses, replace those whose data are lost, and remove those that stay silent
    #[command(after_help = "\
Example:
  lockkeeper cluster keep --nodes db1:5626,db2:5626,db3:5626,db4:5626,db5:5626 --remove-after 30m --locks lockkeeper://db1

Each step is a line on standard output. Which nodes are to run is decided where they are started
(`serve --rejoin`): in Kubernetes, by the number of replicas.")]
    Keep(ClusterKeep),
    /// Transfer the leadership to another node
    #[command(after_help = "Example:\n  lockkeeper cluster transfer --to 3 --locks lockkeeper://db1.example")]
    Transfer(ClusterTransfer),
}

/// `cluster status`.
#[derive(Args, Debug)]
pub struct ClusterStatus {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cluster add`.
#[derive(Args, Debug)]
pub struct ClusterAdd {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The node, and its address for other nodes
    #[arg(value_name = "N=HOST:PORT", value_parser = listed)]
    pub node: (u64, String),
    /// Wait at most this long for it to catch up
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub wait: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cluster remove`.
#[derive(Args, Debug)]
pub struct ClusterRemove {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The node
    #[arg(value_name = "N", value_parser = node)]
    pub node: u64,
    /// Wait at most this long until it is removed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub wait: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cluster replace`.
#[derive(Args, Debug)]
pub struct ClusterReplace {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The node whose data are lost
    #[arg(value_name = "N", value_parser = node)]
    pub node: u64,
    /// Wait at most this long for each step: until it is removed, until the empty node answers, until it
    /// votes
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub wait: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cluster keep`.
#[derive(Args, Debug)]
pub struct ClusterKeep {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The addresses, for other nodes, at which a node may run: an empty one there is added
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = peer_address, required = true)]
    pub nodes: Vec<String>,
    /// Remove a node after this long without an answer to the leader, unless three or fewer vote; by default
    /// no node is removed
    #[arg(long, value_name = "DURATION", value_parser = remove_after)]
    pub remove_after: Option<Duration>,
    /// Wait at most this long for each step
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub wait: Duration,
}

fn remove_after(typed: &str) -> Result<Duration, String> {
    let shortest = Duration::from_secs(10);
    let after = duration(typed)?;
    match after >= shortest {
        true => Ok(after),
        false => Err("a node that restarts is silent for some seconds: give 10s or more".to_owned()),
    }
}

/// `cluster transfer`.
#[derive(Args, Debug)]
pub struct ClusterTransfer {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// To this node; by default to the voter with the longest log
    #[arg(long, value_name = "N", value_parser = node)]
    pub to: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
