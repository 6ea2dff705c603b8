//! The player as a web page: its files for a server, and a single file that needs none.

use serde_json::{Map, Value, json};

use crate::settings::Fence;
use crate::stories::{STORIES, Story};
use crate::{play, settings::SettingsError};

/// The page.
pub const HTML: &str = include_str!("../page/hazard.html");
/// Its style, at `hazard/hazard.css`.
pub const CSS: &str = include_str!("../page/hazard.css");
/// Its script, at `hazard/hazard.js`.
pub const JS: &str = include_str!("../page/hazard.js");

/// Where the page's own files are replaced by their content in the single file.
const STYLE_LINK: &str = "<link rel=\"stylesheet\" href=\"hazard/hazard.css\">";
const SCRIPT_LINK: &str = "<script type=\"module\" src=\"hazard/hazard.js\"></script>";

/// All stories, and their traces with everything that the resource can check: what the page shows without a server.
#[must_use]
pub fn recorded() -> Value {
    STORIES.iter().map(recorded_story).collect()
}

/// A story, and its traces by the fence.
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
    let settings = crate::Settings { fence, ..story.settings() };
    Ok(json!(play(&settings)?))
}

/// The page as one file, with recorded traces: it works from a disk, and on any web site.
#[must_use]
pub fn single_file() -> String {
    // `<` is escaped in the data, so nothing in it ends the element.
    let data = recorded().to_string().replace('<', "\\u003c");
    let style = format!("<style>\n{}</style>", CSS);
    let script = format!(
        "<script type=\"application/json\" id=\"recorded\">{data}</script>\n<script type=\"module\">\n{}</script>",
        JS
    );
    HTML.replacen(STYLE_LINK, &style, 1).replacen(SCRIPT_LINK, &script, 1)
}
