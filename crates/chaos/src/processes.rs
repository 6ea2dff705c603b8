//! Commands whose processes end with the run, however it ends.

use std::path::Path;
use std::process::Command;

use lockkeeper_rig::Network;

/// A program on this host; it follows as the next argument.
pub(crate) fn ending_with_us() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

/// A program on a host of the network; none: on this host.
pub(crate) fn command_at(network: &Network, host: Option<usize>, program: &Path) -> Command {
    match host {
        Some(host) => network.command(host, program),
        None => {
            let mut command = ending_with_us();
            command.arg(program);
            command
        }
    }
}
