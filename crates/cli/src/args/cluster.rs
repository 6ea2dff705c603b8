//! Arguments of `cluster`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::ServiceArgs;
use super::service::{listed, node};
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
