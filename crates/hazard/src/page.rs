//! The player as a web page: its files for a server, and a single file that needs none.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::play;
use crate::settings::{Fence, Settings, SettingsError};
use crate::stories::{STORIES, Story};

/// The page.
pub const HTML: &str = include_str!("../page/hazard.html");
/// Its style, at `hazard/hazard.css`.
pub const CSS: &str = include_str!("../page/hazard.css");
/// Its scripts, at `hazard/NAME`, each after those that it imports. The page names the last.
pub const SCRIPTS: [(&str, &str); 5] = [
    ("model.js", include_str!("../page/model.js")),
    ("picture.js", include_str!("../page/picture.js")),
    ("player.js", include_str!("../page/player.js")),
    ("settings.js", include_str!("../page/settings.js")),
    ("hazard.js", include_str!("../page/hazard.js")),
];

/// The element that the single file replaces by the content of the linked file.
const STYLE_LINK: &str = "<link rel=\"stylesheet\" href=\"hazard/hazard.css\">";
const SCRIPT_LINK: &str = "<script type=\"module\" src=\"hazard/hazard.js\"></script>";

/// All stories, each with its traces for all fences: the data of the page without a server.
#[must_use]
pub fn recorded() -> Value {
    STORIES.iter().map(recorded_story).collect()
}

/// A story, with its trace for each fence.
#[must_use]
pub fn recorded_story(story: &Story) -> Value {
    let traces = story.fences().into_iter().filter_map(|fence| Some((fence, played(story, fence).ok()?)));
    let traces: Map<String, Value> = traces.map(|(fence, trace)| (fence.name().to_owned(), trace)).collect();
    let mut all = json!(story);
    all["fence"] = json!(story.settings().fence);
    all["traces"] = traces.into();
    all
}

fn played(story: &Story, fence: Fence) -> Result<Value, SettingsError> {
    Ok(json!(play(&Settings { fence, ..story.settings() })?))
}

/// The page as one file, with recorded traces: it works from a disk, and on any web site.
#[must_use]
pub fn single_file() -> String {
    // `<` is escaped in the data, so nothing in it ends the element.
    let data = recorded().to_string().replace('<', "\\u003c");
    let style = format!("<style>\n{CSS}</style>");
    let script = format!(
        "<script type=\"application/json\" id=\"recorded\">{data}</script>\n<script type=\"module\">\n{}</script>",
        one_module()
    );
    HTML.replacen(STYLE_LINK, &style, 1).replacen(SCRIPT_LINK, &script, 1)
}

/// The scripts as one module, without imports (each is one line) and `export`. No name is defined in two
/// scripts.
fn one_module() -> String {
    let mut all = String::new();
    for line in SCRIPTS.iter().flat_map(|(_, script)| script.lines()) {
        if !line.starts_with("import ") {
            // Never fails: a string takes everything.
            let _ = writeln!(all, "{}", line.strip_prefix("export ").unwrap_or(line));
        }
    }
    all
}
