//! The command line: argument definitions and help texts only. `settings` and the commands interpret the
//! values.

mod access;
mod advise;
mod cluster;
mod config;
mod explain;
mod fence;
mod gate;
mod run;
mod service;
mod suggest;
mod tls;
mod torture;
mod values;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use lockkeeper::Token;
use lockkeeper::backends::{BACKENDS, KnownBackend};

use crate::exit::{Failure, USAGE};
use crate::settings::duration;
use suggest::{one_line, suggestion};
use values::{reason, token};

pub use access::{
    AccessCheck, AccessCommand, AccessQuota, ActionArg, TokenAdd, TokenCommand, TokenList, TokenOf,
};
pub use advise::Advise;
pub use cluster::{
    ClusterAdd, ClusterCommand, ClusterKeep, ClusterRemove, ClusterReplace, ClusterStatus, ClusterTransfer,
};
pub use explain::{Explain, ExplainSettings};
pub use fence::{Fence, FenceArgs, FenceMode, FenceReset, FenceShow, FenceTarget, FenceWrite};
pub use gate::Gate;
pub use run::{CommandArgs, Elect, JobArgs, LeaderArgs, PartitionsArgs, Run};
pub use service::{
    Backup, LogFormat, Permits, Restore, Serve, Sessions, SessionsEnd, SessionsTask, SetLimit,
};
pub use tls::{TlsCommand, TlsInit, TlsIssue, TlsRenew, TlsShow};
pub use torture::{HolderFault, Pause, TokenUse, Torture};
pub use verify::Verify;

/// The version; `cargo xtask dist` adds the commit. Other builds leave it out: they would be rebuilt after
/// each commit.
const VERSION: &str = match option_env!("LOCKKEEPER_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Distributed locks that keep their promise even when a holder stalls.
#[derive(Parser, Debug)]
#[command(name = "lockkeeper", version = VERSION, propagate_version = true, max_term_width = 100, after_help = lock_services())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The help of `--locks`: the schemes of the lock services in this program.
fn locks_help() -> String {
    let (here, missing): (Vec<&KnownBackend>, Vec<_>) =
        BACKENDS.iter().partition(|known| known.info.is_some());
    let names = |some: &[&KnownBackend]| {
        let schemes = some.iter().flat_map(|known| known.schemes.iter());
        schemes.map(|scheme| format!("{}:", scheme.name)).collect::<Vec<_>>().join(" ")
    };
    let mut features: Vec<_> =
        missing.iter().flat_map(|known| known.schemes.iter()).filter_map(|it| it.feature).collect();
    features.dedup();
    let missing = match names(&missing) {
        none if none.is_empty() => none,
        missing => {
            format!("; not in this program: {missing} (build it with the features {})", features.join(", "))
        }
    };
    format!("The lock service, by its URL: {}{missing}; by default a directory of this host", names(&here))
}

/// The list of lock services at the end of the help.
fn lock_services() -> String {
    let mut text = "Lock services (--locks URL):".to_owned();
    for known in BACKENDS {
        text.push_str(&match known.info {
            Some(info) => format!("\n  {:<35}  {}", info.example, info.summary),
            None => format!("\n  {:<35}  (not compiled in)", format!("{}:", known.schemes[0].name)),
        });
    }
    text
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a command under a lock, and end it before another client can get the lock
    Run(Run),
    /// Run a command while it leads an election, and campaign again when it has ended
    Elect(Elect),
    /// Run a command for each partition of which this host becomes the owner, as a member of a group
    Partitions(PartitionsArgs),
    /// Show the leader of an election (exit code 1: there is none), or follow its changes
    #[command(after_help = "Example:\n  lockkeeper leader shop/scheduler --watch")]
    Leader(LeaderArgs),
    /// Serve locks to other processes and machines: a node of our own service
    Serve(Serve),
    /// Make certificates for nodes and clients of our own service, renew them, show them
    #[command(after_help = "Example:\n  lockkeeper tls init ./tls --nodes 3")]
    #[command(subcommand)]
    Tls(TlsCommand),
    /// Make tokens for clients of our own service, remove them, list them
    #[command(after_help = "Example:\n  lockkeeper token add billing --file tokens --out billing.token")]
    #[command(subcommand)]
    Token(TokenCommand),
    /// Try out a file of permissions for clients of our own service
    #[command(
        after_help = "Example:\n  lockkeeper access check billing acquire orders/42 --file permissions.toml"
    )]
    #[command(subcommand)]
    Access(AccessCommand),
    /// Check histories of locks: who held what, which tokens were accepted, whether an update was lost
    Verify(Verify),
    /// Check fencing tokens in front of an HTTP service that can't
    Gate(Gate),
    /// Recommend a lock, or an alternative to one, by a few questions
    Advise(Advise),
    /// Play what goes wrong with locks, step by step, and what a fence changes
    Explain(Explain),
    /// Show the classic mistakes with locks: programs that fail on real servers, each beside the right way
    #[command(after_help = "\
Examples:
  lockkeeper pitfalls                    # lists them
  lockkeeper pitfalls no-fence           # plays one: the mistake, then the right way

They start servers of other projects, so they are in a program of their own. `lockkeeper-lab pitfalls --help` has all
options.")]
    Pitfalls {
        /// Names and options for `lockkeeper-lab pitfalls`, which this starts
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        args: Vec<OsString>,
    },
    /// Give any client of the lock service, in any language, a verdict for each promise
    #[command(after_help = "\
Example:
  lockkeeper conformance --driver 'python3 my_driver.py'

A driver is a small program around the client (docs/write-a-client.md). `lockkeeper-lab conformance --help` has all
options.")]
    Conformance {
        /// Options for `lockkeeper-lab conformance`, which this starts
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        args: Vec<OsString>,
    },
    /// List locks in use
    #[command(after_help = "Example:\n  lockkeeper ls orders --json")]
    Ls(Ls),
    /// Show the holders and waiters of a lock
    #[command(after_help = "Example:\n  lockkeeper show orders/42")]
    Show(Show),
    /// Follow locks as they change: the current state first, then one line per change
    #[command(
        after_help = "Example:\n  lockkeeper watch --json | while read -r line; do echo \"$line\"; done"
    )]
    Watch(Ls),
    /// End another client's hold, after giving its holder time to stop
    #[command(
        after_help = "Examples:\n  lockkeeper break orders/42 --token 17 --reason 'hangs, see ticket 5'\n  lockkeeper break --prefix orders --holder web1 --reason 'ticket 6'"
    )]
    Break(Break),
    /// List the sessions of our own service, or end some
    #[command(
        after_help = "Examples:\n  lockkeeper sessions --locks lockkeeper://127.0.0.1\n  lockkeeper sessions end --label web1 --reason 'web1 is dead' --locks lockkeeper://127.0.0.1"
    )]
    Sessions(Sessions),
    /// Store how many permits a semaphore has, for all clients
    #[command(after_help = "Example:\n  lockkeeper set-limit gpu 4 --locks lockkeeper://127.0.0.1")]
    SetLimit(SetLimit),
    /// Show the nodes of our own service, add one, remove one, transfer the leadership
    #[command(after_help = "Example:\n  lockkeeper cluster status --locks lockkeeper://127.0.0.1")]
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Save the whole table of our own service to a file, while it serves
    #[command(after_help = "Example:\n  lockkeeper backup /backup/locks --locks lockkeeper://127.0.0.1")]
    Backup(Backup),
    /// Make a new cluster of one node from a backup
    #[command(after_help = "\
Example:
  lockkeeper restore /backup/locks --data /var/lib/lockkeeper-serve

Old sessions and what they held are gone; tokens go on above all that were ever issued. docs/operating.md says more.")]
    Restore(Restore),
    /// Check a token: exit code 0 if it is current, 1 if not
    #[command(after_help = "Example:\n  lockkeeper check-token orders/42 17 && echo it is current")]
    CheckToken(CheckToken),
    /// Guard a file with tokens, from shell scripts; show the marks of a fence, or set them
    #[command(after_help = "Example:\n  lockkeeper fence enter stock.txt --token \"$LOCKKEEPER_TOKEN\"")]
    #[command(subcommand)]
    Fence(Fence),
    /// Measure a lock service
    #[command(
        after_help = "Example:\n  lockkeeper bench --locks file:///tmp/locks --workload handoff --clients 16 --processes --json"
    )]
    Bench(Bench),
    /// Stop, kill and cut off holders, and count lost updates, with a fence and without
    Torture(Torture),
    /// Show what a lock service can do, and test it
    #[command(after_help = "\
Example:
  lockkeeper doctor file:///var/lib/lockkeeper

Exit code 80 if a node does not answer or knows no leader, or if a setting of the lock service breaks a promise.")]
    Doctor(Doctor),
    /// Prepare a table of Amazon DynamoDB for locks
    #[command(after_help = "Example:\n  lockkeeper dynamodb init 'dynamodb://locks?region=eu-central-1'")]
    #[command(subcommand)]
    Dynamodb(Dynamodb),
    /// Prepare a PostgreSQL database for locks
    #[cfg(feature = "postgres")]
    #[command(
        after_help = "Example:\n  lockkeeper postgres init postgres://admin@db.example/app --role app\n  lockkeeper postgres init --print | less"
    )]
    #[command(subcommand)]
    Postgres(Postgres),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  lockkeeper completions bash > /etc/bash_completion.d/lockkeeper")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages
    #[command(after_help = "Example:\n  lockkeeper man /usr/local/share/man/man1")]
    Man {
        /// The directory; created if it doesn't exist.
        #[arg(default_value = "man")]
        dir: PathBuf,
    },
}

/// Options that select the lock service.
#[derive(Args, Debug, Clone)]
pub struct ServiceArgs {
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_URL", hide_env_values = true, help = locks_help())]
    #[allow(missing_docs, reason = "its text is put together")]
    pub locks: Option<String>,
    /// Use the default locks, of this host only, without a line about that on standard error
    #[arg(long)]
    pub local: bool,
}

/// `ls` and `watch`.
#[derive(Args, Debug)]
pub struct Ls {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// Only locks at or below this name
    pub prefix: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `show`.
#[derive(Args, Debug)]
pub struct Show {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The lock's name
    pub name: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `break`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").args(["name", "prefix", "holder"]).required(true).multiple(true))]
pub struct Break {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The lock's name; or select many holds with `--prefix` and `--holder`
    #[arg(requires = "token")]
    pub name: Option<OsString>,
    /// The hold's token, as `show` prints it: a break never affects a later hold
    #[arg(long, value_parser = token, requires = "name")]
    pub token: Option<Token>,
    /// Break all holds at this name and below it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "wait"])]
    pub prefix: Option<OsString>,
    /// Break all holds whose owner, as `ls` prints it, has these words: a host, `pid 71`
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["name", "wait"])]
    pub holder: Option<String>,
    /// Only list the holds that would be broken
    #[arg(long, conflicts_with = "name")]
    pub dry_run: bool,
    /// Don't ask for a confirmation: needed without a terminal
    #[arg(long, conflicts_with = "name")]
    pub yes: bool,
    /// The reason, for the audit log and for the holder
    #[arg(long, value_parser = reason, required_unless_present = "dry_run")]
    pub reason: Option<String>,
    /// The author of the break; the current user by default
    #[arg(long)]
    pub by: Option<String>,
    /// Don't wait for the holder to stop: there is no mutual exclusion until it has
    #[arg(long)]
    pub now: bool,
    /// Wait at most this long until the hold has ended (exit code 75)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `check-token`.
#[derive(Args, Debug)]
pub struct CheckToken {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// The lock's name
    pub name: OsString,
    /// The token
    #[arg(value_parser = token)]
    pub token: Token,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `bench`.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Workload::Uncontended)]
    pub workload: Workload,
    /// How many clients: tasks of this process, or processes with --processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Each client in a process of its own
    #[arg(long)]
    pub processes: bool,
    /// How many connections tasks share with `lockkeeper://`; at most one per client
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with = "processes")]
    pub connections: u32,
    /// With `memory`: how many locks to hold
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub held: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Run as one worker process of a bench
    #[arg(long, hide = true)]
    pub worker: Option<u32>,
}

/// What `bench` measures.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Each client has a lock of its own.
    Uncontended,
    /// As uncontended, with cached locks: one pair in 16 is timed.
    Cached,
    /// All clients share one lock: from a release to the grant of a client that was already waiting.
    Handoff,
    /// Each client holds one lock and keeps it alive.
    Keepalive,
    /// The memory that a held lock costs.
    Memory,
}

/// `doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// The lock service, instead of --locks
    pub url: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: ServiceArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `dynamodb`.
#[derive(Subcommand, Debug)]
pub enum Dynamodb {
    /// Make the table, billed by request (on demand), and check that it suits. Does nothing if it exists
    Init {
        /// The table, and its region
        url: String,
    },
}

/// `postgres`.
#[cfg(feature = "postgres")]
#[derive(Subcommand, Debug)]
pub enum Postgres {
    /// Make the schema `lockkeeper`: the token sequence, and the tables for `lock=row`. Does nothing if it
    /// exists
    Init {
        /// The database, with a user that may create a schema in it
        #[arg(required_unless_present = "print")]
        url: Option<String>,
        /// Let this role use locks, and nothing more; without it only the owner can
        #[arg(long, value_name = "NAME")]
        role: Option<String>,
        /// Print the SQL instead of running it
        #[arg(long)]
        print: bool,
    },
}

/// Whether this command line asks for errors as JSON, even if it is wrong otherwise. The words after `--`
/// belong to another command; and what `serve` prints on standard error is a log, whose format `--log` sets.
pub fn asks_for_json(words: impl IntoIterator<Item = OsString>) -> bool {
    let mut own = words.into_iter().skip(1).take_while(|word| word != "--").peekable();
    own.peek().is_some_and(|command| command != "serve") && own.any(|word| word == "--json")
}

/// Parses the command line. Help and version are printed here, and end the process.
///
/// # Errors
/// [`USAGE`], with a one-line message.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Failure> {
    let mut words = permits_joined(words.into_iter().collect());
    let mut commands = Cli::command();
    let (typed, mut file) = (words.clone(), None);
    if words.get(1).is_some_and(|word| word == "serve")
        && let Some(serve) = commands.find_subcommand("serve")
    {
        (words, file) = config::with_file(words, serve)?;
    }
    let parsed = commands.try_get_matches_from_mut(&words).and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let Command::Serve(args) = &mut cli.command
            && args.print_config
            && let Some((name, matches)) = matches.subcommand()
            && let Some(serve) = commands.find_subcommand(name)
        {
            args.in_force = config::in_force(serve, matches);
        }
        Ok(cli)
    });
    let error = match parsed {
        Ok(cli) => return Ok(cli),
        Err(error) => error.format(&mut commands),
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A write error is ignored: the arguments are wrong in any case.
            let _ = error.print();
            std::process::exit(i32::from(USAGE));
        }
        _ => {}
    }
    let mut text = suggestion(&error, &words).unwrap_or_else(|| one_line(&error.to_string()));
    let is_run = words.get(1).is_some_and(|word| word == "run");
    if is_run && error.kind() == ErrorKind::UnknownArgument && !words.iter().any(|word| word == "--") {
        text.push_str("; the command goes behind `--`, as in `lockkeeper run NAME -- COMMAND`");
    }
    if let Some(file) = file {
        text = file.position_of(&text, &typed) + &text;
    }
    if error.kind() == ErrorKind::MissingRequiredArgument && text.contains("--token") {
        text.push_str("; `lockkeeper show NAME` prints the tokens");
    }
    Err(Failure::new(USAGE, text))
}

/// Rewrites `--permit 3 NAME --` as `--permit=3 NAME --`. Without the `=`, clap can't distinguish the number
/// from the name; here a number counts as the permit limit only if another word follows.
fn permits_joined(mut words: Vec<OsString>) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let options = &words[..end];
    let is_number = |word: &OsString| {
        word.to_str().is_some_and(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()))
    };
    if options.get(1).is_none_or(|word| word != "run") {
        return words;
    }
    let at = options.windows(3).position(|three| three[0] == "--permit" && is_number(&three[1]));
    if let Some(at) = at {
        let number = words.remove(at + 1);
        words[at].push("=");
        words[at].push(number);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(line: &str) -> Option<Option<Option<u32>>> {
        match parse(line.split(' ').map(OsString::from)).ok()?.command {
            Command::Run(run) => Some(run.permit),
            _ => None,
        }
    }

    #[test]
    fn typos_and_names_of_other_tools_get_a_suggestion() {
        for (line, wanted) in [
            ("lockkeeper run --tyr x -- true", "'--try'"),
            ("lockkeeper run --max-hodl 5s x -- true", "'--max-hold'"),
            ("lockkeeper list", "'ls'"),
            ("lockkeeper sho x", "'show'"),
            ("lockkeeper status", "'cluster status'"),
            ("lockkeeper run --timeout 5s x -- true", "'--wait'"),
            ("lockkeeper serve --port 5 --data d", "'--listen'"),
            ("lockkeeper sessions lockkeeper://127.0.0.1", "--locks"),
        ] {
            let error = parse(line.split(' ').map(OsString::from)).unwrap_err();
            assert!(error.code == USAGE && error.message.contains(wanted), "{}", error.message);
        }
        for (_, ours) in suggest::SYNONYMS {
            let command =
                ours.split(' ').try_fold(Cli::command(), |at, word| at.find_subcommand(word).cloned());
            assert!(command.is_some(), "{ours}");
        }
        let error = parse(["lockkeeper", "run", "--zzz", "x"].map(OsString::from)).unwrap_err();
        assert!(
            error.message.contains("--zzz") && error.message.contains("behind `--`"),
            "{}",
            error.message
        );
    }

    #[test]
    fn permit_limit_is_accepted_with_and_without_equals_sign() {
        assert_eq!(permit("lockkeeper run --permit=3 gpu -- true"), Some(Some(Some(3))));
        assert_eq!(permit("lockkeeper run --permit 3 gpu -- true"), Some(Some(Some(3))));
        assert_eq!(permit("lockkeeper run --permit gpu -- true"), Some(Some(None)));
        assert_eq!(permit("lockkeeper run --permit 3 -- true"), Some(Some(None)), "a lock named 3");
        assert_eq!(permit("lockkeeper run gpu -- x --permit 3 y"), Some(None), "the command's own");
    }

    #[test]
    fn argument_errors_are_one_line_and_quote_the_argument() {
        for (line, quoted) in [
            ("lockkeeper run x true", "behind `--`"),
            ("lockkeeper run --wait 5 x -- true", "'5'"),
            ("lockkeeper run --try --wait 5s x -- true", "--wait"),
            ("lockkeeper nonsense", "nonsense"),
            ("lockkeeper show", "<NAME>"),
        ] {
            let failure = parse(line.split(' ').map(OsString::from)).unwrap_err();
            assert_eq!(failure.code, USAGE, "{line}");
            assert!(
                failure.message.contains(quoted) && !failure.message.contains('\n'),
                "{line}: {failure:?}"
            );
        }
    }
}
