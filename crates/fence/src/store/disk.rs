//! The file of marks: a redb database with one table.
//!
//! Defines the on-disk layout, and detects damage. A record is the marks of one resource, in the format of a
//! mark file, with its checksum. redb adds checksums of its pages, and a commit is one `fdatasync`.
//!
//! A new file is written under a temporary name, and gets its final name when it is complete. So an empty or
//! truncated file at the path is damage, never a first start. One kind of damage is not detected: if the
//! process was killed after a commit *and* the pages of that commit were damaged afterwards, it looks as if
//! the commit had never happened, and the marks are those of the previous commit.
#![expect(clippy::result_large_err, reason = "redb's own error, at most once a commit")]

use std::any::Any;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Builder, Database, DatabaseError, ReadableTable, StorageError, TableDefinition};

use super::error::MarksError;
use crate::format::{self, Unreadable};
use crate::resource::Resource;
use crate::rule::Marks;

const MARKS: TableDefinition<&str, &[u8]> = TableDefinition::new("lockkeeper-fence marks");
/// redb's page cache, in bytes. Small, since `group_commit.rs` caches the marks; this cache only serves
/// commits and loads.
const CACHE: usize = 8 << 20;

/// The database. An error closes it; the next call opens it again.
#[derive(Debug)]
pub(super) struct MarkDatabase {
    path: PathBuf,
    /// `None` before it is opened, and after an error: redb requires that a database is opened again after an
    /// I/O error.
    database: Option<Database>,
}

impl MarkDatabase {
    pub(super) fn open(path: &Path) -> Result<Self, MarksError> {
        let mut disk = Self { path: path.to_owned(), database: None };
        match fs::metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create()?,
            Err(error) => return Err(disk.io("look for")(error)),
        }
        disk.database()?;
        // An existing file's directory is synced too: the process that created the file may have been killed
        // before its name was durable.
        #[cfg(unix)]
        fs::File::open(disk.parent())
            .and_then(|parent| parent.sync_all())
            .map_err(disk.io("sync the directory of"))?;
        Ok(disk)
    }

    /// The number of marks: one for each resource, and one for each slot with marks of its own.
    pub(super) fn count(&mut self) -> Result<u64, MarksError> {
        self.with("read", |database| {
            let mut count = 0;
            for record in database.begin_read()?.open_table(MARKS)?.iter()? {
                count += format::count(record?.1.value());
            }
            Ok(count)
        })
    }

    /// Returns the default marks for a resource never seen.
    pub(super) fn load(&mut self, resource: &Resource) -> Result<Marks, MarksError> {
        let path = self.path.clone();
        let bytes = self.with("read", |database| {
            let table = database.begin_read()?.open_table(MARKS)?;
            Ok(table.get(resource.as_str())?.map(|bytes| bytes.value().to_vec()))
        })?;
        match bytes.map(|bytes| format::decode(&bytes)) {
            None => Ok(Marks::default()),
            Some(Ok(marks)) => Ok(marks),
            Some(Err(Unreadable::Newer { version })) => Err(MarksError::Newer { path, version }),
            Some(Err(Unreadable::Corrupt { why })) => {
                Err(MarksError::Damaged { path, why: format!("of the resource `{resource}`, {why}") })
            }
        }
    }

    /// Makes all changes durable, or none of them.
    pub(super) fn commit(&mut self, changes: &[(Resource, Marks)]) -> Result<(), MarksError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.with("write", |database| put(database, changes))
    }

    fn with<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, MarksError> {
        let database = self.database()?;
        match guarded(|| work(database)) {
            Ok(Ok(done)) => Ok(done),
            failed => {
                self.database = None;
                Err(self.failed(doing, failed.map(|result| result.err())))
            }
        }
    }

    fn database(&mut self) -> Result<&Database, MarksError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.opened()?,
        };
        Ok(self.database.insert(database))
    }

    fn opened(&self) -> Result<Database, MarksError> {
        let length = fs::metadata(&self.path).map_err(self.io("open"))?.len();
        if length == 0 {
            return Err(self.damaged("it is empty"));
        }
        let opened = guarded(|| {
            let mut database = Builder::new().set_cache_size(CACHE).open(&self.path)?;
            if !database.check_integrity()? {
                return Err(StorageError::Corrupted("its checksums don't match".to_owned()).into());
            }
            Ok::<_, DatabaseError>(database)
        });
        let database = match opened {
            Ok(Ok(database)) => database,
            failed => {
                return Err(self.failed("open", failed.map(|result| result.err().map(redb::Error::from))));
            }
        };
        // A redb database of another program lacks the table.
        let table = guarded(|| Ok::<_, redb::Error>(database.begin_read()?.open_table(MARKS).map(|_| ())?));
        match table {
            Ok(Ok(())) => Ok(database),
            failed => Err(self.failed("open", failed.map(|result| result.err()))),
        }
    }

    fn parent(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn create(&self) -> Result<(), MarksError> {
        let new = tempfile::NamedTempFile::new_in(self.parent()).map_err(self.io("create"))?;
        let file = new.reopen().map_err(self.io("create"))?;
        let made = guarded(|| {
            let mut builder = Builder::new();
            // Later releases of redb read only this format.
            let database =
                builder.create_with_file_format_v3(true).set_cache_size(CACHE).create_file(file)?;
            put(&database, &[])?;
            Ok::<_, redb::Error>(())
        });
        if !matches!(made, Ok(Ok(()))) {
            return Err(self.failed("create", made.map(|result| result.err())));
        }
        match new.persist_noclobber(&self.path) {
            Ok(_) => {}
            // Another process has created the file first: that file is used.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(self.io("create")(error.error)),
        }
        Ok(())
    }

    /// Converts the error of a failed step. `error` is `Err` with the message of a panic, or `Ok` with redb's
    /// error; `Ok(None)` (no error) is never passed.
    fn failed(&self, doing: &'static str, error: Result<Option<redb::Error>, String>) -> MarksError {
        match error {
            Err(panic) => self.damaged(&panic),
            Ok(Some(redb::Error::DatabaseAlreadyOpen)) => MarksError::InUse { path: self.path.clone() },
            Ok(Some(redb::Error::Io(source))) => match source.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                    self.damaged(&source.to_string())
                }
                _ => self.io(doing)(source),
            },
            Ok(Some(redb::Error::TableDoesNotExist(_))) => {
                self.damaged("it is a redb database of something else")
            }
            Ok(Some(other)) => self.damaged(&other.to_string()),
            Ok(None) => self.damaged("it could not be used"),
        }
    }

    fn damaged(&self, why: &str) -> MarksError {
        MarksError::Damaged { path: self.path.clone(), why: why.to_owned() }
    }

    fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> MarksError + use<> {
        let path = self.path.clone();
        move |source| MarksError::Io { doing, path, source: Arc::new(source) }
    }
}

fn put(database: &Database, changes: &[(Resource, Marks)]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(MARKS)?;
        for (resource, marks) in changes {
            table.insert(resource.as_str(), format::encode(marks).as_slice())?;
        }
    }
    Ok(transaction.commit()?)
}

/// Runs `work`, and returns the message if it panics: some kinds of damage violate an assertion of redb. Such
/// a panic is reported as damage, and does not end the service.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic: Box<dyn Any + Send>| {
        let word = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|word| (*word).to_owned()));
        word.unwrap_or_else(|| "it can't be read".to_owned())
    })
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
