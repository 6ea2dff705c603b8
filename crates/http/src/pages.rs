//! The pages for browsers: the console at `/`, and the hazard player.
//!
//! The files are the same for all visitors and contain no state of the service. The pages get that state by
//! calls under `/v1`, with the caller's own permissions. A strict content security policy lets a page load
//! and run only these files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, OnceLock};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Semaphore;

use crate::call::{Identified, InQuery};
use crate::problem::{Problem, ProblemCode};
use crate::service::{Origin, ServiceCalls as _};

/// The content security policy: a page may load these files and call this node. No other page may embed it in
/// a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";
/// The size in bytes below which a file is not compressed.
const COMPRESSED_MIN: usize = 512;

/// The files of the console.
#[derive(rust_embed::Embed)]
#[folder = "console/"]
struct ConsoleFiles;

static CONSOLE: LazyLock<BTreeMap<String, Arc<SentFile>>> = LazyLock::new(|| {
    let files = ConsoleFiles::iter().filter_map(|name| {
        let content = ConsoleFiles::get(&name)?.data;
        let path = if name == "index.html" { "/".to_owned() } else { format!("/console/{name}") };
        Some((path, Arc::new(SentFile::new(media_type(&name), Bytes::from(content.into_owned())))))
    });
    files.collect()
});

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// A file, as it is sent.
struct SentFile {
    media_type: &'static str,
    plain: Bytes,
    /// The compressed content, made at the first request for it; `None` if it would not be shorter.
    gzip: OnceLock<Option<Bytes>>,
    /// Names this content.
    tag: String,
}

impl SentFile {
    fn new(media_type: &'static str, plain: Bytes) -> Self {
        let tag = format!("\"{}\"", STANDARD.encode(&hmac_sha256::Hash::hash(&plain)[..16]));
        Self { media_type, gzip: OnceLock::new(), tag, plain }
    }

    fn gzip(&self) -> Option<&Bytes> {
        let made = self.gzip.get_or_init(|| {
            let gzip = (self.plain.len() > COMPRESSED_MIN).then(|| compressed(&self.plain).ok()).flatten();
            gzip.filter(|gzip| gzip.len() < self.plain.len()).map(Bytes::from)
        });
        made.as_ref()
    }

    async fn response(self: Arc<Self>, asked: &HeaderMap) -> Response {
        let of = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or("");
        let headers = [
            (header::CONTENT_TYPE, self.media_type),
            (header::ETAG, &self.tag),
            // The browser must not mix these files with those of another version.
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        if of(header::IF_NONE_MATCH).split(',').any(|tag| tag.trim() == self.tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let takes_gzip = of(header::ACCEPT_ENCODING).split(',').any(|it| it.trim() == "gzip");
        if takes_gzip && self.gzip.get().is_none() {
            // Compression takes some milliseconds, so it runs on another thread and does not delay other
            // calls. If the thread fails, the file is compressed here.
            let file = self.clone();
            let _ = tokio::task::spawn_blocking(move || drop(file.gzip().cloned())).await;
        }
        match takes_gzip.then(|| self.gzip()).flatten() {
            Some(gzip) => (headers, [(header::CONTENT_ENCODING, "gzip")], gzip.clone()).into_response(),
            None => (headers, self.plain.clone()).into_response(),
        }
    }
}

fn compressed(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain)?;
    encoder.finish()
}

/// The hazard player: a page that shows, step by step, what goes wrong with locks.
#[derive(Clone)]
pub struct HazardPlayer {
    /// The files of the page.
    pub files: Vec<PageFile>,
    /// Computes a trace as JSON for the settings of a query (`story=…&pause-for=5s`). The error is for
    /// people.
    pub trace: Arc<TraceOfQuery>,
}

/// Computes a trace for the pairs of a query.
pub type TraceOfQuery = dyn Fn(&[(String, String)]) -> Result<String, String> + Send + Sync;

/// A file of a page.
#[derive(Clone, Debug)]
pub struct PageFile {
    /// The absolute path of the file's URL.
    pub path: String,
    /// The media type of the file.
    pub media_type: &'static str,
    /// The content of the file.
    pub content: Cow<'static, str>,
}

impl PartialEq for HazardPlayer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.trace, &other.trace)
    }
}

impl Eq for HazardPlayer {}

impl fmt::Debug for HazardPlayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HazardPlayer").finish_non_exhaustive()
    }
}

/// The hazard player's files, and the function that computes its traces.
pub(crate) struct Hazards {
    files: BTreeMap<String, Arc<SentFile>>,
    player: HazardPlayer,
    /// Limits the threads that compute a trace.
    plays: Arc<Semaphore>,
}

impl Hazards {
    pub(crate) fn new(player: HazardPlayer) -> Self {
        let file = |file: &PageFile| {
            let content = Bytes::copy_from_slice(file.content.as_bytes());
            (file.path.clone(), Arc::new(SentFile::new(file.media_type, content)))
        };
        let files = player.files.iter().map(file).collect();
        Self { files, player, plays: Arc::new(Semaphore::new(1)) }
    }
}

/// Whether a path belongs to a page, to which other sites may link.
pub(crate) fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/hazard") || path.starts_with("/console/")
}

/// A file of a page.
pub(crate) async fn file(
    uri: Uri,
    headers: HeaderMap,
    State(hazards): State<Option<Arc<Hazards>>>,
) -> Result<Response, Problem> {
    let path = uri.path();
    let of_hazards = || hazards.as_ref().and_then(|hazards| hazards.files.get(path));
    match CONSOLE.get(path).or_else(of_hazards) {
        Some(file) => Ok(file.clone().response(&headers).await),
        None => Err(crate::interface::nothing_at(path)),
    }
}

/// The trace of a play, for the hazard player.
pub(crate) async fn trace<O: Origin>(
    Identified(calls): Identified<O>,
    InQuery(query): InQuery<Vec<(String, String)>>,
    State(hazards): State<Option<Arc<Hazards>>>,
) -> Result<Response, Problem> {
    let hazards = hazards.ok_or_else(|| crate::interface::nothing_at("/hazard/trace"))?;
    calls.authorize_any()?;
    let shuts_down = |_| Problem::new(ProblemCode::Unavailable, "this node shuts down");
    let play = hazards.plays.clone().acquire_owned().await.map_err(|_| shuts_down(()))?;
    // A play takes some milliseconds, so it runs on another thread and does not delay other calls.
    let played = tokio::task::spawn_blocking(move || {
        let _play = play;
        (hazards.player.trace)(&query)
    });
    let trace = played.await.map_err(|_| shuts_down(()))?.map_err(Problem::invalid)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], trace).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_paint_of_the_console_is_small() {
        let bytes: usize = CONSOLE.values().map(|file| file.gzip().unwrap_or(&file.plain).len()).sum();
        assert!(bytes <= 100_000, "{bytes} bytes");
        assert!(CONSOLE.contains_key("/"));
    }

    #[test]
    fn every_file_of_the_console_has_a_type() {
        for (path, file) in &*CONSOLE {
            assert_ne!(file.media_type, media_type("unknown"), "{path}");
        }
    }
}
