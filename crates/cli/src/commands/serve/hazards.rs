//! The hazard player that a node serves.

use std::sync::Arc;

use lockkeeper_hazard::{Settings, page, play};
use lockkeeper_http::{HazardPlayer, PageFile};
use serde_json::json;

/// The page, and the function that computes its traces.
pub(super) fn player() -> HazardPlayer {
    let file = |path: &str, media_type, content| PageFile { path: path.to_owned(), media_type, content };
    let mut files = vec![
        file("/hazard", "text/html; charset=utf-8", page::HTML.into()),
        file("/hazard/hazard.css", "text/css; charset=utf-8", page::CSS.into()),
        file("/hazard/stories", "application/json", page::recorded().to_string().into()),
    ];
    files.extend(page::SCRIPTS.map(|(name, script)| {
        file(&format!("/hazard/{name}"), "text/javascript; charset=utf-8", script.into())
    }));
    HazardPlayer { files, trace: Arc::new(trace) }
}

fn trace(query: &[(String, String)]) -> Result<String, String> {
    let pairs: Vec<(&str, &str)> = query.iter().map(|(key, value)| (&**key, &**value)).collect();
    let trace = Settings::of_query(&pairs).and_then(|settings| play(&settings));
    trace.map(|trace| json!(trace).to_string()).map_err(|error| error.to_string())
}
