//! The library's public API as a text, `docs/public-api.txt`, so that a change of it is seen in review.
//!
//! Read from the pages that rustdoc makes: each item's declaration, its public methods, and the traits that
//! it implements, without auto traits and blanket implementations.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;
use crate::features;
use crate::process::{cargo, run};

/// The text. Not a page of the book.
const FILE: &str = "docs/public-api.txt";
/// All lock services.
const FEATURES: &str =
    "dynamodb,etcd-tls,mysql-tls,object-store,postgres-tls,redis-tls,redlock,sqlite,zookeeper";

/// Writes the text.
#[cfg_attr(feature = "generate", allow(dead_code, reason = "the build without the feature calls it"))]
pub(crate) fn write() -> TaskResult {
    fs::write(FILE, public_api()?).map_err(|error| format!("{FILE}: {error}"))
}

/// Fails if the text is not that of the code.
pub(crate) fn check() -> TaskResult {
    let known = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let found = public_api()?;
    if known == found {
        return Ok(());
    }
    let news = found.lines().find(|line| !known.lines().any(|known| known == *line));
    let gone = known.lines().find(|line| !found.lines().any(|found| found == *line));
    Err(format!(
        "the library's public API is not that of {FILE} (new: {:?}, gone: {:?}); if the change is meant, run \
         `cargo xtask generate`",
        news.unwrap_or("nothing"),
        gone.unwrap_or("nothing")
    ))
}

fn public_api() -> TaskResult<String> {
    let folder = features::metadata()?.target_directory.join("doc/lockkeeper");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{folder}: {error}"))?;
    }
    run(cargo().args(["doc", "--no-deps", "--locked", "--package", "lockkeeper", "--features", FEATURES]))?;
    let mut pages = html(folder.as_std_path())?;
    pages.sort();
    let mut text = String::new();
    for page in pages {
        let html = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
        let name = page.strip_prefix(&folder).unwrap_or(&page).with_extension("");
        let lines = signatures(&html);
        if !lines.is_empty() {
            text += &format!(
                "{}\n{}\n",
                name.display(),
                lines.iter().map(|line| format!("    {line}\n")).collect::<String>()
            );
        }
    }
    Ok(text)
}

/// The pages of items in a folder and the folders below.
fn html(folder: &Path) -> TaskResult<Vec<PathBuf>> {
    let problem = |error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() {
            found.extend(html(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The signatures of an item's page.
fn signatures(page: &str) -> Vec<String> {
    let (page, _) = page.split_once("id=\"synthetic-implementations\"").unwrap_or((page, ""));
    let (own, traits) = page.split_once("id=\"trait-implementations\"").unwrap_or((page, ""));
    let mut lines = between(own, "<pre class=\"rust item-decl\"><code>", "</code></pre>");
    lines.extend(between(own, "<h4 class=\"code-header\">", "</h4>"));
    let mut traits = between(traits, "<h3 class=\"code-header\">", "</h3>");
    traits.sort();
    lines.extend(traits);
    lines
}

/// The texts between two marks, each on one line and without tags.
fn between(page: &str, from: &str, to: &str) -> Vec<String> {
    let parts = page.split(from).skip(1).filter_map(|part| part.split_once(to));
    parts.map(|(part, _)| plain(part)).collect()
}

fn plain(html: &str) -> String {
    let mut text = String::new();
    for (index, part) in html.split('<').enumerate() {
        text += if index == 0 { part } else { part.split_once('>').map_or("", |(_, rest)| rest) };
    }
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];
    let text = entities.into_iter().fold(text, |text, (entity, character)| text.replace(entity, character));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_read_from_a_page() {
        let page = "<pre class=\"rust item-decl\"><code>pub struct <a href=\"x\">Guard</a>&lt;F&gt; {\n  /* private */ }</code></pre>\
                    <h4 class=\"code-header\">pub fn <a>lost</a>(&amp;self)</h4>\
                    <div id=\"trait-implementations\"><h3 class=\"code-header\">impl Drop for Guard</h3><h4 class=\"code-header\">fn drop</h4>\
                    <div id=\"synthetic-implementations\"><h3 class=\"code-header\">impl Send for Guard</h3>";
        assert_eq!(
            signatures(page),
            ["pub struct Guard<F> { /* private */ }", "pub fn lost(&self)", "impl Drop for Guard"]
        );
    }
}
