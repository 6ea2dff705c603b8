//! The small files in a node's options: certificates, tokens, permissions. They are reloaded while the node
//! runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::audit::{Audit, AuditRecord};
use crate::error::FileError;
use crate::observe;

/// Limit on the size of a file, in bytes.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 20;
/// The interval at which the files are compared with those in use.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes.
///
/// # Errors
/// The file can't be read, or is larger.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    use std::io::Read;
    let failed = |source| FileError::Read { file: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(unusable(path, format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

pub(crate) fn unusable(path: &Path, why: String) -> FileError {
    FileError::Unusable { file: path.to_owned(), why }
}

/// Files in use that can be replaced while the node runs.
pub(crate) trait Reload: Send + Sync + 'static {
    /// Reads the files again, and returns whether they have changed. Unusable files change nothing. Blocks.
    ///
    /// # Errors
    /// The files can't be used.
    fn reload(&self) -> Result<bool, FileError>;

    /// The purpose of the files, and their names.
    fn names(&self) -> String;

    /// Called after each check of the files; logs further warnings about them.
    fn after_check(&self) {}
}

/// Why changed files are not used, for the status of this node; empty if all files are used.
pub(crate) type FilesError = Arc<Mutex<String>>;

/// Reloads changed files, at intervals and at once after `wake`. Runs until the future is dropped. `unusable`
/// is kept up to date.
pub(crate) async fn keep_current(
    files: Vec<Arc<dyn Reload>>,
    wake: Arc<Notify>,
    audit: Arc<Audit>,
    unusable: FilesError,
) {
    let note = |detail, reason, result: &str| {
        let result = result.to_owned();
        audit.note(AuditRecord { what: "reload".into(), detail, reason, result, ..AuditRecord::default() });
    };
    let mut failed: Vec<Option<String>> = files.iter().map(|_| None).collect();
    loop {
        files.iter().for_each(|it| it.after_check());
        let is_asked = tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => false,
            () = wake.notified() => true,
        };
        for (it, failed) in files.iter().zip(&mut failed) {
            let read = it.clone();
            // Runs on a thread of its own, since a file system may hang.
            let Ok(reloaded) = tokio::task::spawn_blocking(move || read.reload()).await else { continue };
            let names = it.names();
            match reloaded {
                Ok(has_changed) => {
                    *failed = None;
                    if has_changed {
                        note(names, String::new(), "done");
                    } else if is_asked {
                        tracing::info!("the files have not changed: {names}");
                    }
                }
                Err(error) => {
                    // Files that are just being replaced don't fit together: the same error is logged once,
                    // and at SIGHUP. Its numbers may be of the time, such as that since a certificate's end.
                    let text = error.to_string();
                    let without_numbers = |it: &str| it.replace(|char: char| char.is_ascii_digit(), "");
                    let said = failed.as_deref().map(without_numbers);
                    if is_asked || said != Some(without_numbers(&text)) {
                        tracing::error!(%error, "the new files are not used, the old ones stay in force: {error}");
                        note(names, text.clone(), "failed");
                    }
                    *failed = Some(text);
                }
            }
        }
        let texts: Vec<&str> = failed.iter().flatten().map(String::as_str).collect();
        observe::files_unusable(texts.len());
        *unusable.lock() = texts.join("; ");
    }
}
