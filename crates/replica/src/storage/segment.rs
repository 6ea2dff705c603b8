//! Log segments as files: their names, and the creation of a new one.
//!
//! A segment has its full size from the start, zero-filled and synced. So an append changes neither size nor
//! allocation, and costs a single `fdatasync`. A segment is created under a temporary name, so a crash leaves
//! no incomplete segment in the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::format::SECTOR;
use crate::disk::{Disk, DiskFile};

/// The size of one write while a segment is zero-filled, in bytes.
const FILL_BYTES: u64 = 1 << 20;
/// Zero-filling syncs after this many bytes, so that the log's own syncs never wait for a large one.
const FILL_SYNC_BYTES: u64 = 8 << 20;

/// The suffix of unfinished files and of segments that are not part of the log. A start of the node removes
/// these files.
pub(super) const TEMPORARY: &str = ".new";

/// The smallest segment, in sectors: header, one record, seal.
pub(super) const SECTORS_MIN: u64 = 3;

pub(super) fn name(number: u64) -> String {
    format!("log-{number:020}")
}

/// Parses the number in a name that consists of `prefix` and 20 digits.
pub(super) fn numbered(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// A new segment that is not part of the log yet.
#[derive(Debug)]
pub struct Spare<F> {
    pub(super) file: F,
    pub(super) name: String,
    pub(super) size: u64,
}

/// Preallocates segments, on any thread: zero-filling one takes far longer than an append.
#[derive(Clone, Debug)]
pub struct SpareMaker<D> {
    disk: D,
    size: u64,
    made: Arc<AtomicU64>,
}

impl<D: Disk> SpareMaker<D> {
    pub(super) fn new(disk: D, size: u64) -> Self {
        Self { disk, size, made: Arc::default() }
    }

    /// Creates a segment of the normal size, for [`super::Log::give_spare`].
    ///
    /// # Errors
    /// The disk's I/O error; the unfinished file is removed. The log is not affected: it creates its next
    /// segment on demand.
    pub fn make(&self) -> io::Result<Spare<D::File>> {
        self.make_sized(self.size)
    }

    pub(super) fn make_sized(&self, size: u64) -> io::Result<Spare<D::File>> {
        let name = format!("spare-{}{TEMPORARY}", self.made.fetch_add(1, Ordering::Relaxed));
        let mut file = self.disk.create(&name)?;
        match fill(&mut file, size) {
            Ok(()) => Ok(Spare { file, name, size }),
            Err(error) => {
                drop(file);
                // On a full disk this frees the space. If the removal fails too, the next start removes the
                // file.
                let _ = self.disk.remove(&name);
                Err(error)
            }
        }
    }
}

fn fill(file: &mut impl DiskFile, size: u64) -> io::Result<()> {
    debug_assert!(size.is_multiple_of(SECTOR) && size >= SECTORS_MIN * SECTOR, "callers round");
    let zeros = vec![0; size.min(FILL_BYTES) as usize];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(FILL_BYTES);
        file.write_at(at, &zeros[..length as usize])?;
        at += length;
        if at.is_multiple_of(FILL_SYNC_BYTES) && at < size {
            file.sync()?;
        }
    }
    file.sync()
}
