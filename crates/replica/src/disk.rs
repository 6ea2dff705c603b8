//! What the storage needs of a disk: one flat directory. Handed in, so that the simulator can tear, lose and fail it.

pub mod memory;

use std::{fmt, io};

/// A data directory. A clone works on the same one, perhaps on another thread.
pub trait Disk: Clone + Send + fmt::Debug + 'static {
    /// An open file of it.
    type File: DiskFile;

    /// The names of all files, in no particular order.
    ///
    /// # Errors
    /// Whatever the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file that did not exist. Its name is durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// If it exists, or whatever the system says.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file that exists, for reading and writing.
    ///
    /// # Errors
    /// If it does not exist, or whatever the system says.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, in place of whatever had it. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// Whatever the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a file away. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// Whatever the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable: everything created, renamed or removed so far.
    ///
    /// # Errors
    /// Whatever the system says. What is on the disk is unknown then: never retry, stop (fsync tells an error once).
    fn sync_names(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + fmt::Debug + 'static {
    /// Its length in bytes.
    ///
    /// # Errors
    /// Whatever the system says.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// If the file ends before, or whatever the system says.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`; the file grows if it must. Durable after [`DiskFile::sync`].
    ///
    /// # Errors
    /// Whatever the system says; part of it may be written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes contents and size durable (`fdatasync`).
    ///
    /// # Errors
    /// Whatever the system says. What is on the disk is unknown then: never retry, stop.
    fn sync(&mut self) -> io::Result<()>;
}
