//! `cargo xtask bench`: measures our lock service and other ones, alternately, on one machine.
//!
//! Responsible for the options, and for running the benchmark in a build with the cargo feature `peers`,
//! which adds the clients of the other systems. A missed bar is a line of the report, not a failure.
//!
//! Reading order: [`Bench`], then `plan` (order of the measurements), `workloads` (the measurements),
//! `systems` (a driver for each system), `failover`, `figures`, `bars` and `maths`, `report`.

#[cfg(any(test, feature = "peers"))]
mod bars;
#[cfg(feature = "peers")]
mod disk;
#[cfg(feature = "peers")]
mod failover;
#[cfg(any(test, feature = "peers"))]
mod figures;
#[cfg(any(test, feature = "peers"))]
mod maths;
#[cfg(feature = "peers")]
mod plan;
#[cfg(feature = "peers")]
mod report;
#[cfg(any(test, feature = "peers"))]
mod server;
#[cfg(feature = "peers")]
mod systems;
#[cfg(feature = "peers")]
mod workloads;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::TaskResult;

/// What to measure, how long, and where to put it.
#[derive(Args)]
pub(crate) struct Bench {
    /// Three nodes of each system, all on this machine, and one of ours beside them
    #[arg(long)]
    cluster: bool,
    /// Only these systems, separated by commas [default: all; with `--cluster`: ours, ours-alone, etcd,
    /// zookeeper]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<System>,
    /// Only these workloads, separated by commas [default: all but failover; with `--cluster`: all but
    /// memory]
    #[arg(long = "workload", value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// How often each system is measured in the short workloads; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// How long each short measurement runs
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// How long the sessions of `keepalive` are watched (those of ours twice)
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=300))]
    keepalive_seconds: u64,
    /// Write every figure to this file too, as JSON (relative to the workspace's root)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure ours where it runs already, or without a service (`memory:bench`), instead of starting one
    #[arg(long, value_name = "URL")]
    ours_at: Option<String>,
}

/// A lock service, and how it is set up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum System {
    /// `lockkeeper serve`
    Ours,
    /// One node of ours beside three (`--cluster`): tells a slow machine from a slow cluster
    OursAlone,
    /// Redis that syncs each write before it answers
    RedisFsync,
    /// Redis that stores nothing
    RedisNofsync,
    /// etcd
    Etcd,
    /// ZooKeeper
    Zookeeper,
}

/// One kind of use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Workload {
    /// One client, a free lock
    Single,
    /// 64 and 256 clients, each with a lock of its own
    Pairs,
    /// One lock with 2 to 256 waiters
    Handover,
    /// A lock that one client takes again and again: ours is cached
    Cached,
    /// 10,000 sessions that are only kept alive
    Keepalive,
    /// The leader is killed, seven times (`--cluster`)
    Failover,
    /// 100,000 held locks
    Memory,
}

/// Runs `cargo xtask bench …`.
#[cfg(feature = "peers")]
pub(crate) fn run(choice: &Bench) -> TaskResult {
    plan::run(choice)
}

/// Runs the same command line again, in a release build with the clients of the other systems.
#[cfg(not(feature = "peers"))]
pub(crate) fn run(_: &Bench) -> TaskResult {
    use crate::needs::{Need, install};
    use crate::process::{cargo, run};

    const BUILD_NEEDS: &[Need] = &[
        Need { program: "protoc", package: "protobuf-compiler", used_by: "the build of etcd's client" },
        Need {
            program: "/usr/include/google/protobuf/descriptor.proto",
            package: "libprotobuf-dev",
            used_by: "the build of etcd's client",
        },
    ];
    install(BUILD_NEEDS, "the clients of other lock services need")?;
    let mut again = cargo();
    again.args(["run", "--release", "-p", "xtask", "--features", "peers", "--"]);
    run(again.args(std::env::args_os().skip(1)))
}

/// The command-line name of a system or a workload.
#[cfg(feature = "peers")]
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
