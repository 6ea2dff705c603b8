//! Holds docs/backends/<scheme>.md against the code: its tables of abilities and promises.

use std::path::Path;

use crate::subject::Subject;

/// The rows `| first | second |` of a page.
fn rows(page: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let cells: Vec<&str> =
            line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        match cells[..] {
            [first, second] => Some((first.trim_matches('`').to_owned(), second.to_owned())),
            _ => None,
        }
    };
    page.lines().filter_map(row).collect()
}

pub(crate) async fn compare(subject: &impl Subject) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/backends")
        .join(subject.scheme())
        .with_extension("md");
    let page =
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{} must exist: {e}", path.display()));
    let rows = rows(&page);
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
    for (index, promise) in capabilities.promises.iter().enumerate() {
        let key = format!("P{}", index + 1);
        assert_eq!(said(&key), promise.to_string(), "{}: {key}", path.display());
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
