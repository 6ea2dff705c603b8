//! Compares the tables of abilities and promises of a page with the code.

use std::path::Path;

use crate::subject::Subject;

/// The first cell, without backquotes, and the cell number `column` of each table row of a page.
fn rows(page: &str, column: usize) -> Vec<(String, String)> {
    let row = |line: &str| {
        let cells: Vec<&str> =
            line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        Some((cells[0].trim_matches('`').to_owned(), (*cells.get(column)?).to_owned()))
    };
    page.lines().filter_map(row).collect()
}

pub async fn compare(subject: &impl Subject, path: &Path, column: usize) {
    let page = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{} must exist: {e}", path.display()));
    let rows = rows(&page, column);
    let said = |key: &str| {
        let found: Vec<&String> =
            rows.iter().filter(|(first, _)| first == key).map(|(_, second)| second).collect();
        assert_eq!(found.len(), 1, "{}: one row for `{key}`, found {found:?}", path.display());
        found[0].clone()
    };
    let locks = subject.client("reader of the page").await;
    let capabilities = locks.capabilities();
    for (ability, has) in capabilities.abilities() {
        assert_eq!(said(ability), if has { "yes" } else { "no" }, "{}: `{ability}`", path.display());
    }
    for (number, name, promise) in capabilities.promises.list() {
        let key = format!("P{number}");
        assert_eq!(said(&key), promise.to_string(), "{}: {key} ({name})", path.display());
    }
    let safety =
        std::fs::read_to_string(path.with_file_name("../SAFETY.md")).expect("the page of the promises");
    for (number, name, _) in capabilities.promises.list() {
        let heading = format!("### P{number} {name}");
        assert!(safety.lines().any(|line| line.eq_ignore_ascii_case(&heading)), "SAFETY.md: no `{heading}`");
    }
    for section in [
        "## Exclusion and queue",
        "## Tokens",
        "## Loss and ttl",
        "## What a crash does",
        "## Exact layout",
        "## Interoperation",
        "## Permissions",
        "## Limits and errors",
        "## When to choose it",
    ] {
        assert!(
            page.lines().any(|line| line == section),
            "{}: section `{section}` is missing",
            path.display()
        );
    }
}
