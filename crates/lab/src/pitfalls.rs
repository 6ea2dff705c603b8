//! `pitfalls`: plays the gallery of mistakes, and shows what happens as it happens.

use std::ffi::OsStr;

use clap::Args;
use clap::builder::PossibleValuesParser;
use lockkeeper_lab::{Line, LineKind, PITFALLS, Pitfall, Variant, Verdict, act, markdown, play};
use serde_json::{Value, json};

use crate::exit::{CONFIG, INTERNAL, NO, OK};
use crate::{LabError, output};

/// `pitfalls`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lockkeeper pitfalls                    # lists them
  lockkeeper pitfalls no-fence           # plays one: the mistake, then the right way
  lockkeeper pitfalls --all              # plays all, and shows a table of what each has lost

Plays on servers of its own on loopback (Redis, PostgreSQL, PgBouncer), which must be installed.
Exit code 1 if a mistake loses nothing, or its right way something.")]
pub(crate) struct Pitfalls {
    /// Which to play, in this order
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(PITFALLS.map(|pitfall| pitfall.name)),
          hide_possible_values = true)]
    names: Vec<String>,
    /// Play all
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Print the programs of all as Markdown
    #[arg(long, conflicts_with_all = ["all", "names"])]
    markdown: bool,
    /// Print JSON: a line for each pitfall
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Run as an actor of a play
    #[arg(long, hide = true)]
    act: bool,
}

pub(crate) fn run(args: &Pitfalls) -> Result<u8, LabError> {
    if args.act {
        return act().map(|()| OK).map_err(|error| LabError::new(INTERNAL, error.to_string()));
    }
    if args.markdown {
        output::line(markdown().trim_end())?;
        return Ok(OK);
    }
    if args.names.is_empty() && !args.all {
        return list(args.json);
    }
    let mut played = Vec::new();
    for pitfall in PITFALLS {
        if args.all || args.names.iter().any(|name| name == pitfall.name) {
            played.push(Played::play(pitfall, args.json)?);
        }
    }
    if played.len() > 1 && !args.json {
        let mut rows = vec![["PITFALL", "THE MISTAKE", "THE RIGHT WAY"].map(str::to_owned)];
        rows.extend(played.iter().map(|it| {
            let note = if it.as_described() { "" } else { " (not as described)" };
            [it.pitfall.name.to_owned(), it.wrong.text().to_owned(), format!("{}{note}", it.right.text())]
        }));
        output::columns(&rows)?;
    }
    Ok(if played.iter().all(Played::as_described) { OK } else { NO })
}

fn list(as_json: bool) -> Result<u8, LabError> {
    if as_json {
        PITFALLS.iter().try_for_each(|pitfall| output::line(description(pitfall)))?;
        return Ok(OK);
    }
    let mut rows = vec![["NAME", "PITFALL", "NOTE"].map(str::to_owned)];
    for pitfall in PITFALLS {
        let missing = missing(pitfall);
        let note = if missing.is_empty() { missing } else { format!("needs: apt-get install {missing}") };
        rows.push([pitfall.name.to_owned(), pitfall.title.to_owned(), note]);
    }
    output::columns(&rows)?;
    output::say("play one: lockkeeper pitfalls no-fence; or all: lockkeeper pitfalls --all");
    Ok(OK)
}

/// The packages that this machine lacks for a pitfall.
fn missing(pitfall: &Pitfall) -> String {
    let mut packages: Vec<&str> = pitfall.missing().map(|program| program.package).collect();
    packages.dedup();
    packages.join(" ")
}

/// A pitfall, and the outcomes of its two plays.
struct Played {
    pitfall: &'static Pitfall,
    wrong: Verdict,
    right: Verdict,
}

impl Played {
    fn play(pitfall: &'static Pitfall, as_json: bool) -> Result<Self, LabError> {
        let missing = missing(pitfall);
        if !missing.is_empty() {
            let why = format!("`{}` can't be played: it needs `apt-get install {missing}`", pitfall.name);
            return Err(LabError::new(CONFIG, why));
        }
        if !as_json {
            introduce(pitfall.title, pitfall.mistake)?;
        }
        let (wrong, wrong_lines) = one(pitfall, Variant::Wrong, as_json)?;
        if !as_json {
            introduce("The right way", pitfall.remedy)?;
        }
        let (right, right_lines) = one(pitfall, Variant::Right, as_json)?;
        if as_json {
            let mut all = description(pitfall);
            all["wrong"] = json!({ "lost": wrong.is_loss(), "outcome": wrong.text(), "trace": wrong_lines });
            all["right"] = json!({ "lost": right.is_loss(), "outcome": right.text(), "trace": right_lines });
            output::line(all)?;
        }
        Ok(Self { pitfall, wrong, right })
    }

    fn as_described(&self) -> bool {
        self.wrong.is_loss() && !self.right.is_loss()
    }
}

/// Plays one program of a pitfall; its trace is shown as it happens, or returned for JSON.
fn one(pitfall: &'static Pitfall, variant: Variant, as_json: bool) -> Result<(Verdict, Vec<Line>), LabError> {
    let program = std::env::current_exe()
        .map_err(|error| LabError::new(INTERNAL, format!("this program is not found: {error}")))?;
    let actor = [program.as_os_str(), OsStr::new("pitfalls"), OsStr::new("--act")];
    let mut lines = Vec::new();
    let mut shown = Ok(());
    let outcome = play(pitfall, variant, &actor, &mut |line| {
        if as_json {
            lines.push(line.clone());
        } else if shown.is_ok() {
            shown = output::prose(&trace(line), &" ".repeat(TEXT_COLUMN));
        }
    });
    shown?;
    let outcome = outcome.map_err(|error| LabError::new(INTERNAL, format!("`{}`: {error}", pitfall.name)))?;
    if !as_json {
        let (colour, word) = if outcome.is_loss() { ("31", "LOST") } else { ("32", "kept") };
        let word = output::painted(colour, &format!("{word:>8}"));
        output::prose(&format!("  {word}  {}\n", outcome.text()), &" ".repeat(TEXT_COLUMN))?;
    }
    Ok((outcome, lines))
}

/// Where the texts of a trace begin: behind the seconds.
const TEXT_COLUMN: usize = 12;

fn trace(line: &Line) -> String {
    let seconds = format!("{}.{:03}", line.at_ms / 1000, line.at_ms % 1000);
    match line.kind {
        LineKind::Step => format!("  {seconds:>8}  {:<2} {}", line.actor, line.text),
        LineKind::Script => {
            format!("  {seconds:>8}  {}", output::painted("33", &format!("** {}", line.text)))
        }
    }
}

/// Prints a program's heading, and what it shows.
fn introduce(heading: &str, text: &str) -> Result<(), LabError> {
    output::line(format!("{}\n", output::painted("1", heading)))?;
    output::prose(&format!("{text}\n"), "")
}

fn description(pitfall: &Pitfall) -> Value {
    json!({
        "name": pitfall.name,
        "title": pitfall.title,
        "mistake": pitfall.mistake,
        "remedy": pitfall.remedy,
        "missing": pitfall.missing().map(|program| program.package).collect::<Vec<_>>(),
    })
}
