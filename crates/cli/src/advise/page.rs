//! The tree as a part of docs/choosing.md.

use std::fmt::Write as _;

use super::{Choice, Kind, Tree};

/// The diagram, and a table with the end of each path.
#[must_use]
pub fn markdown(tree: &Tree) -> String {
    let mut text = format!("```text\n{}\n", tree.question(&tree.first).text);
    branches(tree, &tree.first, "", &mut text);
    text.push_str("```\n\n| recommended | why | begin with |\n| --- | --- | --- |\n");
    for advice in &tree.advice {
        let filled = advice.filled(None);
        let start = filled.start[0].split("   #").next().unwrap_or_default();
        let start = start
            .replace("{locks}", "URL")
            .replace("{ttl}", "")
            .replace("{delay}", " --lock-delay 30s")
            .replace("{max}", "");
        let start = start.replace('|', "\\|");
        let page = filled.read[0].trim_start_matches("docs/");
        let name = page.trim_end_matches(".md");
        let _ = writeln!(text, "| **{}** ([{name}]({page})) | {} | `{start}` |", advice.title, advice.why);
    }
    text
}

fn branches(tree: &Tree, id: &str, indent: &str, text: &mut String) {
    let answers = &tree.question(id).answers;
    for (index, answer) in answers.iter().enumerate() {
        let is_last = index + 1 == answers.len();
        let (corner, below) = if is_last { ("└", "   ") } else { ("├", "│  ") };
        let _ = writeln!(text, "{indent}{corner}─ {}: {}", answer.key, answer.text);
        let below = format!("{indent}{below}");
        match answer {
            Choice { question: Some(next), .. } => {
                let _ = writeln!(text, "{below}{}", tree.question(next).text);
                branches(tree, next, &below, text);
            }
            Choice { advice: Some(advice), .. } => {
                let advice = tree.advice(advice);
                let mark = match advice.kind {
                    Kind::None => "○",
                    Kind::Efficiency => "◐",
                    Kind::Correctness => "●",
                };
                let _ = writeln!(text, "{below}{mark} {}", advice.title);
            }
            Choice { .. } => {}
        }
    }
}
