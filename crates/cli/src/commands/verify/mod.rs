//! `verify`: checks histories of locks (`lockkeeper-verify`), those that are there and those that are being
//! written.

pub(super) mod follow;
mod html;
mod metrics;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use lockkeeper_verify::{Checker, Counts, Merged, Violation};
use serde_json::{Value, json};

use self::html::Page;
use crate::args::Verify;
use crate::exit::{CONFIG, Failure, NO, OK};
use crate::output;

/// Checks whole files.
pub(super) fn verify(args: &Verify) -> Result<u8, Failure> {
    let (mut checker, mut report) = (Checker::default(), Report::new(args));
    let mut page = args.html.as_deref().map(|path| Page::new(args, path)).transpose()?;
    read(args, |line| {
        if let Some(page) = &mut page {
            page.overview.push(&line);
        }
        checker.push(line);
        let violations = checker.take_violations();
        if let Some(page) = &mut page {
            violations.iter().for_each(|violation| page.overview.found(violation.clone()));
        }
        report.show(violations)
    })?;
    let counts = checker.counts();
    page.map_or(Ok(()), |page| page.write(args, &counts))?;
    report.end(&counts)
}

/// Calls `each` for every line of the history.
fn read(
    args: &Verify,
    mut each: impl FnMut(lockkeeper_verify::HistoryLine) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let open = |path: &std::path::PathBuf| Ok(BufReader::with_capacity(1 << 18, opened(path)?));
    let files = args.files.iter().map(open).collect::<Result<Vec<_>, Failure>>()?;
    for line in Merged::new(files) {
        each(line.map_err(|error| {
            let text = format!("{}: {error}: no line of a history", args.files[error.file].display());
            Failure::new(CONFIG, text)
        })?)?;
    }
    Ok(())
}

fn opened(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        Failure::system(crate::exit::IO, &format!("cannot read the history `{}`", path.display()), &error)
    })
}

/// What is printed of a check.
struct Report {
    json: bool,
    most: u64,
    shown: u64,
}

impl Report {
    const fn new(args: &Verify) -> Self {
        Self { json: args.json, most: args.show, shown: 0 }
    }

    /// Prints violations, up to the number that was asked for.
    fn show(&mut self, violations: Vec<Violation>) -> Result<(), Failure> {
        for violation in violations {
            self.shown += 1;
            if self.shown > self.most {
                continue;
            }
            if self.json {
                output::json(&shown(&violation))?;
            } else {
                output::line(format!("{}: {}", violation.kind.word(), violation.text))?;
                for line in &violation.lines {
                    output::line(format!("    {}", line.encode().trim_end()))?;
                }
            }
        }
        Ok(())
    }

    /// Prints the figures, and returns the exit code.
    fn end(&self, counts: &Counts) -> Result<u8, Failure> {
        let Counts { lines, writers, grants, denials, questions, fenced, faults, violations } = *counts;
        if self.json {
            output::json(&json!({
                "lines": lines, "writers": writers, "operations": counts.operations(), "grants": grants,
                "denials": denials, "questions": questions, "fenced": fenced, "faults": faults, "violations": violations,
            }))?;
        } else {
            let what = format!(
                "{} operations of {writers} writers: {grants} grants, {denials} denials, {questions} questions, {fenced} \
                 calls of fences and resources; {faults} faults",
                counts.operations()
            );
            let verdict = match violations {
                0 => "no violation".to_owned(),
                1 => "1 violation".to_owned(),
                many if many > self.most => format!("{many} violations, of which {} are shown", self.most),
                many => format!("{many} violations"),
            };
            output::line(format!("{what}; {verdict}"))?;
        }
        Ok(if violations == 0 { OK } else { NO })
    }
}

fn shown(violation: &Violation) -> Value {
    let line =
        |line: &lockkeeper_verify::HistoryLine| serde_json::from_str(&line.encode()).unwrap_or(Value::Null);
    let lines: Vec<Value> = violation.lines.iter().map(line).collect();
    json!({ "violation": violation.kind.word(), "text": violation.text, "lines": lines })
}
