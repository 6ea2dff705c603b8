//! Comments: their width, and code in docs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cargo_metadata::MetadataCommand;

use crate::{bad_lines, is_written, report, root, texts};

/// rustfmt applies its width to code only. Tables, code and words without a space can't be wrapped.
#[test]
fn comments_are_no_wider_than_code() {
    let settings = fs::read_to_string(root().join("rustfmt.toml")).expect("rustfmt.toml exists");
    let width = settings.lines().find_map(|line| line.strip_prefix("max_width = "));
    let width: usize = width.and_then(|width| width.parse().ok()).expect("rustfmt.toml sets max_width");
    let mut problems = Vec::new();
    for (file, text) in texts("rs").into_iter().filter(is_written) {
        let mut is_code = false;
        problems.extend(bad_lines(&file, &text, |line| {
            let comment = line.trim_start().strip_prefix("//")?;
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_code ^= comment.starts_with("```");
            let can_wrap = !is_code && !comment.starts_with('|') && comment.contains(' ');
            let columns = line.chars().count();
            (can_wrap && columns > width)
                .then(|| format!("a comment of {columns} columns, at most {width}: wrap it"))
        }));
    }
    report(&problems);
}

/// Rust code in the docs of a library without doctests would be compiled by nobody.
#[test]
fn libraries_without_doctests_have_no_code_in_their_docs() {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec();
    let metadata = metadata.expect("cargo reads the workspace");
    let mut without = BTreeSet::new();
    for target in metadata.packages.iter().flat_map(|package| &package.targets) {
        if target.is_lib() && !target.doctest {
            let source = target.src_path.parent().expect("a file has a folder").as_std_path();
            without.insert(source.strip_prefix(root()).expect("it is in the workspace").to_owned());
        }
    }
    assert!(without.contains(Path::new("crates/core/src")), "{without:?}");
    let mut problems = Vec::new();
    for (file, text) in texts("rs") {
        if !without.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        let mut is_open = false;
        problems.extend(bad_lines(&file, &text, |line| {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
            let language = doc.trim_start().strip_prefix("```")?;
            is_open = !is_open;
            let is_code = is_open && (language.is_empty() || language.starts_with("rust"));
            is_code.then(|| "this code is not compiled: its crate has no doctests".to_owned())
        }));
    }
    report(&problems);
}
