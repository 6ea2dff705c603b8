//! Records as files in a directory.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

use hmac_sha256::Hash;
use lockkeeper_backend::hex;

use super::{OnceRecord, OnceStore};

/// Records in a directory of a local filesystem, one file each, for the processes of one host. A record is on
/// disk before the work counts as done. To remove old records, delete files by their age.
///
/// The file's name is the SHA-256 of the key, in hexadecimal digits; its content is the attempt, a line feed,
/// and the outcome.
#[derive(Clone, Debug)]
pub struct FileRecords {
    dir: PathBuf,
}

impl FileRecords {
    /// Records in this directory, which is created with the first record; its parent should exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(hex(&Hash::hash(key.as_bytes())))
    }

    fn read(&self, key: &str) -> io::Result<Option<OnceRecord>> {
        let path = self.path(key);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidData, format!("{} is no record", path.display()));
        OnceRecord::from_bytes(&bytes).ok_or_else(invalid).map(Some)
    }

    fn write(&self, key: &str, record: &OnceRecord) -> io::Result<OnceRecord> {
        if !self.dir.is_dir() {
            fs::create_dir_all(&self.dir)?;
            if let Some(parent) = self.dir.parent().filter(|it| !it.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        let path = self.path(key);
        let unfinished = path.with_extension(&record.attempt);
        let mut file = File::create(&unfinished)?;
        let linked = file
            .write_all(&record.to_bytes())
            .and_then(|()| file.sync_all())
            // Fails if the name exists, unlike a rename.
            .and_then(|()| fs::hard_link(&unfinished, &path));
        fs::remove_file(&unfinished)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => File::open(&self.dir)?.sync_all()?,
        }
        self.read(key)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the record was deleted"))
    }
}

impl OnceStore for FileRecords {
    type Error = io::Error;

    async fn get(&self, key: &str) -> io::Result<Option<OnceRecord>> {
        let (this, key) = (self.clone(), key.to_owned());
        tokio::task::spawn_blocking(move || this.read(&key)).await?
    }

    async fn put(&self, key: &str, record: &OnceRecord) -> io::Result<OnceRecord> {
        let (this, key, record) = (self.clone(), key.to_owned(), record.clone());
        tokio::task::spawn_blocking(move || this.write(&key, &record)).await?
    }
}
