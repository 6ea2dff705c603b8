//! `lockkeeper-model`: explores one model, with all rules or without one, and prints how a promise is broken.

#![expect(clippy::print_stdout, reason = "a command-line tool: what it finds goes to stdout")]

use std::process::ExitCode;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lockkeeper_model::{
    CACHED_PROMISES, CachedModel, CachedRule, Exploration, Model, PROMISES, Rule, explore, path,
};

/// Explores every order of events of one session and several leaders, or of the clients of one cached lock.
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
    /// Explore cached holds of this many clients instead; of the other options only those below apply
    #[arg(long, value_name = "CLIENTS", value_parser = clap::value_parser!(u8).range(2..=3))]
    cached: Option<u8>,
    /// With `--cached`: how often each client asks for the lock
    #[arg(long, default_value_t = 2)]
    asks: u8,
    /// With `--cached`: tokens of a block beyond the first
    #[arg(long, default_value_t = 1)]
    spare: u8,
    /// With `--cached`: all clients cache, not only the first
    #[arg(long)]
    all_cache: bool,
    /// With `--cached`: no time passes, and no stream ends
    #[arg(long)]
    calm: bool,
    /// With `--cached`: leave this rule out
    #[arg(long, value_parser = PossibleValuesParser::new(CachedRule::ALL.map(CachedRule::name)))]
    cached_without: Option<String>,
    /// Stop once all of these promises are broken; by default, every state is visited
    #[arg(long, value_parser = PossibleValuesParser::new(promises()).map(promise))]
    until: Vec<&'static str>,
    /// Number of threads; with more than one, the printed paths differ from run to run
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// The value parser accepts only names from `Rule::ALL`, so the default is never used.
fn rule(name: String) -> Rule {
    Rule::ALL.into_iter().find(|rule| rule.name() == name).unwrap_or(Rule::Round)
}

fn promises() -> impl Iterator<Item = &'static str> + Clone {
    PROMISES.into_iter().chain(CACHED_PROMISES)
}

fn promise(name: String) -> &'static str {
    promises().find(|promise| *promise == name).unwrap_or(PROMISES[0])
}

fn print(report: &Exploration<impl std::fmt::Display>) -> ExitCode {
    println!("{} states", report.states);
    report.reached.iter().for_each(|event| println!("reached: {event}"));
    for (promise, actions) in &report.broken {
        println!("{promise} is broken: {}", path(actions));
    }
    if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(clients) = args.cached {
        let without = args.cached_without;
        let without = CachedRule::ALL.into_iter().find(|rule| Some(rule.name()) == without.as_deref());
        let (asks, spare, all_cache, stalls) = (args.asks, args.spare, args.all_cache, !args.calm);
        let model = CachedModel { clients, asks, spare, all_cache, stalls, without };
        return print(&explore(model, &args.until, args.threads));
    }
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
    print(&explore(model, &args.until, args.threads))
}
