//! An in-memory disk that loses, tears and fails writes, for the simulator and for tests.
//!
//! Responsible for: it behaves at least as badly as a real disk that keeps its guarantees. A power cut may
//! lose unsynced data sector by sector, and unsynced names one by one. A failed sync returns its error once;
//! later syncs skip the sectors that the failed one did not write, although these stay readable. Worse faults
//! are available on demand: syncs that do nothing, and changed bytes. The caller makes every random choice,
//! so the same choices produce the same disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskFile};

/// The unit of atomic writes in a power cut, in bytes.
const SECTOR: usize = 512;

/// An operation that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the methods of the two traits")]
pub enum Operation {
    List,
    Create,
    Open,
    Rename,
    Remove,
    SyncNames,
    Read,
    Write,
    Sync,
}

impl Operation {
    /// The operations that change the disk.
    pub const CHANGES: &'static [Self] =
        &[Self::Create, Self::Rename, Self::Remove, Self::SyncNames, Self::Write, Self::Sync];
    /// The operations that fail when the disk is full.
    pub const TAKES_SPACE: &'static [Self] = &[Self::Create, Self::Write];
}

/// An in-memory disk. Clones share its content.
#[derive(Clone, Default, Debug)]
pub struct MemoryDisk {
    state: Arc<Mutex<MemoryDiskState>>,
}

#[derive(Default, Debug)]
struct MemoryDiskState {
    files: BTreeMap<u64, Contents>,
    next_file: u64,
    /// The names as running programs see them.
    names: BTreeMap<String, u64>,
    /// The names after a power cut that loses every unsynced change.
    durable_names: BTreeMap<String, u64>,
    changes: Vec<NameChange>,
    /// The number of restarts and crashes so far; a file that was opened before the last one is invalid.
    run: u64,
    faults: Vec<InjectedFault>,
    outage: Option<Outage>,
    is_lying: bool,
    counts: BTreeMap<Operation, u64>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(String, u64),
    Rename(String, String, u64),
    Remove(String),
}

#[derive(Debug)]
struct InjectedFault {
    on: Operation,
    /// The number of calls that still succeed before the fault.
    after: u64,
    errno: i32,
}

/// Operations that fail permanently after a number of calls.
#[derive(Debug)]
struct Outage {
    on: &'static [Operation],
    /// The number of calls to these operations that still succeed.
    after: u64,
    errno: i32,
}

#[derive(Clone, Default, Debug)]
struct Contents {
    /// The content as running programs see it.
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that may differ from `durable`; the next successful sync writes them.
    dirty: BTreeSet<usize>,
    /// Sectors that a failed sync dropped: no later sync writes them, unless they are written again.
    given_up: BTreeSet<usize>,
    /// The number of open handles.
    open: u64,
}

impl MemoryDisk {
    /// Creates an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power. `choose` decides which unsynced changes reach the disk: called with n, it must return
    /// a number below n. Open files become invalid.
    pub fn crash(&self, mut choose: impl FnMut(u64) -> u64) {
        let mut state = self.lock();
        state.run += 1;
        // For real disks, "all" or "nothing" is most likely. Independent choices for each sector alone would
        // rarely result in either.
        let mood = choose(4);
        let arrives = |choose: &mut dyn FnMut(u64) -> u64| match mood {
            0 => false,
            1 => true,
            _ => choose(2) == 1,
        };
        for contents in state.files.values_mut() {
            contents.crash(&mut |choose_size| match mood {
                0 => 0,
                1 => choose_size - 1,
                _ => choose(choose_size),
            });
        }
        for change in std::mem::take(&mut state.changes) {
            if arrives(&mut choose) {
                change.apply(&mut state.durable_names);
            }
        }
        state.names = state.durable_names.clone();
        state.files.values_mut().for_each(|contents| contents.open = 0);
        state.forget_unnamed();
    }

    /// Restarts the process but not the machine: everything written stays readable, synced or not. Open files
    /// become invalid.
    pub fn restart(&self) {
        let mut state = self.lock();
        state.run += 1;
        state.files.values_mut().for_each(|contents| contents.open = 0);
    }

    /// Lets `after` more calls of `on` succeed, and the next one fail with `errno`. A failing write writes
    /// its first half, rounded down to whole sectors.
    pub fn fail(&self, on: Operation, after: u64, errno: i32) {
        self.lock().faults.push(InjectedFault { on, after, errno });
    }

    /// Lets `after` more calls of these operations, counted together, succeed; every later one fails with
    /// `errno` until [`MemoryDisk::heal`]. With all changing operations this models a process that is killed
    /// at step `after`; with those that take space, a disk that becomes full.
    pub fn fail_from(&self, on: &'static [Operation], after: u64, errno: i32) {
        self.lock().outage = Some(Outage { on, after, errno });
    }

    /// Removes all injected faults.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.faults.clear();
        state.outage = None;
    }

    /// Sets whether later syncs return success without any effect.
    pub fn lie(&self, is_lying: bool) {
        self.lock().is_lying = is_lying;
    }

    /// Returns how often an operation was called.
    pub fn count(&self, of: Operation) -> u64 {
        self.lock().counts.get(&of).copied().unwrap_or(0)
    }

    /// Returns the readable content of a file.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        state.names.get(name).map(|file| state.files[file].now.clone())
    }

    /// Replaces the content of a file durably, or creates the file.
    pub fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.lock();
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, Contents { durable: bytes.clone(), now: bytes, ..Contents::default() });
        state.names.insert(name.to_owned(), file);
        state.durable_names.insert(name.to_owned(), file);
    }

    /// Deletes a file, durably.
    pub fn take_away(&self, name: &str) {
        let mut state = self.lock();
        state.names.remove(name);
        state.durable_names.remove(name);
    }

    /// Copies the readable content of this disk to a new one, where all of it is durable.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        let state = self.lock();
        for (name, file) in &state.names {
            copy.set_bytes(name, state.files[file].now.clone());
        }
        copy
    }

    /// Copies this disk including its unsynced state. In the copy no file is open, and no fault is injected.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.lock();
        let files =
            state.files.iter().map(|(file, contents)| (*file, Contents { open: 0, ..contents.clone() }));
        let fork = MemoryDiskState {
            files: files.collect(),
            next_file: state.next_file,
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            changes: state.changes.clone(),
            run: state.run + 1,
            ..MemoryDiskState::default()
        };
        Self { state: Arc::new(Mutex::new(fork)) }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryDiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryDiskState {
    /// Counts an operation, and returns its injected error if there is one.
    fn enter(&mut self, operation: Operation) -> io::Result<()> {
        *self.counts.entry(operation).or_default() += 1;
        if let Some(outage) = self.outage.as_mut().filter(|outage| outage.on.contains(&operation)) {
            match outage.after.checked_sub(1) {
                Some(after) => outage.after = after,
                None => return Err(io::Error::from_raw_os_error(outage.errno)),
            }
        }
        let mut due = None;
        for (index, fault) in self.faults.iter_mut().enumerate().filter(|(_, fault)| fault.on == operation) {
            match fault.after.checked_sub(1) {
                Some(after) => fault.after = after,
                None => due = due.or(Some(index)),
            }
        }
        match due {
            Some(index) => Err(io::Error::from_raw_os_error(self.faults.swap_remove(index).errno)),
            None => Ok(()),
        }
    }

    fn file(&mut self, file: &MemoryFile) -> io::Result<&mut Contents> {
        if file.run != self.run {
            return Err(io::Error::other("the process that opened this file is gone"));
        }
        self.files.get_mut(&file.file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns an open handle of an existing file.
    fn opened(&mut self, disk: &MemoryDisk, file: u64) -> MemoryFile {
        self.files.entry(file).or_default().open += 1;
        MemoryFile { disk: disk.clone(), file, run: self.run }
    }

    /// Frees files that have neither a name nor an open handle.
    fn forget_unnamed(&mut self) {
        let named: BTreeSet<u64> = self.names.values().chain(self.durable_names.values()).copied().collect();
        self.files.retain(|file, contents| contents.open > 0 || named.contains(file));
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

fn sector(index: usize, length: usize) -> std::ops::Range<usize> {
    (index * SECTOR).min(length)..((index + 1) * SECTOR).min(length)
}

impl Contents {
    fn crash(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        let grown = self.now.len().saturating_sub(self.durable.len()) as u64;
        let size = self.durable.len() + choose(grown + 1) as usize;
        self.durable.resize(size, 0);
        self.dirty.append(&mut self.given_up);
        for index in std::mem::take(&mut self.dirty) {
            if choose(2) == 1 {
                let place = sector(index, size);
                self.durable[place.clone()].copy_from_slice(&self.now[place]);
            }
        }
        self.now.clone_from(&self.durable);
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for index in std::mem::take(&mut self.dirty) {
            let place = sector(index, self.now.len());
            self.durable[place.clone()].copy_from_slice(&self.now[place]);
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.now.len() {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
        for index in offset / SECTOR..end.div_ceil(SECTOR) {
            self.given_up.remove(&index);
            self.dirty.insert(index);
        }
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.lock();
        state.enter(Operation::List)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<MemoryFile> {
        let mut state = self.lock();
        state.enter(Operation::Create)?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, Contents::default());
        state.change(NameChange::Create(name.to_owned(), file));
        Ok(state.opened(self, file))
    }

    fn open(&self, name: &str) -> io::Result<MemoryFile> {
        let mut state = self.lock();
        state.enter(Operation::Open)?;
        let file = state.find(name)?;
        Ok(state.opened(self, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.enter(Operation::Rename)?;
        let file = state.find(from)?;
        state.change(NameChange::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.enter(Operation::Remove)?;
        state.find(name)?;
        state.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.enter(Operation::SyncNames)?;
        if !state.is_lying {
            state.changes.clear();
            state.durable_names = state.names.clone();
            state.forget_unnamed();
        }
        Ok(())
    }
}

/// An open file of a [`MemoryDisk`].
#[derive(Debug)]
pub struct MemoryFile {
    disk: MemoryDisk,
    file: u64,
    run: u64,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let mut state = self.disk.lock();
        if self.run == state.run
            && let Some(contents) = state.files.get_mut(&self.file)
        {
            contents.open -= 1;
        }
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.lock().file(self)?.now.len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.enter(Operation::Read)?;
        let contents = &state.file(self)?.now;
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.saturating_add(bytes.len());
        bytes.copy_from_slice(contents.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        let result = state.enter(Operation::Write);
        let written = if result.is_ok() { bytes } else { &bytes[..bytes.len() / 2 / SECTOR * SECTOR] };
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        state.file(self)?.write(start, written);
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.lock();
        let result = state.enter(Operation::Sync);
        let is_lying = state.is_lying;
        let contents = state.file(self)?;
        match &result {
            Ok(()) if is_lying => {}
            Ok(()) => contents.sync(),
            Err(_) => contents.given_up.append(&mut contents.dirty),
        }
        result
    }
}
