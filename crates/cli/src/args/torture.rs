//! Arguments of `torture`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::ServiceArgs;
use crate::settings::duration;

/// `torture`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper torture --locks lockkeeper://127.0.0.1 --resource file:///tmp --fence none
  lockkeeper torture --locks 'redis://127.0.0.1?fencing=counter' --resource file:///tmp --fence enter --json
  lockkeeper torture --locks 'postgres://127.0.0.1/app?lock=session' --resource file:///tmp --faults cut

It takes a lock and a resource of its own, with random names, and removes what it made. docs/torture.md says what it
does and how to read what it prints.")]
pub struct Torture {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// Where the workers write: `file:///dir`, `postgres://host/database`, `redis://host`
    #[arg(long, value_name = "URL", required_unless_present = "worker")]
    pub resource: Option<String>,
    /// How the workers use the tokens of their holds
    #[arg(long, value_enum, default_value_t = TokenUse::Enter)]
    pub fence: TokenUse,
    /// Use cached locks: a worker keeps the lock for some sections, then rests, so that others take it
    #[arg(long)]
    pub cached: bool,
    /// The faults injected into holders
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [HolderFault::Pause, HolderFault::Kill])]
    pub faults: Vec<HolderFault>,
    /// How many processes compete for the lock
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub workers: u32,
    /// How long holds outlive their last keep-alive, on services with leases: 1s to 1h
    #[arg(long, value_name = "DURATION", value_parser = ttl, default_value = "1s")]
    pub ttl: Duration,
    /// How long a holder is stopped, or cut off, at least: a duration up to 24h, or a multiple of the ttl
    #[arg(long, value_name = "DURATION", value_parser = pause, default_value = "2x-ttl")]
    pub pause: Pause,
    /// The shortest duration, up to 24h; each fault is injected at each of its points, however long that
    /// takes
    #[arg(long, value_name = "DURATION", value_parser = run_time, default_value = "20s")]
    pub duration: Duration,
    /// The lock server's process id, for `--faults server`: it is stopped and continued
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(2..), required_if_eq("faults", "server"))]
    pub server_pid: Option<i32>,
    /// Keep the resource and the workers' logs, and print where they are
    #[arg(long)]
    pub keep: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Run as one worker
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// How a worker of `torture` uses its token.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenUse {
    /// Not at all: the worker relies on its lock.
    None,
    /// Every write is checked.
    Write,
    /// The worker enters the fence before it reads, and every write is checked.
    Enter,
}

impl TokenUse {
    /// The value's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Write => "write",
            Self::Enter => "enter",
        }
    }
}

/// What `torture` does to a holder.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderFault {
    /// Stops the holder's process (SIGSTOP) past its lease.
    Pause,
    /// Ends the holder's process (SIGKILL).
    Kill,
    /// Closes the holder's connections to the lock service, and refuses new ones for a while.
    Cut,
    /// Stops the lock server while a worker holds the lock.
    Server,
}

impl HolderFault {
    /// The value's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::Server => "server",
        }
    }
}

/// How long a holder stalls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pause {
    /// A multiple of the ttl.
    Times(f64),
    /// A fixed duration.
    For(Duration),
}

impl Pause {
    /// The stall's duration for this ttl.
    #[must_use]
    pub fn with(self, ttl: Duration) -> Duration {
        match self {
            Self::Times(times) => ttl.mul_f64(times),
            Self::For(duration) => duration,
        }
    }
}

/// Accepts the range of a lease in the library, so that a wrong value is refused here and not by every
/// worker.
fn ttl(typed: &str) -> Result<Duration, String> {
    match duration(typed)? {
        ttl if (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&ttl) => Ok(ttl),
        _ => Err(format!("`{typed}` is no ttl: give 1s to 1h")),
    }
}

fn run_time(typed: &str) -> Result<Duration, String> {
    match duration(typed)? {
        time if time <= Duration::from_secs(24 * 3600) => Ok(time),
        _ => Err(format!("`{typed}` is longer than a day; give at most 24h")),
    }
}

fn pause(typed: &str) -> Result<Pause, String> {
    let Some(times) = typed.strip_suffix("x-ttl") else { return run_time(typed).map(Pause::For) };
    match times.parse() {
        Ok(times) if (0.0..=100.0).contains(&times) => Ok(Pause::Times(times)),
        _ => Err(format!("`{typed}` is not a multiple of the ttl; write `2x-ttl`, 0 to 100 of them")),
    }
}
