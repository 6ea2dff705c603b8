//! The disk interface of the storage layer: one flat directory. It is injected, so that the simulator can
//! tear, lose and fail writes.

pub mod memory;

use std::{fmt, io};

/// A data directory. Clones share it and may be used on other threads.
pub trait Disk: Clone + Send + fmt::Debug + 'static {
    /// An open file of this directory.
    type File: DiskFile;

    /// Returns the names of all files, in no particular order.
    ///
    /// # Errors
    /// The system's I/O error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file. Its name is durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// If the file exists, or the system's I/O error.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// If the file does not exist, or the system's I/O error.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Renames a file; an existing file named `to` is replaced. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// The system's I/O error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Deletes a file. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// The system's I/O error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all earlier creates, renames and removes durable (a sync of the directory).
    ///
    /// # Errors
    /// The system's I/O error. The state of the disk is unknown then: never retry, stop, because fsync
    /// reports an error only once.
    fn sync_names(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + fmt::Debug + 'static {
    /// Returns the file's length in bytes.
    ///
    /// # Errors
    /// The system's I/O error.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` with the content at `offset`.
    ///
    /// # Errors
    /// If the file ends before `bytes` is full, or the system's I/O error.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, extending the file if necessary. Durable after [`DiskFile::sync`].
    ///
    /// # Errors
    /// The system's I/O error; a part may have been written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes content and size durable (`fdatasync`).
    ///
    /// # Errors
    /// The system's I/O error. The state of the disk is unknown then: never retry, stop.
    fn sync(&mut self) -> io::Result<()>;
}
