//! `backup`: writes the whole table of a running node to a file.
//!
//! Invariant: an incomplete backup never has the given name. The bytes go into a temporary file in the same
//! directory, are synced, and are read back as a restore would read them; only then is the file renamed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_server::backup::{Contents, RestoreError, inspect};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::args::Backup;
use crate::exit::{Failure, IO, OK, chain, code_below};
use crate::output;
use crate::settings;

pub(super) async fn backup(args: Backup) -> Result<u8, Failure> {
    let url = settings::service_url(args.service.locks.as_deref())?;
    let mut parts = settings::connect(&url, "backup").await?.backup()?;

    let folder = folder(&args.file);
    let failed = |doing: &'static str| {
        let file = args.file.display().to_string();
        move |error: std::io::Error| Failure::system(IO, &format!("cannot {doing} `{file}`"), &error)
    };
    // Created readable by this user only: the file contains the labels and metadata of holders and waiters.
    let mut temporary =
        NamedTempFile::new_in(&folder).map_err(|error| failed("write")(without_path(error)))?;
    let mut bytes = 0;
    let mut out = BufWriter::new(temporary.as_file_mut());
    while let Some(part) = parts.next().await {
        let part = part?;
        bytes += part.len() as u64;
        out.write_all(&part).map_err(failed("write"))?;
    }
    out.flush().map_err(failed("write"))?;
    drop(out);
    temporary.as_file().sync_all().map_err(failed("sync"))?;
    let contents =
        inspect(temporary.path()).map_err(|error| unusable(error, temporary.path(), &args.file))?;
    temporary.persist(&args.file).map_err(|error| failed("write")(error.error))?;
    File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed("sync the folder of"))?;

    if args.json {
        let mut said = contents_json(&contents);
        said["file"] = json!(args.file.to_string_lossy());
        said["bytes"] = json!(bytes);
        output::json(&said)?;
    } else {
        output::line(format!(
            "{}: {bytes} bytes, {} sessions, {} holds and waiters, tokens up to {}, as of entry {} of cluster {}",
            args.file.display(),
            contents.sessions,
            contents.requests,
            contents.last_token,
            contents.index,
            contents.cluster
        ))?;
    }
    Ok(OK)
}

/// The directory of the file. The temporary file must be in the same directory, since a rename is atomic only
/// within one filesystem.
fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The error of the system itself: `tempfile` adds the name of the temporary file, which means nothing to the
/// user.
fn without_path(error: std::io::Error) -> std::io::Error {
    if error.get_ref().is_some() { error.kind().into() } else { error }
}

/// The received data are not a complete backup: the node ended the stream early, or uses a newer format.
fn unusable(error: RestoreError, temporary: &Path, file: &Path) -> Failure {
    let said = chain(&error).replace(&*temporary.to_string_lossy(), &file.to_string_lossy());
    let text = format!("the service sent no whole backup ({said}); nothing was kept, try again");
    Failure::new(code_below(&error).unwrap_or(IO), text)
}

/// The contents of a backup, as JSON.
pub(super) fn contents_json(contents: &Contents) -> Value {
    let taken = contents.taken.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    json!({
        "cluster": contents.cluster,
        "node": contents.node,
        "index": contents.index,
        "last_token": contents.last_token,
        "taken_ms": taken.as_millis() as u64,
        "sessions": contents.sessions,
        "requests": contents.requests,
    })
}
