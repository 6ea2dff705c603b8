//! `verify --html`: the page of a history.

use std::path::{Path, PathBuf};

use lockkeeper_verify::{Counts, Overview, page};

use super::read;
use crate::args::Verify;
use crate::exit::{CANNOT_CREATE, Failure, USAGE};
use crate::output::say;

/// The page that is being made.
pub(super) struct Page {
    pub(super) overview: Overview,
    path: PathBuf,
}

impl Page {
    pub(super) fn new(args: &Verify, path: &Path) -> Result<Self, Failure> {
        let is_file = |path: &Path| std::fs::metadata(path).is_ok_and(|it| it.is_file());
        // A missing file is reported when it is opened.
        if let Some(pipe) = args.files.iter().find(|path| path.exists() && !is_file(path)) {
            let text = format!("`{}` is no regular file: --html reads the history twice", pipe.display());
            return Err(Failure::new(USAGE, text));
        }
        let same = |it: &PathBuf| path.exists() && it.canonicalize().ok() == path.canonicalize().ok();
        if args.files.iter().any(same) {
            let text = format!("--html would overwrite the history `{}`", path.display());
            return Err(Failure::new(USAGE, text));
        }
        Ok(Self { overview: Overview::default(), path: path.to_owned() })
    }

    /// Writes it, after a second reading of a history that is too long for the page.
    pub(super) fn write(self, args: &Verify, counts: &Counts) -> Result<(), Failure> {
        let mut windows = self.overview.windows();
        if let Some(windows) = &mut windows {
            let mut lines = 0;
            read(args, |line| {
                // What has been appended since was not checked.
                lines += 1;
                if lines <= counts.lines {
                    windows.push(&line);
                }
                Ok(())
            })?;
        }
        let names: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        let html = page(&self.overview.end(windows), counts, &names.join(", "));
        std::fs::write(&self.path, html).map_err(|error| {
            Failure::system(CANNOT_CREATE, &format!("cannot write `{}`", self.path.display()), &error)
        })?;
        say(format!("the page is `{}`", self.path.display()));
        Ok(())
    }
}
