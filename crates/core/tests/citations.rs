//! Every number that a comment cites is defined: rules in docs/table-rules.md, promises in docs/SAFETY.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Appends all `.rs` files below a folder, sorted, except those in `target`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a source folder can be listed")
        .map(|entry| entry.expect("a source folder can be listed").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Whether the word is the number of a rule or promise: a letter and a number (`R4`, `F10`), or a prefix and
/// a lowercase letter (`F-b`, `P3-a`).
fn is_citation(word: &str) -> bool {
    let digits = |text: &str| (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    match word.split_once('-') {
        Some(("W" | "F" | "P3" | "P7", letter)) => {
            letter.len() == 1 && letter.as_bytes()[0].is_ascii_lowercase()
        }
        Some(_) => false,
        None => word.is_char_boundary(1) && "NQGLSRWDBCKTVMEOFP".contains(&word[..1]) && digits(&word[1..]),
    }
}

fn citations(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .map(|word| word.trim_matches('-'))
        .filter(|word| !word.is_empty() && is_citation(word))
}

/// All citations in comments of all crates, each with one location.
fn cited() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let mut cited = BTreeMap::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a source file can be read");
        for (number, line) in text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            for word in citations(comment) {
                cited.entry(word.to_owned()).or_insert_with(|| format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    cited
}

/// Numbers that a page defines as the label at the start of a bullet: `- **R4** …`.
fn labels(page: &str) -> Vec<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once("**"))
        .map(|(label, _)| label.to_owned())
        .filter(|label| is_citation(label))
        .collect()
}

/// Whether a line of the page begins with this promise, after the markup of a heading, a bullet or a table
/// row.
fn defines_promise(page: &str, promise: &str) -> bool {
    page.lines().any(|line| {
        let line = line.trim_start_matches(['#', '-', '*', '|', '[', ' ']);
        line.strip_prefix(promise)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit() || c == '-'))
    })
}

#[test]
fn every_rule_that_a_comment_cites_is_in_the_rule_book() {
    let page = fs::read_to_string(root().join("docs/table-rules.md")).expect("docs/table-rules.md exists");
    let known: BTreeSet<String> = labels(&page).into_iter().collect();
    let cited = cited();
    assert!(
        cited.len() >= 30,
        "only {} numbers were found in comments; does the search still work?",
        cited.len()
    );
    let unknown: Vec<String> = cited
        .iter()
        .filter(|(rule, _)| !rule.starts_with('P') || rule.contains('-'))
        .filter(|(rule, _)| !known.contains(*rule))
        .map(|(rule, place)| format!("{rule} at {place}"))
        .collect();
    assert!(unknown.is_empty(), "cited, but not in docs/table-rules.md: {unknown:#?}");
}

#[test]
fn every_cited_promise_is_in_the_safety_page() {
    let page = fs::read_to_string(root().join("docs/SAFETY.md")).expect("docs/SAFETY.md exists");
    let unknown: Vec<String> = cited()
        .into_iter()
        .filter(|(promise, _)| promise.starts_with('P') && !promise.contains('-'))
        .filter(|(promise, _)| !defines_promise(&page, promise))
        .map(|(promise, place)| format!("{promise} at {place}"))
        .collect();
    assert!(unknown.is_empty(), "cited, but no promise of docs/SAFETY.md: {unknown:#?}");
}

#[test]
fn the_rule_book_has_every_rule_once() {
    let page = fs::read_to_string(root().join("docs/table-rules.md")).expect("docs/table-rules.md exists");
    let mut expected: Vec<String> = ["W-a", "P3-a", "P7-a"].map(str::to_owned).to_vec();
    let counts = [
        ("N", 3),
        ("Q", 3),
        ("G", 3),
        ("L", 4),
        ("S", 4),
        ("R", 7),
        ("W", 1),
        ("D", 4),
        ("B", 4),
        ("C", 9),
        ("K", 2),
        ("T", 3),
        ("V", 1),
        ("M", 2),
        ("E", 3),
        ("O", 1),
        ("F", 14),
    ];
    for (letter, count) in counts {
        expected.extend((1..=count).map(|number| format!("{letter}{number}")));
    }
    expected.extend(["a", "b", "c", "d", "e", "f"].map(|letter| format!("F-{letter}")));
    expected.sort();
    let mut found = labels(&page);
    found.sort();
    assert_eq!(found, expected);
    assert!(page.lines().count() <= 270, "the rule book has grown beyond 270 lines");
}

#[test]
fn the_search_finds_citations_and_nothing_else() {
    let found: Vec<&str> =
        citations("keeps it (R4), as F-b and P3-a say; not S, R-4, X9, P123, Sha1, é4, nor R400").collect();
    assert_eq!(found, ["R4", "F-b", "P3-a"]);
}

/// Scenario headers cite rules too.
#[test]
fn every_rule_that_a_scenario_names_is_in_the_rule_book() {
    let page = fs::read_to_string(root().join("docs/table-rules.md")).expect("docs/table-rules.md exists");
    let known = labels(&page);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut named = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("the folder of scenarios exists") {
        let text =
            fs::read_to_string(entry.expect("it can be listed").path()).expect("a scenario can be read");
        for line in text.lines().filter_map(|line| line.strip_prefix("# Rules:")) {
            named.extend(citations(line).map(str::to_owned));
        }
    }
    let unknown: Vec<&String> = named.iter().filter(|rule| !known.contains(rule)).collect();
    assert!(unknown.is_empty(), "named in scenarios, but not in docs/table-rules.md: {unknown:?}");
    // No scenario can test these: E3 is about output for people, T2 about comparisons outside of the table,
    // D4 about a limit that is too high for a scenario, C3 about the leader, and the others about the client.
    for rule in known.iter().filter(|rule| !rule.starts_with('F') && !rule.contains('-')) {
        let shown =
            named.contains(rule) || ["E3", "T2", "D4", "C3", "C7", "C8", "C9"].contains(&rule.as_str());
        assert!(shown, "no scenario names {rule}");
    }
}
