//! Arguments of the commands that run another one under a lock, and of `leader`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::ServiceArgs;
use super::values::{keep_closed, key_value, lock_delay, min_hold, rate, ttl, value};
use crate::exit::{BUSY, LOST};
use crate::guardian::Left;
use crate::settings::duration;

/// Options of a command that runs under a lock.
#[derive(Args, Debug, Clone)]
pub struct JobArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// How long the lock outlives its last keep-alive, on services with leases: 1s to 1h; 30s by default
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    pub ttl: Option<Duration>,
    /// End the command after this long (exit code 76)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub max_hold: Option<Duration>,
    /// Time from SIGTERM to SIGKILL when the lock is lost; by default a sixth of the ttl, or 5s without a ttl
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub grace: Option<Duration>,
    /// After a signal such as Ctrl-C, kill what is left of the command after this long; by default never
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub stop_after: Option<Duration>,
    /// Keep the lock closed for this long if this host or process dies; by default not at all
    #[arg(long, value_name = "DURATION", value_parser = lock_delay)]
    pub lock_delay: Option<Duration>,
    /// Free the lock this long after this program's connection was closed, instead of after the ttl; see
    /// docs/run.md
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub linger: Option<Duration>,
    /// A description of the holder, shown to others; by default user, host, process id and the command's name
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Metadata shown to people who inspect the lock
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub meta: Vec<(String, String)>,
    /// A value that others read while the lock is held, for example an address; at most 4096 bytes
    #[arg(long, value_name = "TEXT", value_parser = value)]
    pub value: Option<String>,
}

/// One command, under one lock.
#[derive(Args, Debug)]
pub struct CommandArgs {
    /// The exit code if the lock was lost
    #[arg(long, value_name = "CODE", default_value_t = LOST)]
    pub lost_exit: u8,
    /// Without a terminal, report at once that the command waits, not only after 2s
    #[arg(short, long)]
    pub verbose: bool,
    /// Print errors only: nothing if the command waits, or did not run because the lock was not free
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// The lock's name: a path such as `orders/42`
    // Empty if it is behind a `--` of its own: see `take_name`.
    #[arg(value_name = "NAME", default_value = "", hide_default_value = true)]
    pub name: OsString,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", last = true)]
    pub argv: Vec<OsString>,
}

impl CommandArgs {
    /// Takes a name that begins with a dash, which has to be behind a `--` of its own: `-- -NAME -- COMMAND`.
    pub fn take_name(&mut self) {
        if self.name.is_empty() && self.argv.get(1).is_some_and(|word| word == "--") {
            self.name = self.argv.remove(0);
            self.argv.remove(0);
        }
    }
}

/// `run`.
#[derive(Args, Debug)]
#[command(
    override_usage = "lockkeeper run [OPTIONS] NAME -- COMMAND...",
    after_help = "\
Examples:
  lockkeeper run backup -- tar cf /backup/srv.tar /srv
  lockkeeper run --try cron/nightly -- ./nightly.sh        # exit code 75 if another one runs
  lockkeeper run --permit=3 gpu -- ./train.sh              # three at a time; see LOCKKEEPER_SLOT
  lockkeeper run --shared config -- ./read.sh
  lockkeeper run --once-key invoices-2026-11 invoices -- ./send-invoices.sh

The command gets LOCKKEEPER_NAME, LOCKKEEPER_TOKEN and, for permits, LOCKKEEPER_SLOT. Its exit code is passed on;
docs/cli.md lists ours."
)]
pub struct Run {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub job: JobArgs,
    /// Give up after this long (exit code 75)
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "try_")]
    pub wait: Option<Duration>,
    /// Don't wait if this many or more wait already (exit code 75)
    #[arg(long, value_name = "N", conflicts_with = "try_")]
    pub max_waiters: Option<u32>,
    /// Give up when a newer run with --latest waits for the lock, too (exit code 75): a queue of deploys
    #[arg(long, conflicts_with = "try_")]
    pub latest: bool,
    /// Don't wait (exit code 75 if the lock isn't free)
    #[arg(long = "try")]
    pub try_: bool,
    /// Share the lock with other readers
    #[arg(long, conflicts_with = "permit")]
    pub shared: bool,
    /// Take one of N permits (a semaphore); without N, the limit in force applies
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true)]
    pub permit: Option<Option<u32>>,
    /// If the lock is held for the command that runs this one, run under that hold instead of waiting for it
    #[arg(long, conflicts_with_all = [
        "permit", "latest", "keep_closed", "min_hold", "max_hold", "rate", "once_key", "status_file",
    ])]
    pub reenter: bool,
    /// Keep the lock closed for this long after the command: at most one run per interval
    #[arg(long, value_name = "DURATION", value_parser = keep_closed)]
    pub keep_closed: Option<Duration>,
    /// Hold the lock for at least this long, also if the command ends earlier: for hosts whose clocks differ
    #[arg(long, value_name = "DURATION", value_parser = min_hold)]
    pub min_hold: Option<Duration>,
    /// Let at most N runs begin within a time: `10/1m`
    #[arg(long, value_name = "N/DURATION", value_parser = rate, conflicts_with_all = ["permit", "shared", "keep_closed"])]
    pub rate: Option<(u32, Duration)>,
    /// Run the command once: not if it ended with 0 under this key before
    #[arg(long, value_name = "KEY")]
    pub once_key: Option<String>,
    /// Where --once-key keeps its records; by default beside the locks if those are in a directory
    #[arg(long, value_name = "URL", requires = "once_key")]
    pub records: Option<String>,
    /// What to do with processes that still run when the command has ended
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub left: Left,
    /// The exit code if the lock isn't free
    #[arg(long, value_name = "CODE", default_value_t = BUSY)]
    pub busy_exit: u8,
    /// Send a trace of this run to this collector, by OTLP over gRPC: http://HOST:4317. It continues
    /// TRACEPARENT, which the command gets too
    #[arg(long, value_name = "URL", value_parser = super::values::collector)]
    pub otlp: Option<String>,
    /// Write the outcome to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub command: CommandArgs,
}

/// `elect`.
#[derive(Args, Debug)]
#[command(
    override_usage = "lockkeeper elect [OPTIONS] NAME -- COMMAND...",
    after_help = "\
Examples:
  lockkeeper elect shop/scheduler --value 10.0.0.7:80 -- ./scheduler
  lockkeeper leader shop/scheduler

The command runs while it leads, and gets LOCKKEEPER_NAME and LOCKKEEPER_TOKEN. If leadership is lost, it has ended before
another can lead. SIGTERM and Ctrl-C end both."
)]
pub struct Elect {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub job: JobArgs,
    /// End with the first leadership, with exit codes as of `run`
    #[arg(long)]
    pub once: bool,
    /// Answer HTTP at this address: status 200 while it leads, else 503
    #[arg(long, value_name = "HOST:PORT")]
    pub health: Option<String>,
    /// Run this shell command once it leads. Killed after 30 s, or when --on-lost is due; the leadership does
    /// not depend on it
    #[arg(long, value_name = "SHELL")]
    pub on_elected: Option<String>,
    /// Run this shell command once leadership has ended. Killed after 30 s; it can't delay the end: another
    /// one may lead already
    #[arg(long, value_name = "SHELL")]
    pub on_lost: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub command: CommandArgs,
}

/// `partitions`.
#[derive(Args, Debug)]
#[command(
    override_usage = "lockkeeper partitions [OPTIONS] NAME COUNT -- COMMAND...",
    after_help = "\
Examples:
  lockkeeper partitions shop/shards 12 -- ./consume --shard {}     # on each host

Each host runs the command for its share of the partitions 0 to COUNT - 1, in place of {}. The command gets LOCKKEEPER_NAME,
LOCKKEEPER_TOKEN and LOCKKEEPER_PARTITION. SIGTERM ends it when another host is to have its partition."
)]
pub struct PartitionsArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub job: JobArgs,
    /// The group's name
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// The number of partitions, 1 to 65536; all members give the same
    #[arg(value_name = "COUNT")]
    pub count: u32,
    /// The command and its arguments; {} stands for the partition
    #[arg(value_name = "COMMAND", last = true)]
    pub argv: Vec<OsString>,
}

/// `leader`.
#[derive(Args, Debug)]
pub struct LeaderArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The election's name
    pub name: OsString,
    /// Print the leader again each time it changes, or proclaims another value
    #[arg(long)]
    pub watch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
