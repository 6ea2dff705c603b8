//! Commands whose processes end with the run, however it ends; and what faults measure of processes.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use lockkeeper_rig::Network;
use tokio::time::{Instant, sleep};

use crate::Result;

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

/// Waits until a process ends, for this long at most.
pub(crate) async fn ended_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= until {
            return Ok(status);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a counter does not change in the second half of this time. In the first half, calls that were on
/// their way may still be counted.
pub(crate) async fn stands_still(lasts: Duration, counter: impl Fn() -> u64) -> bool {
    sleep(lasts / 2).await;
    let before = counter();
    sleep(lasts / 2).await;
    counter() == before
}

/// Whether a host of the network can connect to this address.
pub(crate) fn reaches(network: &Network, from: usize, address: SocketAddr) -> bool {
    network.at(from, || TcpStream::connect_timeout(&address, Duration::from_millis(150)).is_ok())
}
