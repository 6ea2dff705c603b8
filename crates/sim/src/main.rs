//! `lockkeeper-sim`: runs seeds, and reports the first broken promise of each with the command that replays
//! it.

#![expect(clippy::print_stdout, reason = "a command-line tool: what it finds goes to stdout")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use lockkeeper_sim::mutants::{self, Mutant};
use lockkeeper_sim::{Coverage, report_text, run};

/// Simulates a small cluster and its clients under virtual time, by seed.
#[derive(Parser)]
#[command(name = "cargo xtask sim")]
struct Args {
    /// The number of seeds
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run with this mutant (a rule left out), to see whether a check finds it; `all` for each mutant
    #[arg(long)]
    mutant: Option<String>,
    /// Print the trace: one line for each event
    #[arg(long)]
    trace: bool,
    /// Write the trace to this file; a failed seed writes its trace to target/sim in any case
    #[arg(long, requires = "seed")]
    write: Option<PathBuf>,
}

#[expect(clippy::disallowed_types, reason = "how fast it was, for people; no run sees it")]
fn main() -> ExitCode {
    let args = Args::parse();
    if args.mutant.as_deref() == Some("all") {
        let found = mutants::ALL.iter().filter(|mutant| hunt(mutant, &args)).count();
        println!("{found} of {} mutants found", mutants::ALL.len());
        return if found == mutants::ALL.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mutant = match &args.mutant {
        None => None,
        Some(name) => match mutants::find(name) {
            Some(mutant) => Some(mutant),
            None => {
                let names: Vec<&str> = mutants::ALL.iter().map(|mutant| mutant.name).collect();
                eprintln!("there is no mutant `{name}`; there are: {}", names.join(", "));
                return ExitCode::FAILURE;
            }
        },
    };
    let seeds = match args.seed {
        Some(seed) => seed..seed + 1,
        None => args.from..args.from + args.seeds,
    };
    let begun = std::time::Instant::now();
    let (mut seen, mut virtual_nanos, mut events, mut failures) = (Coverage::default(), 0, 0, 0);
    for seed in seeds.clone() {
        let report = run(seed, mutant, args.trace || args.write.is_some());
        if let Some(file) = &args.write
            && let Err(error) = std::fs::write(file, report.lines.join("\n"))
        {
            eprintln!("{} can't be written: {error}", file.display());
            return ExitCode::FAILURE;
        }
        if args.trace {
            report.lines.iter().for_each(|line| println!("{line}"));
        }
        seen.add(report.seen);
        virtual_nanos += report.virtual_nanos;
        events += report.events;
        if args.seed.is_some() {
            println!("seed {seed}: {} events, trace {:016x}", report.events, report.hash);
        }
        if report.failure.is_some() {
            failures += 1;
            println!("{}", report_text(&report, mutant));
        }
    }
    let (took, virtual_time) = (begun.elapsed(), Duration::from_nanos(virtual_nanos));
    println!(
        "{} seeds, {failures} failed; {events} events, {:.0} s of virtual time in {:.1} s ({:.0} times real time)",
        seeds.end - seeds.start,
        virtual_time.as_secs_f64(),
        took.as_secs_f64(),
        virtual_time.as_secs_f64() / took.as_secs_f64().max(1e-9)
    );
    println!("{seen:?}");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds until a check finds the mutant, and prints the number of seeds and the broken promise. Returns
/// whether it was found.
fn hunt(mutant: &Mutant, args: &Args) -> bool {
    for seed in args.from..args.from + args.seeds {
        let report = run(seed, Some(*mutant), false);
        if let Some(failure) = &report.failure {
            println!(
                "{:<24} {:>4} seeds  {} ({})",
                mutant.name,
                seed - args.from + 1,
                failure.promise,
                failure.what
            );
            return true;
        }
    }
    println!("{:<24} not found in {} seeds", mutant.name, args.seeds);
    false
}
