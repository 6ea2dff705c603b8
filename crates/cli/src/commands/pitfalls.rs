//! `pitfalls`: plays the gallery of mistakes, and shows what happens as it happens.

use std::ffi::OsStr;

use lockkeeper_pitfalls::{Line, LineKind, PITFALLS, Pitfall, Variant, Verdict, act, markdown, play};
use serde_json::{Value, json};

use crate::args::Pitfalls;
use crate::exit::{CONFIG, Failure, INTERNAL, NO, OK};
use crate::output;
use crate::table::Table;

pub(super) fn pitfalls(args: &Pitfalls) -> Result<u8, Failure> {
    if args.act {
        return act().map(|()| OK).map_err(|error| Failure::new(INTERNAL, error.to_string()));
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
        let mut table = Table::new(["PITFALL", "THE MISTAKE", "THE RIGHT WAY"]);
        for it in &played {
            let row = [it.pitfall.name, it.wrong.text(), it.right.text()].map(str::to_owned);
            if it.as_described() { table.row(row) } else { table.bad_row(row) }
        }
        table.print()?;
    }
    Ok(if played.iter().all(Played::as_described) { OK } else { NO })
}

fn list(as_json: bool) -> Result<u8, Failure> {
    if as_json {
        PITFALLS.iter().try_for_each(|pitfall| output::json(&description(pitfall)))?;
        return Ok(OK);
    }
    let mut table = Table::new(["NAME", "PITFALL", "NOTE"]);
    for pitfall in PITFALLS {
        let missing = missing(pitfall);
        let note = if missing.is_empty() { missing } else { format!("needs: apt-get install {missing}") };
        table.row([pitfall.name.to_owned(), pitfall.title.to_owned(), note]);
    }
    table.print()?;
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
    fn play(pitfall: &'static Pitfall, as_json: bool) -> Result<Self, Failure> {
        let missing = missing(pitfall);
        if !missing.is_empty() {
            let why = format!("`{}` can't be played: it needs `apt-get install {missing}`", pitfall.name);
            return Err(Failure::new(CONFIG, why));
        }
        if !as_json {
            output::line(format!("{}\n\n{}\n", heading(pitfall.title), pitfall.mistake))?;
        }
        let (wrong, wrong_lines) = one(pitfall, Variant::Wrong, as_json)?;
        if !as_json {
            output::line(format!("{}\n\n{}\n", heading("The right way"), pitfall.remedy))?;
        }
        let (right, right_lines) = one(pitfall, Variant::Right, as_json)?;
        if as_json {
            let mut all = description(pitfall);
            all["wrong"] = json!({ "lost": wrong.is_loss(), "outcome": wrong.text(), "trace": wrong_lines });
            all["right"] = json!({ "lost": right.is_loss(), "outcome": right.text(), "trace": right_lines });
            output::json(&all)?;
        }
        Ok(Self { pitfall, wrong, right })
    }

    fn as_described(&self) -> bool {
        self.wrong.is_loss() && !self.right.is_loss()
    }
}

/// Plays one program of a pitfall; its trace is shown as it happens, or returned for JSON.
fn one(pitfall: &'static Pitfall, variant: Variant, as_json: bool) -> Result<(Verdict, Vec<Line>), Failure> {
    let program = std::env::current_exe()?;
    let actor = [program.as_os_str(), OsStr::new("pitfalls"), OsStr::new("--act")];
    let mut lines = Vec::new();
    let mut shown = Ok(());
    let outcome = play(pitfall, variant, &actor, &mut |line| {
        if as_json {
            lines.push(line.clone());
        } else if shown.is_ok() {
            shown = output::line(trace(line));
        }
    });
    shown?;
    let outcome = outcome.map_err(|error| Failure::new(INTERNAL, format!("`{}`: {error}", pitfall.name)))?;
    if !as_json {
        let (colour, word) = if outcome.is_loss() { ("31", "LOST") } else { ("32", "kept") };
        output::line(format!("  {}  {}\n", output::painted(colour, &format!("{word:>8}")), outcome.text()))?;
    }
    Ok((outcome, lines))
}

fn trace(line: &Line) -> String {
    let seconds = format!("{}.{:03}", line.at_ms / 1000, line.at_ms % 1000);
    match line.kind {
        LineKind::Step => format!("  {seconds:>8}  {:<2} {}", line.actor, line.text),
        LineKind::Script => {
            format!("  {seconds:>8}  {}", output::painted("33", &format!("** {}", line.text)))
        }
    }
}

fn heading(text: &str) -> String {
    output::painted("1", text)
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
