//! The token counter of one directory: crash-safe, and never below a token that was issued.
//!
//! One preallocated file of two 512-byte sectors, each a checksummed slot, written alternately with one
//! fdatasync each. When a token is issued, the older slot is at most 1 below it. So if only one slot is
//! valid, the counter is read as that slot's value + 1: no token is issued twice, even if the newest slot was
//! torn.
//!
//! A counter file that was deleted or replaced issues no token: others would issue the same ones from its
//! successor (P2).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_backend::{BackendError, BackendErrorKind};
use xxhash_rust::xxh3::xxh3_64;

use super::os::{Backoff, OsError, explain, is_at, try_flock, unflock};

pub(super) const SLOT_BYTES: usize = 512;
pub(super) const FILE_BYTES: usize = 2 * SLOT_BYTES;
const MAGIC: [u8; 8] = *b"LKCOUNT1";
/// The file's name.
pub(super) const NAME: &str = "counter";

/// One slot of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct CounterSlot {
    generation: u64,
    value: u64,
}

impl CounterSlot {
    fn encode(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        let sum = xxh3_64(&bytes[..SLOT_BYTES - 8]);
        bytes[SLOT_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` unless every byte is as written.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (data, sum) = bytes.get(..SLOT_BYTES)?.split_at(SLOT_BYTES - 8);
        if data[..8] != MAGIC || xxh3_64(data).to_le_bytes() != sum {
            return None;
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| data[at + i]));
        Some(Self { generation: number(8), value: number(16) })
    }
}

/// The combined content of both slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reading {
    /// No token above this was issued.
    value: u64,
    newest: CounterSlot,
    /// The slot for the next value: never the only valid one.
    next: usize,
}

/// `None` if neither slot is valid.
fn read(bytes: &[u8]) -> Option<Reading> {
    let slots =
        [CounterSlot::decode(bytes), CounterSlot::decode(bytes.get(SLOT_BYTES..).unwrap_or_default())];
    match slots {
        [Some(a), Some(b)] => {
            let newest = a.max(b);
            Some(Reading { value: a.value.max(b.value), newest, next: usize::from(newest == a) })
        }
        [Some(slot), None] => Some(Reading { value: slot.value + 1, newest: slot, next: 1 }),
        [None, Some(slot)] => Some(Reading { value: slot.value + 1, newest: slot, next: 0 }),
        [None, None] => None,
    }
}

/// The bytes of a counter whose last token is `value`.
pub(super) fn fresh(value: u64) -> Vec<u8> {
    let older = CounterSlot { generation: 1, value: value.saturating_sub(1) }.encode();
    let newest = CounterSlot { generation: 2, value }.encode();
    [older, newest].concat()
}

/// The open counter of a directory.
pub(super) struct Counter {
    file: File,
    dir: File,
    path: PathBuf,
    /// Threads of one process share the descriptor, and with it the flock.
    threads: Mutex<()>,
}

impl Counter {
    pub(super) fn new(file: File, dir: File, path: PathBuf) -> Self {
        Self { file, dir, path, threads: Mutex::new(()) }
    }

    /// Whether the directory's counter is still this file.
    pub(super) fn is_there(&self) -> bool {
        is_at(&self.dir, NAME, &self.file)
    }

    /// The highest token that may have been issued from this file, also after its deletion; 0 if it can't be
    /// read.
    pub(super) fn highest(&self) -> u64 {
        self.bytes().ok().and_then(|bytes| read(&bytes)).map_or(0, |reading| reading.value)
    }

    /// Locks the counter and reads it.
    ///
    /// # Errors
    /// It was deleted or replaced; neither slot is valid; the file is unreachable; it is locked by a process
    /// that was stopped in its critical section.
    pub(super) fn lock(&self) -> Result<LockedCounter<'_>, OsError> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut backoff = Backoff::new();
        while !try_flock(&self.file, true).map_err(|e| self.fault("lock", e))? {
            let Some(pause) = backoff.next() else {
                return Err(OsError::Stuck(BackendError::new(
                    BackendErrorKind::Unreachable,
                    format!(
                        "`{}` has been locked by another process for seconds; it was stopped while it drew a token: \
                         continue or kill it (`fuser` names it)",
                        self.path.display()
                    ),
                )));
            };
            std::thread::sleep(pause);
        }
        let mut held = LockedCounter { counter: self, reading: None, _threads: threads };
        if !self.is_there() {
            return Err(OsError::Gone);
        }
        held.reading = read(&self.bytes()?);
        if held.reading.is_none() {
            return Err(OsError::operator(format!(
                "the counter `{}` is damaged: neither of its two slots has a right checksum; find the highest token N \
                 that your fences have seen and connect once with `?tokens_above=N`",
                self.path.display()
            )));
        }
        Ok(held)
    }

    /// Writes both slots: for a damaged counter for which the operator has given a token to start above.
    pub(super) fn rebuild(&self, value: u64) -> Result<(), OsError> {
        self.file.write_all_at(&fresh(value), 0).map_err(|e| self.fault("write", e))?;
        self.file.sync_all().map_err(|e| self.fault("sync", e))
    }

    fn bytes(&self) -> Result<[u8; FILE_BYTES], OsError> {
        let mut bytes = [0; FILE_BYTES];
        let mut filled = 0;
        while filled < FILE_BYTES {
            match self.file.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.fault("read", e)),
            }
        }
        Ok(bytes)
    }

    fn fault(&self, doing: &str, error: std::io::Error) -> OsError {
        OsError::Error(explain(doing, &self.path, error))
    }
}

/// The locked counter.
pub(super) struct LockedCounter<'a> {
    counter: &'a Counter,
    reading: Option<Reading>,
    _threads: MutexGuard<'a, ()>,
}

impl LockedCounter<'_> {
    /// The highest token that may have been issued.
    pub(super) fn value(&self) -> u64 {
        self.reading.map_or(0, |reading| reading.value)
    }

    /// Raises the highest issued token to `value`, unless it is as high already. On return it is on disk.
    pub(super) fn raise_to(&mut self, value: u64) -> Result<(), OsError> {
        let Some(reading) = self.reading else { return Ok(()) };
        if value <= reading.newest.value {
            return Ok(());
        }
        // A raise by more than 1: first write `value - 1`, so that a single valid slot is never more than 1
        // too low.
        if value - reading.newest.value > 1 {
            self.write(value - 1)?;
        }
        self.write(value)
    }

    fn write(&mut self, value: u64) -> Result<(), OsError> {
        let Some(reading) = self.reading else { return Ok(()) };
        let slot = CounterSlot { generation: reading.newest.generation + 1, value };
        let counter = self.counter;
        let at = (reading.next * SLOT_BYTES) as u64;
        counter.file.write_all_at(&slot.encode(), at).map_err(|e| counter.fault("write", e))?;
        counter.file.sync_data().map_err(|e| counter.fault("sync", e))?;
        self.reading = Some(Reading { value, newest: slot, next: 1 - reading.next });
        Ok(())
    }
}

impl Drop for LockedCounter<'_> {
    fn drop(&mut self) {
        // Fails only for an invalid descriptor.
        let _ = unflock(&self.counter.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(bytes: &[u8]) -> (tempfile::TempDir, Counter) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counter");
        std::fs::write(&path, bytes).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let folder = File::open(dir.path()).unwrap();
        (dir, Counter::new(file, folder, path))
    }

    fn on_disk(counter: &Counter) -> Vec<u8> {
        std::fs::read(&counter.path).unwrap()
    }

    #[test]
    fn writes_alternate_between_the_slots() {
        let (_dir, counter) = counter(&fresh(10));
        let mut before = on_disk(&counter);
        for value in 11..20 {
            counter.lock().unwrap().raise_to(value).unwrap();
            let after = on_disk(&counter);
            let changed: Vec<usize> =
                [0, 1].into_iter().filter(|&i| before[i * 512..][..512] != after[i * 512..][..512]).collect();
            assert_eq!(changed, [(value as usize + 1) % 2], "exactly one slot, in turn");
            assert_eq!(counter.lock().unwrap().value(), value);
            before = after;
        }
    }

    #[test]
    fn a_counter_never_decreases() {
        let (_dir, counter) = counter(&fresh(10));
        counter.lock().unwrap().raise_to(4).unwrap();
        assert_eq!(counter.lock().unwrap().value(), 10);
    }

    #[test]
    fn every_flipped_or_torn_byte_is_detected_and_no_token_is_issued_twice() {
        for raise in [1, 7] {
            let (_dir, source) = counter(&fresh(100));
            source.lock().unwrap().raise_to(100 + raise).unwrap();
            let (good, told) = (on_disk(&source), 100 + raise);
            for at in 0..FILE_BYTES {
                for flip in [0x01, 0x80, 0xff] {
                    let mut bad = good.clone();
                    bad[at] ^= flip;
                    let reading = read(&bad).expect("the other slot is valid");
                    assert!(reading.value >= told, "byte {at}: {reading:?}");
                    assert!(reading.value <= told + 1, "byte {at}: {reading:?}");
                    assert_eq!(reading.next, at / SLOT_BYTES, "the bad slot is written next");
                }
                // Torn: zeros from here to the end of the sector.
                let mut bad = good.clone();
                let end = (at / SLOT_BYTES + 1) * SLOT_BYTES;
                bad[at..end].fill(0);
                assert!(read(&bad).expect("the other slot is valid").value >= told, "byte {at}");
            }
        }
    }

    #[test]
    fn a_short_file_is_read_as_a_missing_slot() {
        let bytes = fresh(100);
        assert_eq!(read(&bytes[..SLOT_BYTES]).unwrap().value, 100);
        assert_eq!(read(&bytes[..SLOT_BYTES - 1]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn the_error_for_two_bad_slots_names_the_remedy() {
        for (a, b) in [(0, 512), (20, 1023), (511, 530)] {
            let mut bad = fresh(100);
            bad[a] ^= 1;
            bad[b] ^= 1;
            let (_dir, counter) = counter(&bad);
            let error = BackendError::from(counter.lock().map(drop).unwrap_err());
            assert!(error.message.contains("?tokens_above=N"), "{error}");
            counter.rebuild(500).unwrap();
            assert_eq!(counter.lock().unwrap().value(), 500);
        }
    }

    #[test]
    fn a_damaged_slot_is_repaired_by_the_next_write() {
        let mut bad = fresh(100);
        bad[600] ^= 1;
        let (_dir, counter) = counter(&bad);
        let mut held = counter.lock().unwrap();
        let value = held.value() + 1;
        held.raise_to(value).unwrap();
        drop(held);
        let reading = read(&on_disk(&counter)).unwrap();
        assert_eq!((reading.value, CounterSlot::decode(&on_disk(&counter)).is_some()), (101, true));
    }
}
