//! Arguments of `pitfalls`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use lockkeeper_pitfalls::PITFALLS;

/// `pitfalls`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper pitfalls                    # lists them
  lockkeeper pitfalls no-fence           # plays one: the mistake, then the right way
  lockkeeper pitfalls --all              # plays all, and shows a table of what each has lost

Plays on servers of its own on loopback (Redis, PostgreSQL, PgBouncer), which must be installed.
Exit code 1 if a mistake loses nothing, or its right way something.")]
pub struct Pitfalls {
    /// Which to play, in this order
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(PITFALLS.map(|pitfall| pitfall.name)),
          hide_possible_values = true)]
    pub names: Vec<String>,
    /// Play all
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Print the programs of all as Markdown
    #[arg(long, conflicts_with_all = ["all", "names"])]
    pub markdown: bool,
    /// Print JSON: a line for each pitfall
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Run as an actor of a play
    #[arg(long, hide = true)]
    pub act: bool,
}
