//! `conformance`: gives a client a verdict for each promise, and prints it.

use std::time::Duration;

use clap::Args;
use lockkeeper_lab::conformance::{HarnessError, Promise, PromiseVerdict, Selection, conformance};
use serde_json::json;

use crate::exit::{CONFIG, INTERNAL, NO, OK};
use crate::{LabError, output};

/// `conformance`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lockkeeper conformance --driver 'lockkeeper-lab driver'               # the Rust library
  lockkeeper conformance --driver 'python3 my_driver.py' --driver 'lockkeeper-lab driver'

A driver is a small program around a client: docs/write-a-client.md. Several are played beside each other. Without
--locks, three nodes of our own service and a Redis server are started for it, on loopback.
Exit code 1 if a promise is broken.")]
pub(crate) struct Conformance {
    /// The driver's command line, for `sh` (can be repeated)
    #[arg(long = "driver", value_name = "COMMAND", required = true)]
    drivers: Vec<String>,
    /// Play on this lock service, without faults of the service
    #[arg(long, value_name = "URL")]
    locks: Option<String>,
    /// Play only scenarios about this promise, as `P5` (can be repeated)
    #[arg(long = "promise", value_name = "PROMISE", value_parser = promise)]
    promises: Vec<Promise>,
    /// How many seconds an answer may take, or the lock service to come to a state
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
    /// Print JSON: a line for each promise
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Conformance) -> Result<u8, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| LabError::new(INTERNAL, error.to_string()))?;
    let played = runtime.block_on(conformance(&Selection {
        drivers: args.drivers.clone(),
        locks: args.locks.clone(),
        promises: args.promises.clone(),
        patience: Duration::from_secs(args.patience),
    }));
    let verdicts = played.map_err(|HarnessError { is_usage, text }| {
        LabError::new(if is_usage { CONFIG } else { INTERNAL }, text)
    })?;
    for verdict in &verdicts {
        if args.json {
            output::line(json!({
                "promise": verdict.promise.name(),
                "title": verdict.promise.title(),
                "verdict": word(verdict),
                "played": verdict.played,
                "broken": verdict.broken,
                "left_out": verdict.left_out,
            }))?;
        } else {
            shown(verdict)?;
        }
    }
    Ok(if verdicts.iter().all(|verdict| verdict.broken.is_empty()) { OK } else { NO })
}

fn promise(typed: &str) -> Result<Promise, String> {
    let promise = Promise::ALL.into_iter().find(|promise| promise.name().eq_ignore_ascii_case(typed));
    promise.ok_or_else(|| "the promises are P1 to P12".to_owned())
}

fn word(verdict: &PromiseVerdict) -> &'static str {
    match verdict {
        PromiseVerdict { broken, .. } if !broken.is_empty() => "broken",
        PromiseVerdict { played: 0, .. } => "not claimed",
        _ => "held",
    }
}

fn shown(verdict: &PromiseVerdict) -> Result<(), LabError> {
    let (colour, word) = match word(verdict) {
        "held" => ("32", "held"),
        "broken" => ("31", "BROKEN"),
        other => ("33", other),
    };
    let (name, title) = (verdict.promise.name(), verdict.promise.title());
    output::line(format!("{name:<8}  {}  {title}", output::painted(colour, &format!("{word:<11}"))))?;
    for broken in &verdict.broken {
        output::line(format!("          BROKEN: {broken}"))?;
    }
    for left_out in &verdict.left_out {
        output::line(format!("          not played: {left_out}"))?;
    }
    Ok(())
}
