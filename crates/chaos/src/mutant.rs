//! Planted mistakes, each of which a run must find: the checker is checked in real processes.
//!
//! Responsible for the mistakes of the cluster. Those of workers are in `worker/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use lockkeeper_rig::Number;
use tokio::time::sleep;

use crate::Result;
use crate::cluster::Cluster;
use crate::plan::{FaultKind, Victim};
use crate::workers::Workers;

/// How long the service works on after what it will lose or forget was kept.
const WORK: Duration = Duration::from_secs(2);
/// How long a wall clock is late.
const LATE_SEC: i64 = -3600;
/// Twice as fast as the true time, in millionths of it.
const FAST: i64 = 1_000_000;
/// A third as fast.
const SLOW: i64 = -666_667;

/// A planted mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ChaosMutant {
    /// Workers write without a fence.
    NoFence,
    /// Sections read before they enter.
    LateEnter,
    /// The marks of fences go back, as if resources were restored from old backups.
    OldMarks,
    /// Workers count on holds until their sections end, whatever has become of the hold.
    DeafWorker,
    /// The lease clocks of workers are slow.
    SlowWorkerClock,
    /// The lease clocks of nodes are fast.
    FastNodeClock,
    /// All nodes lose their data, and their wall clocks are late.
    WipedNodes,
    /// All nodes have disks that lie about syncs, and lose power at once.
    LyingDisk,
    /// All nodes come back with an old copy of their data.
    OldBackup,
    /// Some workers take another service for the same one.
    WrongService,
    /// Some workers use another service, for the same resources.
    TwoServices,
    /// Some workers write through another gate, to the same service behind both.
    TwoGates,
}

impl ChaosMutant {
    /// The kind of violation that must be found, as in reports.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::NoFence | Self::LateEnter => "lost-update",
            Self::OldMarks | Self::TwoGates => "fence-order",
            Self::DeafWorker | Self::SlowWorkerClock | Self::FastNodeClock | Self::WrongService => "overlap",
            Self::WipedNodes | Self::LyingDisk | Self::OldBackup => "token-order",
            Self::TwoServices => "two-locks",
        }
    }

    /// As in options.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The faults that its run needs. Wrong clocks only matter to workers that nobody can tell of a loss.
    pub(crate) fn faults(self) -> Vec<FaultKind> {
        match self {
            Self::SlowWorkerClock | Self::FastNodeClock => vec![FaultKind::Cut(Victim::Worker)],
            // A writer whose hold was lost meanwhile, and who does not look.
            Self::TwoGates => vec![FaultKind::Stop(Victim::Worker)],
            _ => vec![FaultKind::Loss],
        }
    }

    /// Whether some workers use a second service.
    pub(crate) const fn has_second_service(self) -> bool {
        matches!(self, Self::WrongService | Self::TwoServices)
    }

    /// The number of gates; planted mistakes of others need none.
    pub(crate) const fn gates(mutant: Option<Self>) -> u16 {
        match mutant {
            None => 1,
            Some(Self::TwoGates) => 2,
            Some(_) => 0,
        }
    }

    /// Whether workers write down the holds that they count on, and not the library: it would say when they
    /// are lost, by a clock that may be wrong.
    pub(crate) const fn has_claims(self) -> bool {
        matches!(self, Self::DeafWorker | Self::SlowWorkerClock)
    }

    /// Makes the cluster's mistake, while all workers work.
    pub(crate) async fn strike(self, cluster: &mut Cluster, workers: &Workers) -> Result {
        match self {
            Self::SlowWorkerClock => workers.shim.set_boot_rate(SLOW),
            Self::FastNodeClock => cluster.nodes.iter().for_each(|node| node.shim.set_boot_rate(FAST)),
            Self::WipedNodes => {
                sleep(WORK).await;
                cluster.nodes.iter().for_each(|node| node.shim.set(Number::AheadSec, LATE_SEC));
                restart(cluster, |data| Ok(fs::remove_dir_all(data)?))?;
            }
            Self::LyingDisk => {
                cluster.nodes.iter().for_each(|node| node.shim.set(Number::Lie, 1));
                sleep(WORK).await;
                cluster.cut_power()?;
                cluster.nodes.iter().for_each(|node| node.shim.set(Number::Lie, 0));
            }
            Self::OldBackup => {
                restart(cluster, |data| copy(data, &backup(data)))?;
                cluster.settled().await?;
                sleep(WORK).await;
                restart(cluster, |data| {
                    fs::remove_dir_all(data)?;
                    Ok(fs::rename(backup(data), data)?)
                })?;
            }
            _ => return Ok(()),
        }
        cluster.settled().await?;
        Ok(())
    }
}

/// Kills all nodes, changes their data, and starts them again.
fn restart(cluster: &mut Cluster, change: impl Fn(&Path) -> Result) -> Result {
    for node in &mut cluster.nodes {
        node.kill()?;
    }
    for node in &mut cluster.nodes {
        change(&node.data())?;
        node.start()?;
    }
    Ok(())
}

fn backup(data: &Path) -> PathBuf {
    data.with_extension("backup")
}

fn copy(from: &Path, to: &Path) -> Result {
    let status = Command::new("cp").arg("-a").args([from, to]).status()?;
    if status.success() { Ok(()) } else { Err(format!("cp of {}: {status}", from.display()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_each_mistake_and_what_must_be_found() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proof.md")).unwrap();
        for mutant in ChaosMutant::value_variants() {
            let (begin, end) = (format!("| `{}` |", mutant.name()), format!("| `{}` |", mutant.expected()));
            let is_row = |line: &str| line.starts_with(&begin) && line.ends_with(&end);
            assert!(page.lines().any(is_row), "{begin} … {end}");
        }
    }
}
