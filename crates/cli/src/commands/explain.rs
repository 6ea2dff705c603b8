//! `explain`: plays what goes wrong with locks, under virtual time.

use lockkeeper_hazard::{
    DataVerdict, Fence, STORIES, Settings, StepKind, Story, Trace, outcome_line, page, play, step_line, story,
};
use serde_json::json;

use crate::args::Explain;
use crate::exit::{Failure, OK, USAGE};
use crate::output;
use crate::table::Table;

pub(super) fn explain(args: &Explain) -> Result<u8, Failure> {
    if args.html {
        output::page(page::single_file().trim_end())?;
        return Ok(OK);
    }
    match &args.story {
        Some(name) => one(args, name)?,
        None if args.json => {
            STORIES.iter().try_for_each(|story| output::json(&page::recorded_story(story)))?
        }
        None if args.all => all()?,
        None => list()?,
    }
    Ok(OK)
}

fn list() -> Result<(), Failure> {
    let mut table = Table::new(["STORY", "TITLE"]);
    for story in &STORIES {
        table.row([story.name, story.title].map(str::to_owned));
    }
    table.print()?;
    output::say("play one: lockkeeper explain paused-holder; how each ends: lockkeeper explain --all");
    Ok(())
}

fn one(args: &Explain, name: &str) -> Result<(), Failure> {
    let usage = |error: lockkeeper_hazard::SettingsError| Failure::new(USAGE, error.to_string());
    let query: Vec<(&str, &str)> = [("story", name)].into_iter().chain(args.settings.given()).collect();
    let trace = Settings::of_query(&query).and_then(|settings| play(&settings)).map_err(usage)?;
    let story = story(name).map_err(usage)?;
    if args.json {
        let mut all = json!(story);
        all["trace"] = json!(trace);
        return output::json(&all);
    }
    show(story, &trace)?;
    if let Some(better) = better_fence(&trace) {
        let settings = args.settings.given().filter(|(key, _)| *key != "fence");
        let settings: String = settings.map(|(key, value)| format!(" --{key} {value}")).collect();
        output::say(format!("with a fence: lockkeeper explain {name}{settings} --fence {}", better.name()));
    }
    Ok(())
}

fn show(story: &Story, trace: &Trace) -> Result<(), Failure> {
    output::page(format!("{}\n\n{}\n", output::painted("1", story.title), filled(story.about)))?;
    for step in &trace.steps {
        let line = step_line(step);
        let colour = match step.kind {
            StepKind::Ordinary | StepKind::Ended => None,
            StepKind::Fault => Some("33"),
            StepKind::Granted => Some("36"),
            StepKind::Refused => Some("32"),
            StepKind::Damage => Some("31"),
        };
        output::page(colour.map_or_else(|| line.clone(), |colour| output::painted(colour, &line)))?;
    }
    let colour = if trace.outcome.verdict == DataVerdict::Kept { "32" } else { "31" };
    output::page(output::painted(colour, &outcome_line(&trace.outcome)))
}

/// A fence with which the same play loses nothing.
fn better_fence(trace: &Trace) -> Option<Fence> {
    let kept = |fence: &Fence| {
        let settings = Settings { fence: *fence, ..trace.settings.clone() };
        play(&settings).is_ok_and(|trace| trace.outcome.verdict == DataVerdict::Kept)
    };
    let loses = trace.outcome.verdict != DataVerdict::Kept;
    loses.then(|| Fence::ALL.into_iter().find(kept)).flatten()
}

/// Prints the end of each story, without a fence and with each fence.
fn all() -> Result<(), Failure> {
    let mut table = Table::new(["STORY", "FENCE", "END"]);
    for story in &STORIES {
        for fence in story.fences() {
            let settings = Settings { fence, ..story.settings() };
            let trace = play(&settings).map_err(|error| Failure::new(USAGE, error.to_string()))?;
            let row = [story.name.to_owned(), fence.name().to_owned(), trace.outcome.text];
            if trace.outcome.verdict == DataVerdict::Kept { table.row(row) } else { table.bad_row(row) }
        }
    }
    table.print()
}

/// The text in lines of at most 100 characters.
fn filled(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
