//! The code map: ARCHITECTURE.md names the packages, and the docs of crates and modules name their files.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::page::Page;
use crate::{is_written, packages, page, report, root, texts};

#[test]
fn architecture_names_the_packages_that_exist_and_no_others() {
    let architecture = page("ARCHITECTURE.md");
    let packages = packages();
    let named: BTreeSet<&str> = architecture
        .spans
        .iter()
        .map(String::as_str)
        .filter(|code| code.starts_with("lockkeeper-") || packages.contains(*code))
        .collect();

    let mut problems: Vec<String> = named
        .iter()
        .filter(|name| !packages.contains(**name))
        .map(|name| format!("ARCHITECTURE.md names the package `{name}`, which does not exist"))
        .collect();
    problems.extend(
        packages
            .iter()
            .filter(|package| !named.contains(package.as_str()))
            .map(|package| format!("ARCHITECTURE.md does not name the package `{package}`")),
    );
    report(&problems);
}

#[test]
fn pages_name_paths_that_exist() {
    let mut problems = Vec::new();
    for (file, text) in texts("md") {
        let spans = Page::parse(&text).spans;
        let paths = spans.iter().filter(|span| {
            ["crates/", "docs/", "xtask/", "examples/", "packaging/", ".ci/"]
                .iter()
                .any(|top| span.starts_with(top))
                && !span.contains('<')
        });
        let missing = paths.filter(|path| !root().join(path).exists());
        problems
            .extend(missing.map(|path| format!("{} names `{path}`, which does not exist", file.display())));
    }
    report(&problems);
}

/// The tables of packages in ARCHITECTURE.md begin their rows with the name. That of the product is in the
/// order of dependence.
#[test]
fn architecture_lists_each_package_above_those_that_it_depends_on() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md exists");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    // A row may list several packages, in this order.
    let rows: Vec<&str> = cells.flat_map(|cell| cell.trim_end_matches('`').split("`, `")).collect();
    let row = |name: &str| rows.iter().position(|row| *row == name);
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec();
    let metadata = metadata.expect("cargo reads the workspace");
    let mut problems = Vec::new();
    for package in metadata.workspace_default_packages() {
        let uses = package.dependencies.iter().filter(|it| it.kind == DependencyKind::Normal);
        for used in uses.filter(|dependency| dependency.path.is_some()) {
            let (name, used) = (package.name.as_str(), used.name.as_str());
            if row(name).is_none() || row(name) >= row(used) {
                problems.push(format!("ARCHITECTURE.md does not list `{name}` above `{used}`"));
            }
        }
    }
    report(&problems);
}

#[test]
fn decisions_are_numbered_and_have_a_context() {
    let pages = texts("md").into_iter().filter(|(file, _)| file.starts_with("docs/decisions"));
    let mut problems = Vec::new();
    for (index, (file, text)) in pages.filter(|(file, _)| !file.ends_with("README.md")).enumerate() {
        let number = index + 1;
        let name = file.file_name().expect("a page has a name").to_string_lossy().into_owned();
        if !name.starts_with(&format!("{number:04}-")) || !text.starts_with(&format!("# {number}. ")) {
            problems.push(format!("{}: its number should be {number}", file.display()));
        }
        for part in ["**Context.**", "**Decision.**"] {
            if !text.contains(part) {
                problems.push(format!("{} has no {part}", file.display()));
            }
        }
    }
    report(&problems);
}

/// The lines of a module's own docs (`//!`), with their numbers from 1.
fn module_docs(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| line.starts_with("#!"));
    lines
        .map(|(index, line)| (index + 1, line))
        .take_while(|(_, line)| line.starts_with("//"))
        .filter_map(|(number, line)| Some((number, line.strip_prefix("//!")?)))
}

/// The code map is in the docs of the modules. A file is named relative to the module's folder, to the
/// package or its `src`, or to the root.
#[test]
fn module_docs_name_files_that_exist() {
    let extensions = ["rs", "lua", "sql", "md", "proto", "toml", "js", "txt"];
    let mut named = 0;
    let mut problems = Vec::new();
    for (file, text) in texts("rs").into_iter().filter(is_written) {
        let package = file.ancestors().find(|folder| root().join(folder).join("Cargo.toml").is_file());
        let package = package.expect("a source file lies in a package");
        let bases = [
            file.with_file_name(""),
            file.with_extension(""),
            package.join("src"),
            package.to_owned(),
            PathBuf::new(),
        ];
        for (number, line) in module_docs(&text) {
            let spans = line.split('`').skip(1).step_by(2);
            let is_path = |span: &&str| {
                let is_plain =
                    span.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'));
                is_plain && span.rsplit_once('.').is_some_and(|(_, end)| extensions.contains(&end))
            };
            for path in spans.filter(is_path) {
                named += 1;
                if !bases.iter().any(|base| root().join(base).join(path).exists()) {
                    problems.push(format!("{}:{number}: `{path}` does not exist", file.display()));
                }
            }
        }
    }
    assert!(named > 100, "only {named} files are named: the search itself is broken");
    report(&problems);
}

#[test]
fn every_module_begins_with_its_responsibility() {
    let sources = texts("rs").into_iter().filter(is_written);
    let without = sources.filter(|(file, text)| {
        // The docs of a module of tests are those of the module that it tests; a fuzz target has one line.
        !file.ends_with("tests.rs") && !file.starts_with("fuzz") && module_docs(text).next().is_none()
    });
    let problem = |(file, _): (PathBuf, String)| format!("{}: has no module docs (`//!`)", file.display());
    report(&without.map(problem).collect::<Vec<_>>());
}
