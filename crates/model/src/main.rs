//! `lockkeeper-model`: explores one model, with all rules or without one, and prints how a promise is broken.

#![expect(clippy::print_stdout, reason = "a command-line tool: what it finds goes to stdout")]

use std::process::ExitCode;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lockkeeper_model::{Model, PROMISES, Rule, explore, path};

/// Explores every order of events of one session and several leaders.
#[derive(Parser)]
#[command(name = "lockkeeper-model")]
struct Args {
    /// Number of successive leaders
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    leaders: u8,
    /// Number of streams that the client opens in succession
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    streams: u8,
    /// Maximum number of renewals (keep-alives and attaches) in flight at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    calls: u8,
    /// Sessions expire
    #[arg(long)]
    expiry: bool,
    /// The session has `linger`
    #[arg(long)]
    linger: bool,
    /// An operator breaks a hold
    #[arg(long)]
    breaks: bool,
    /// Leaders end streams themselves
    #[arg(long)]
    drops: bool,
    /// A middlebox closes streams towards the leader, without the client's notice
    #[arg(long)]
    middlebox: bool,
    /// Leave this rule out
    #[arg(long, value_parser = PossibleValuesParser::new(Rule::ALL.map(Rule::name)).map(rule))]
    without: Option<Rule>,
    /// Stop once all of these promises are broken; by default, every state is visited
    #[arg(long, value_parser = PossibleValuesParser::new(PROMISES).map(promise))]
    until: Vec<&'static str>,
    /// Number of threads; with more than one, the printed paths differ from run to run
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// The value parser accepts only names from `Rule::ALL`, so the default is never used.
fn rule(name: String) -> Rule {
    Rule::ALL.into_iter().find(|rule| rule.name() == name).unwrap_or(Rule::Round)
}

fn promise(name: String) -> &'static str {
    PROMISES.into_iter().find(|promise| *promise == name).unwrap_or(PROMISES[0])
}

fn main() -> ExitCode {
    let args = Args::parse();
    let model = Model {
        leaders: args.leaders,
        streams: args.streams,
        calls: args.calls,
        expiry: args.expiry,
        linger: args.linger,
        breaks: args.breaks,
        drops: args.drops,
        middlebox: args.middlebox,
        without: args.without,
    };
    let report = explore(model, &args.until, args.threads);
    println!("{} states", report.states);
    report.reached.iter().for_each(|event| println!("reached: {event}"));
    for (promise, actions) in &report.broken {
        println!("{promise} is broken: {}", path(actions));
    }
    if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
