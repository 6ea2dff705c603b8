//! Runs the texts of `tests/scenarios/`: each covers one rule and is readable without knowing Rust.
//!
//! A line is `command -> answer; effect; effect`. Answers are compared literally; `UPDATE_EXPECT=1` rewrites
//! them (then review the diff). The table and the oracle both run each line and must agree. A session is
//! opened when a line first mentions it (ttl 10 s), or by `open NAME [ttl= delay= linger= label=]`.
//!
//! This file is the runner; `scenario_text/` parses the commands and formats the answers.

mod oracle;
mod scenario_text;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use scenario_text::Stage;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn scenario_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the folder of scenarios exists")
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "txt"))
        .collect();
    files.sort();
    files
}

/// Runs a scenario; returns its text with the actual answers.
fn play(text: &str) -> Result<String, String> {
    let mut stage = Stage::new();
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let command = line.split("->").next().unwrap_or_default().trim();
        if command.is_empty() || command.starts_with('#') {
            lines.push((line.trim_end().to_owned(), None));
        } else {
            let answer =
                stage.play(command).map_err(|why| format!("line {}: `{command}`: {why}", number + 1))?;
            lines.push((command.to_owned(), Some(answer)));
        }
    }
    let commands = lines.iter().filter(|(_, answer)| answer.is_some());
    let width = commands.map(|(command, _)| command.len()).max().unwrap_or_default().min(60);
    let mut played = String::new();
    for (line, answer) in lines {
        match answer {
            Some(answer) => writeln!(played, "{line:width$}  ->  {answer}"),
            None => writeln!(played, "{line}"),
        }
        .expect("writing to a string");
    }
    Ok(played)
}

#[test]
fn every_scenario_gives_its_written_answers() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut wrong = String::new();
    for path in scenario_files() {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a scenario can be read");
        match play(&text) {
            Err(why) => writeln!(wrong, "{file}: {why}").expect("writing to a string"),
            Ok(played) if played == text => {}
            Ok(played) if update => fs::write(&path, played).expect("a scenario can be rewritten"),
            Ok(played) => {
                let differences = text.lines().zip(played.lines()).enumerate().filter(|(_, (a, b))| a != b);
                for (number, (written, plays)) in differences {
                    writeln!(wrong, "{file}:{}\n  written: {written}\n  plays:   {plays}", number + 1)
                        .expect("writing to a string");
                }
                if text.lines().count() != played.lines().count() {
                    writeln!(wrong, "{file}: the number of lines differs").expect("writing to a string");
                }
                if text.lines().eq(played.lines()) {
                    writeln!(wrong, "{file}: line endings differ").expect("writing to a string");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nUPDATE_EXPECT=1 rewrites the answers; read the diff");
}

#[test]
fn every_scenario_header_has_its_rules_and_reason() {
    let files = scenario_files();
    assert!(files.len() >= 35, "only {} scenarios were found", files.len());
    for path in files {
        let text = fs::read_to_string(&path).expect("a scenario can be read");
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        let file = path.display();
        assert!(header.len() >= 2, "{file}: two comment lines must say what and why");
        assert!(
            header.iter().any(|line| line.starts_with("# Rule")),
            "{file}: a header line `# Rules: …` must say the rule's number"
        );
    }
}

#[test]
fn every_trace_of_the_table_has_a_scenario() {
    let names: Vec<String> = scenario_files()
        .iter()
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    for trace in ["f01", "f02", "f03", "f04", "f05", "f10", "f11", "f12", "f13"] {
        assert!(names.iter().any(|name| name.starts_with(trace)), "no scenario for trace {trace}");
    }
}

#[test]
fn wrong_answers_and_unknown_words_are_detected() {
    let played = play("acquire alice/1 a -> granted token=2\n").expect("it plays");
    assert_eq!(played, "acquire alice/1 a  ->  granted token=1\n");
    assert!(play("aquire alice/1 a\n").is_err());
    assert!(play("acquire alice/1 a exclusiv\n").is_err());
}
