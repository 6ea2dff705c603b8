//! A file in a directory of the user's choice, guarded by [`FileFence`].

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lockkeeper::url::Url;
use lockkeeper_fence::{FileError, FileFence, Section};

use super::LedgerError;
use crate::exit::{CANNOT_CREATE, Failure, IO, USAGE, chain};

pub(in super::super) struct FileLedger {
    fence: FileFence,
    path: PathBuf,
}

impl FileLedger {
    pub(super) fn open(url: &Url, name: &str) -> Result<Self, Failure> {
        let directory = PathBuf::from(&url.path);
        if !url.hosts.is_empty() || !directory.is_absolute() {
            return Err(Failure::new(
                USAGE,
                format!("--resource `{url}` names no directory of this host; write `file:///dir`"),
            ));
        }
        if !directory.is_dir() {
            return Err(Failure::new(
                CANNOT_CREATE,
                format!("--resource: `{}` is no directory; the ledger is made in one", directory.display()),
            ));
        }
        let path = directory.join(name);
        let fence = FileFence::new(&path).map_err(|error| Failure::new(USAGE, chain(&error)))?;
        Ok(Self { fence, path })
    }

    pub(super) fn create(&self) -> Result<(), Failure> {
        let made = fs::File::options().write(true).create_new(true).open(&self.path);
        let doing = || format!("cannot create `{}`", self.path.display());
        made.map(drop).map_err(|error| Failure::system(CANNOT_CREATE, &doing(), &error))
    }

    pub(super) fn enter(&self, section: Section) -> Result<(), LedgerError> {
        Ok(self.fence.enter(section)?)
    }

    pub(super) fn read(&self) -> Result<String, LedgerError> {
        fs::read_to_string(&self.path).map_err(|error| LedgerError::failed(&error))
    }

    pub(super) fn write(&self, section: Option<Section>, ledger: &str) -> Result<(), LedgerError> {
        match section {
            Some(section) => Ok(self.fence.write(section, ledger.as_bytes())?),
            None => {
                // Written to a temporary file and renamed, as a careful program does: a killed worker must
                // not leave a partial ledger. The name contains the process id, since without a fence nothing
                // excludes two writers.
                let new = self.beside(&format!(".{}", std::process::id()));
                let put = write_new(&new, ledger).and_then(|()| fs::rename(&new, &self.path));
                put.map_err(|error| LedgerError::failed(&error))
            }
        }
    }

    pub(super) fn location(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        // Removes everything whose name begins with the ledger's random name, which includes temporary files
        // of killed workers.
        let failed = |error: &std::io::Error| {
            Failure::system(
                IO,
                &format!("cannot remove `{}` and what is beside it", self.path.display()),
                error,
            )
        };
        let own = self.path.file_name().unwrap_or_default().as_encoded_bytes();
        let directory = self.path.parent().unwrap_or(&self.path);
        for entry in fs::read_dir(directory).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            if entry.file_name().as_encoded_bytes().starts_with(own) {
                fs::remove_file(entry.path()).map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }
}

/// Writes this process's temporary file. `O_NOFOLLOW`: in a world-writable directory another user may have
/// placed a symlink at this name.
fn write_new(path: &Path, ledger: &str) -> std::io::Result<()> {
    let mut options = fs::File::options();
    let mut file =
        options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    file.write_all(ledger.as_bytes())
}

impl From<FileError> for LedgerError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Refused(refused) => refused.into(),
            other => Self::failed(&other),
        }
    }
}
