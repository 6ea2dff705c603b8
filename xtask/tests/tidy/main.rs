//! Lint as a test: compares the project's pages and sources with the repository.
//!
//! Responsible for facts that a compiler can't check: names and links in the docs, file sizes, repeated type
//! names, unfinished code, absolute paths of one machine, and the dependencies of disabled features. Style is
//! checked by rustfmt and clippy, not here.
//!
//! Every test collects all problems before it fails, so that one run reports everything.

mod code_map;
mod comments;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::page::Page;

/// Longest source file, in lines. A longer one is hard to read: split it by concept.
const RS_LINES_MAX: usize = 600;

fn root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().expect("xtask lies in the workspace's root").to_owned()
}

/// The files that git tracks, relative to the root, except files deleted but not yet committed.
fn tracked() -> Vec<PathBuf> {
    // git otherwise refuses a clone that another user owns. Nothing in it is executed.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root())
        .output()
        .expect("git runs: tidy reads the list of files from it");
    assert!(
        output.status.success(),
        "`git ls-files` failed, tidy needs a git clone: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let list = String::from_utf8(output.stdout).expect("our file names are UTF-8");
    let files: Vec<PathBuf> =
        list.split_terminator('\0').map(PathBuf::from).filter(|file| root().join(file).is_file()).collect();
    assert!(
        files.iter().any(|file| file == Path::new("Cargo.toml")),
        "the list of tracked files has no Cargo.toml"
    );
    files
}

/// Tracked text files whose name ends in `.EXTENSION`, with their text; all text files if `extension` is
/// empty.
fn texts(extension: &str) -> Vec<(PathBuf, String)> {
    let suffix = if extension.is_empty() { String::new() } else { format!(".{extension}") };
    let files = tracked().into_iter().filter(|file| file.to_string_lossy().ends_with(&suffix));
    let texts: Vec<_> = files
        .filter_map(|file| {
            let bytes = fs::read(root().join(&file)).expect("a tracked file can be read");
            // Files that are not UTF-8, such as images, are left out.
            String::from_utf8(bytes).ok().map(|text| (file, text))
        })
        .collect();
    assert!(!texts.is_empty(), "no tracked file ends in {suffix:?}: the search itself is broken");
    texts
}

fn page(name: &str) -> Page {
    let text = fs::read_to_string(root().join(name));
    Page::parse(&text.unwrap_or_else(|error| panic!("{name} must exist in the project's root: {error}")))
}

fn packages() -> BTreeSet<String> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo reads the workspace");
    metadata.packages.iter().map(|package| package.name.to_string()).collect()
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// Returns `path:line: problem` for each line of `text` in which `is_bad` returns a problem.
fn bad_lines(path: &Path, text: &str, mut is_bad: impl FnMut(&str) -> Option<String>) -> Vec<String> {
    let found = text.lines().enumerate().filter_map(|(index, line)| Some((index, is_bad(line)?)));
    found.map(|(index, what)| format!("{}:{}: {what}", path.display(), index + 1)).collect()
}

#[test]
fn no_page_has_a_heading_twice() {
    let mut problems = Vec::new();
    for (file, text) in texts("md") {
        // An entry for each release, with the same parts.
        if file == Path::new("CHANGELOG.md") {
            continue;
        }
        problems
            .extend(Page::parse(&text).repeated.iter().map(|it| format!("{}: `{it}` twice", file.display())));
    }
    report(&problems);
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading_that_exist() {
    let mut problems = Vec::new();
    for (file, text) in texts("md") {
        let page = Page::parse(&text);
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target_file = if target.is_empty() {
                root().join(&file)
            } else {
                root().join(&file).with_file_name("").join(target)
            };
            if !target_file.exists() {
                problems.push(format!("{}: `{link}` leads nowhere", file.display()));
            } else if !anchor.is_empty() && target_file.extension().is_some_and(|extension| extension == "md")
            {
                let text = fs::read_to_string(&target_file).expect("a page that is linked to can be read");
                if !Page::parse(&text).anchors.contains(anchor) {
                    problems
                        .push(format!("{}: `{link}` names a heading that does not exist", file.display()));
                }
            }
        }
    }
    report(&problems);
}

/// The last column of the tables in docs/security.md (of four) and docs/track-record.md (of seven columns).
#[test]
fn tests_that_pages_name_exist() {
    let (sources, mut problems) = (texts("rs"), Vec::new());
    for (page, columns) in [("docs/security.md", 4), ("docs/track-record.md", 7)] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let rows =
            text.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == columns - 1);
        let names = rows.flat_map(|row| row.rsplit(" | ").next().unwrap().split('`').skip(1).step_by(2));
        // A name may have the options of its command before it.
        let names: BTreeSet<&str> = names.filter(|name| !name.starts_with('-')).collect();
        assert!(names.len() > 5, "{page}: {names:?}");
        problems.extend(names.into_iter().filter_map(|name| {
            let definition = format!("fn {name}(");
            let is_defined = sources.iter().any(|(_, text)| text.contains(&definition));
            (!is_defined).then(|| format!("{page} names the test `{name}`, which is none"))
        }));
    }
    report(&problems);
}

/// In a shallow clone, which has not the history, nothing is checked.
#[test]
fn commits_of_the_track_record_are_in_the_history() {
    let git = |words: &[&str]| {
        let output =
            Command::new("git").args(["-c", "safe.directory=*"]).args(words).current_dir(root()).output();
        String::from_utf8(output.expect("git runs").stdout).expect("git prints UTF-8")
    };
    let history = git(&["rev-list", "HEAD"]);
    let text = fs::read_to_string(root().join("docs/track-record.md")).unwrap();
    let is_commit = |name: &&str| name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let commits: BTreeSet<&str> = text.split('`').filter(is_commit).collect();
    assert!(commits.len() > 5, "{commits:?}");
    if git(&["rev-parse", "--is-shallow-repository"]).trim() == "false" {
        let missing = commits.into_iter().filter(|&commit| !history.lines().any(|it| it.starts_with(commit)));
        report(
            &missing.map(|commit| format!("docs/track-record.md: no commit {commit}")).collect::<Vec<_>>(),
        );
    }
}

#[test]
fn book_has_every_page_of_the_docs_once() {
    let mut listed = page("docs/SUMMARY.md").links;
    listed.sort();
    let pages = texts("md").into_iter().map(|(file, _)| file);
    let below = |file: PathBuf| file.strip_prefix("docs").map(|page| page.display().to_string()).ok();
    let mut pages: Vec<String> = pages.filter_map(below).filter(|page| page != "SUMMARY.md").collect();
    pages.sort();
    assert_eq!(listed, pages, "the links of docs/SUMMARY.md, and the pages in docs/");
}

#[test]
fn no_source_file_is_too_long() {
    let too_long = |(file, text): (PathBuf, String)| {
        let lines = text.lines().count();
        let what = "lines, at most";
        (lines > RS_LINES_MAX)
            .then(|| format!("{}: {lines} {what} {RS_LINES_MAX}: split it by concept", file.display()))
    };
    report(&texts("rs").into_iter().filter(is_written).filter_map(too_long).collect::<Vec<_>>());
}

/// Whether people have written the file, and no generator.
fn is_written((path, _): &(PathBuf, String)) -> bool {
    !path.components().any(|part| part.as_os_str() == "generated")
}

/// Type names that may be defined any number of times, since each is known by its module.
const CONVENTIONAL_TYPES: [&str; 3] = ["Args", "Error", "Settings"];
/// The most definitions of one type name. With more, a reader could not know which type a name means.
const DEFINITIONS_MAX: usize = 2;

/// The name of the type that a line defines. Associated types, which are indented, are not definitions.
fn defined_type(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => line,
    };
    let line = line.strip_prefix(' ').unwrap_or(line);
    let kinds = ["struct ", "enum ", "union ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    Some(name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(name))
}

#[test]
fn type_definitions_are_found_in_a_line() {
    for line in [
        "struct A;",
        "pub struct A<T> {",
        "pub(crate) enum A {",
        "pub(in crate::b) trait A: B {",
        "type A = B;",
    ] {
        assert_eq!(defined_type(line), Some("A"), "{line}");
    }
    for line in ["    type A = B;", "impl A {", "// struct A", "pub fn a() {", "structure"] {
        assert_eq!(defined_type(line), None, "{line}");
    }
}

#[test]
fn no_type_name_is_defined_more_than_twice() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in texts("rs").into_iter().filter(is_written) {
        let path = path.to_string_lossy();
        let is_test = path.contains("/tests/") || path.contains("/benches/") || path.ends_with("tests.rs");
        // The contract suite consists of tests, and an example is read by itself.
        let is_test = is_test || path.starts_with("crates/contract/") || path.starts_with("examples/");
        if is_test {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let name = defined_type(line).filter(|name| !CONVENTIONAL_TYPES.contains(name));
            let place = format!("{path}:{}", number + 1);
            if let Some(name) = name {
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    let repeated = places.iter().filter(|(_, places)| places.len() > DEFINITIONS_MAX);
    let problems: Vec<String> = repeated
        .map(|(name, places)| {
            format!(
                "`{name}` is defined {} times, at most {DEFINITIONS_MAX} are allowed: {}",
                places.len(),
                places.join(", ")
            )
        })
        .collect();
    report(&problems);
}

#[test]
fn no_source_refers_to_a_page_that_is_not_in_the_repository() {
    let pages = [["DESIGN", " section"].concat(), ["peers", "' flaw"].concat()];
    let problems: Vec<String> = texts("")
        .iter()
        .flat_map(|(path, text)| {
            bad_lines(path, text, |line| {
                let page = pages.iter().find(|page| line.contains(page.as_str()))?;
                Some(format!("refers to `{page} …`, which readers don't have: give the reason itself"))
            })
        })
        .collect();
    report(&problems);
}

#[test]
fn no_code_is_unfinished_and_no_test_is_disabled() {
    // The words are split, so that this file contains none of them.
    let forbidden = [
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
        concat!("#[ign", "ore"),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
    ];
    let mut problems = Vec::new();
    for (file, text) in texts("rs") {
        problems.extend(bad_lines(&file, &text, |line| {
            // A plain `cargo test` has no servers; `cargo xtask test` runs these, too.
            let needs_more = line.contains(concat!("#[ign", "ore = \"needs "));
            let found = forbidden.iter().find(|word| line.contains(**word) && !needs_more);
            found.map(|word| format!("`{word}` must not stay"))
        }));
    }
    report(&problems);
}

/// raft-rs' protobuf parser has a known vulnerability (deny.toml), so no code may call it. Only the engine's
/// folder may use raft-rs' types.
#[test]
fn raft_rs_types_stay_in_one_folder_and_its_parser_is_unused() {
    let engine = Path::new("crates/replica/src/engine");
    let mut problems = Vec::new();
    for (path, text) in texts("rs") {
        if path.starts_with("xtask") {
            continue;
        }
        let parses = |line: &str| {
            let calls = ["parse_from_bytes", "merge_from_bytes", "parse_from_reader"];
            calls.iter().any(|call| line.contains(call)).then(|| "parses with raft-rs' protobuf".to_owned())
        };
        problems.extend(bad_lines(&path, &text, parses));
        if !path.starts_with(engine) {
            let uses = |line: &str| {
                let line = line.trim_start();
                let is_use =
                    line.starts_with("use raft::") || line.contains(" raft::") || line.contains("(raft::");
                (is_use && !line.starts_with("//")).then(|| "names a type of raft-rs".to_owned())
            };
            problems.extend(bad_lines(&path, &text, uses));
        }
    }
    report(&problems);
}

#[test]
fn no_tracked_file_names_a_path_of_one_machine() {
    let mut problems = Vec::new();
    for (file, text) in texts("") {
        problems.extend(bad_lines(&file, &text, |line| {
            machine_path(line).map(|folder| format!("`/{folder}` exists on one machine only"))
        }));
    }
    report(&problems);
}

/// If `line` contains an absolute path of one machine, returns the start of the path, without the slash
/// before it.
fn machine_path(line: &str) -> Option<&'static str> {
    let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    ["work", "root", "home", "tmp/h"].into_iter().find(|folder| {
        line.match_indices(&format!("/{folder}")).any(|(start, found)| {
            let before = line[..start].chars().next_back();
            let after = line[start + found.len()..].chars().next();
            // `jobs/work` and `../work` are relative, and `/worker` is another folder. A path may follow `//`
            // or `:`.
            let absolute = before.is_none_or(|c| !in_word(c) && !matches!(c, '.' | '}' | ')' | '>' | '*'));
            absolute && after.is_none_or(|c| !in_word(c))
        })
    })
}

#[test]
fn machine_paths_are_distinguished_from_similar_names() {
    // `@` stands for a slash, so that this file contains no such path.
    for path in ["@work/x", "cd @root", "file://@home/me", "'@tmp/h'"] {
        assert!(machine_path(&path.replace('@', "/")).is_some(), "{path}");
    }
    for name in ["jobs/work", "/worker", "../work", "$HOME/x", "/tmp/hello", "orders/home-1"] {
        assert_eq!(machine_path(name), None, "{name}");
    }
}

#[test]
fn the_readme_names_the_minimum_rust_version_of_cargo_toml() {
    let readme =
        fs::read_to_string(root().join("README.md")).expect("README.md exists in the project's root");
    let wanted = env!("CARGO_PKG_RUST_VERSION");
    let named: Vec<&str> = readme
        .match_indices("Rust 1.")
        .map(|(start, _)| {
            let version = &readme[start + "Rust ".len()..];
            let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
            version[..end].trim_end_matches('.')
        })
        .collect();
    let wrong: Vec<String> = named
        .into_iter()
        .filter(|version| *version != wanted)
        .map(|version| format!("README.md names Rust {version}, Cargo.toml says rust-version {wanted}"))
        .collect();
    report(&wrong);
}

/// The names of all dependencies of the library with these features only, default features off.
fn tree(features: &str) -> BTreeSet<String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--locked", "--package", "lockkeeper", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{lib}", "--no-default-features", "--features", features])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn disabled_backends_add_no_dependency() {
    let bare = tree("");
    let of = |features: &str| -> BTreeSet<String> { tree(features).difference(&bare).cloned().collect() };
    let has = |set: &BTreeSet<String>, name: &str| set.iter().any(|lib| lib == name);
    for name in ["redis", "tokio_postgres", "rustls", "tonic", "prost"] {
        assert!(!has(&bare, name), "{name} comes without any feature");
    }
    let (redis, postgres) = (of("redlock"), of("postgres"));
    assert!(has(&redis, "redis") && !has(&redis, "tokio_postgres") && !has(&redis, "rustls"), "{redis:?}");
    assert!(has(&postgres, "tokio_postgres") && !has(&postgres, "redis"), "{postgres:?}");
    assert!(!has(&postgres, "rustls"), "{postgres:?}");
    assert!(has(&of("redis-tls"), "rustls") && has(&of("postgres-tls"), "rustls"));
}

/// The product is `default-members`. What starts other people's servers, and what only the simulator may
/// reach into, is not in it.
#[test]
fn product_depends_neither_on_the_rig_nor_on_the_feature_simulation() {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec();
    let metadata = metadata.expect("cargo reads the workspace");
    let mut product: BTreeSet<&str> =
        metadata.workspace_default_packages().into_iter().map(|package| package.name.as_str()).collect();
    // A plain build has not all of the lock services.
    let services = metadata
        .packages
        .iter()
        .filter(|package| package.manifest_path.as_str().contains("/crates/backends/"));
    product.extend(services.map(|package| package.name.as_str()));
    for known in ["lockkeeper", "lockkeeper-cli", "lockkeeper-hazard"] {
        assert!(product.contains(known), "{known} is not in {product:?}");
    }
    let mut problems = Vec::new();
    for package in metadata.workspace_default_packages() {
        let name = &package.name;
        let uses = package.dependencies.iter().filter(|it| it.kind != DependencyKind::Development);
        for dependency in uses.filter(|dependency| dependency.path.is_some()) {
            if !product.contains(dependency.name.as_str()) {
                problems.push(format!("{name} depends on {}", dependency.name));
            }
            if dependency.features.iter().any(|feature| feature == "simulation") {
                problems.push(format!("{name} turns on {}/simulation", dependency.name));
            }
        }
        let turns_on = |feature: &String| feature.ends_with("/simulation");
        if package.features.values().flatten().any(turns_on) {
            problems.push(format!("a feature of {name} turns on `simulation`"));
        }
    }
    report(&problems);
}

/// Where source files name a lock service's package: the table of all, what only one of them has, and the
/// fuzzer.
const NAMING_FILES: [&str; 3] = [
    "crates/client/src/backends/mod.rs",
    "crates/client/src/fuzzing.rs",
    "crates/client/src/once/dynamodb.rs",
];

/// A new lock service is a package, a line in the table, features and a page (docs/write-a-backend.md).
#[test]
fn a_lock_service_is_known_by_one_line() {
    let (mut problems, mut services) = (Vec::new(), 0);
    let sources = texts("rs");
    for folder in fs::read_dir(root().join("crates/backends")).expect("the lock services' packages") {
        let folder = folder.expect("a folder").file_name();
        let name = folder.to_string_lossy();
        let package = format!("lockkeeper_{}", name.replace('-', "_"));
        let line = format!("\"{name}\" {package}: ");
        let mut known = 0;
        for (path, text) in &sources {
            let is_test = path.components().any(|part| part.as_os_str() == "tests");
            if path.starts_with("crates/backends") || is_test {
                continue;
            }
            known += text.lines().filter(|code| code.trim_start().starts_with(&line)).count();
            let names_it =
                text.lines().any(|code| !code.trim_start().starts_with("//") && code.contains(&package));
            if names_it && !NAMING_FILES.iter().any(|naming| path == Path::new(naming)) {
                problems.push(format!("{}: names {package}", path.display()));
            }
        }
        services += 1;
        if known != 1 {
            problems.push(format!("{package} has {known} lines in the table of lock services, not one"));
        }
        // What is packed has every lock service. `file` is in the library's default features.
        for packed in ["crates/cli/Cargo.toml", "bindings/common/Cargo.toml"] {
            let text = fs::read_to_string(root().join(packed)).expect("a manifest");
            let is_feature = |feature: &str| text.contains(&format!("\"{feature}\""));
            let tls = format!("{name}-tls");
            if name != "file" && !is_feature(&name) && !is_feature(&tls) {
                problems.push(format!("{packed}: turns on no feature `{name}`"));
            }
        }
    }
    assert!(services >= 7, "only {services} lock services are found: the search itself is broken");
    report(&problems);
}
