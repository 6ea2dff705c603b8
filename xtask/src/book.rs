//! `cargo xtask book`: the pages of docs/ as a site, by mdBook.
//!
//! mdBook reads a copy of docs/, in which links to files outside of docs/ lead to the repository, and the
//! page on hazards leads to the player, a file that the command makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::TaskResult;
use crate::features;
use crate::needs::MDBOOK;
use crate::process::{cargo, not_started, run};

/// The copy; book.toml names it too.
const SOURCE: &str = "target/book-source";
/// Where docs/hazards.md leads to the player, and how.
const PLAYER_MARK: &str = "<!-- the player -->";
const PLAYER_LINK: &str = "**[Play them here](hazard-player.html).**";
const PLAYER: &str = "hazard-player.html";

pub(crate) fn make() -> TaskResult {
    MDBOOK.require()?;
    copy()?;
    run(Command::new("mdbook").arg("build"))?;
    println!("the book: target/book/index.html");
    Ok(())
}

/// Replaces the copy by a fresh one.
fn copy() -> TaskResult {
    let source = Path::new(SOURCE);
    if source.exists() {
        fs::remove_dir_all(source).map_err(|error| format!("{SOURCE} can't be removed: {error}"))?;
    }
    let repository = repository()?;
    for page in pages(Path::new("docs"))? {
        let below = page.strip_prefix("docs").unwrap_or(&page);
        let target = source.join(below);
        let folder = target.parent().unwrap_or(source);
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        if page.extension().is_some_and(|extension| extension == "png") {
            fs::copy(&page, &target).map_err(|error| format!("{}: {error}", target.display()))?;
            continue;
        }
        let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
        let text = with_links_out(&text, below.components().count(), &repository);
        let text = text.replace(PLAYER_MARK, PLAYER_LINK);
        fs::write(&target, text).map_err(|error| format!("{}: {error}", target.display()))?;
    }
    let mut explain = cargo();
    explain.args(["run", "--quiet", "--package", "lockkeeper-cli", "--", "explain", "--html"]);
    let player = explain.stderr(Stdio::inherit()).output().map_err(|error| not_started(&explain, &error))?;
    if !player.status.success() {
        return Err("the hazard player was not made".to_owned());
    }
    fs::write(source.join(PLAYER), player.stdout).map_err(|error| format!("{PLAYER}: {error}"))
}

/// All pages and pictures in a folder and the folders below.
fn pages(folder: &Path) -> TaskResult<Vec<PathBuf>> {
    let problem = |error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md" || extension == "png") {
            found.push(path);
        }
    }
    Ok(found)
}

fn repository() -> TaskResult<String> {
    let packages = features::metadata()?.packages;
    packages
        .into_iter()
        .find_map(|package| package.repository)
        .ok_or_else(|| "no package of the workspace names its repository".to_owned())
}

/// Makes the links of a page that leave docs/ lead to the repository. `depth`: 1 for a page directly in
/// docs/.
fn with_links_out(text: &str, depth: usize, repository: &str) -> String {
    text.replace(&format!("]({}", "../".repeat(depth)), &format!("]({repository}/blob/main/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_docs_lead_to_the_repository() {
        let made = |text, depth| with_links_out(text, depth, "https://x.example/y");
        assert_eq!(
            made("see [it](../README.md), [here](cli.md)", 1),
            "see [it](https://x.example/y/blob/main/README.md), [here](cli.md)"
        );
        let backend = "[up](../cli.md) and [out](../../crates/a.rs)";
        assert_eq!(made(backend, 2), "[up](../cli.md) and [out](https://x.example/y/blob/main/crates/a.rs)");
    }
}
