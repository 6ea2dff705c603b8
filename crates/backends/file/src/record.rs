//! The record of one lock: a `lockkeeper_core::Table` for this lock alone, read, changed and written under a
//! short flock.
//!
//! All grant rules are the table's. Added here: the mapping of sessions to files, the start times of holds,
//! tokens from the directory's counter, and the wake-ups caused by a change.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind};
use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Command, Effects, LockName, ModeKind, Seq, SessionId, Slot, Snapshot, Table, Token};

use super::os::{
    Backoff, OsError, die_at, explain, open_at, open_or_create_at, remove_at, try_flock, unflock,
};
use super::session_file::wake;
use super::slots::{self, Content, Current};
use super::state::{HoldNote, RecordState, is_held, is_idle, slots_of};
use super::store::FileStore;
use super::tag::Tag;
use super::{names, reactor};

/// Mode bit of a hold file created by this backend, which is removed with its lock. A hold file created by a
/// user lacks it and stays.
const OURS: u32 = 0o1000;

/// The version of the table's rules in new records (V1). It stays the oldest one that has all that records
/// need, so that processes of an older version of this library can share them.
const RECORD_RULES: u32 = 1;

/// A record, locked by its flock.
pub(super) struct Record {
    store: Arc<FileStore>,
    name: LockName,
    stem: String,
    file: Option<File>,
    current: Option<Current>,
    state: RecordState,
    /// Whether the file's content differs from `state`.
    dirty: bool,
    /// Keep the files when the lock becomes idle: it is likely to be used again soon.
    keep: bool,
    /// Name and file of the hold whose flock was released by [`Self::give_back`].
    given_back: Option<(String, Arc<File>)>,
    /// Sent after the flock is released, so that woken processes do not wait for it.
    wakes: Vec<(Tag, Seq)>,
}

impl Record {
    /// Locks the record of a name; creates it if it is missing.
    ///
    /// # Errors
    /// The record is damaged, belongs to another name, or can't be opened; the directory is gone; or the
    /// record is locked by a process that was stopped in its critical section.
    pub(super) async fn open(store: &Arc<FileStore>, name: &LockName) -> Result<Self, OsError> {
        let stem = names::stem(name);
        let open = || open_or_create_at(&store.locks, &stem, store.file_mode);
        let file = lock(store, &stem, open).await?;
        let file = file.ok_or(OsError::Gone)?;
        let (current, found) = load(store, &stem, &file)?;
        let state = match found {
            None => {
                RecordState { table: Table::with_rules(0, RECORD_RULES).snapshot(), notes: BTreeMap::new() }
            }
            Some((found, state)) if found == *name => state,
            Some((found, _)) => {
                return Err(OsError::operator(format!(
                    "the record `{}` is that of the lock `{found}`, not of `{name}`: a filesystem that takes upper and \
                     lower case for the same can't keep both; use another directory or name",
                    store.path.join("locks").join(&stem).display(),
                )));
            }
        };
        Ok(Self::new(store, name.clone(), stem, file, current, state))
    }

    /// Locks a record by its file name. `None` if the file does not exist or was never written.
    pub(super) async fn open_file(store: &Arc<FileStore>, stem: &str) -> Result<Option<Self>, OsError> {
        let open = || open_at(&store.locks, stem, nix::fcntl::OFlag::O_RDWR);
        let Some(file) = lock(store, stem, open).await? else { return Ok(None) };
        let (current, found) = load(store, stem, &file)?;
        Ok(found.map(|(name, state)| Self::new(store, name, stem.to_owned(), file, current, state)))
    }

    fn new(
        store: &Arc<FileStore>,
        name: LockName,
        stem: String,
        file: File,
        current: Option<Current>,
        mut state: RecordState,
    ) -> Self {
        // A hold that was closed before a reboot has its time on the clock of an earlier boot, so its full
        // delay starts again now.
        let mut dirty = false;
        for request in &state.table.requests {
            if let Phase::Closed { token, .. } = request.phase
                && let Some(note) = state.notes.get_mut(&token.get())
                && note.age().is_none()
            {
                *note = HoldNote::now(note.returned);
                dirty = true;
            }
        }
        let store = Arc::clone(store);
        Self {
            store,
            name,
            stem,
            file: Some(file),
            current,
            state,
            dirty,
            keep: false,
            given_back: None,
            wakes: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn state(&self) -> &RecordState {
        &self.state
    }

    /// Builds a table from the present state, for queries and as the working copy of [`Self::commit`].
    /// Changes to it do not change the record.
    pub(super) fn table(&self) -> Result<Table, OsError> {
        Table::restore(&self.state.table, 0).map_err(|e| damaged(&self.store, &self.stem, &e.to_string()))
    }

    /// Runs commands on the table and writes the resulting table, without sessions that have no requests
    /// left. If `accept` rejects what `run` returned, the record stays unchanged.
    ///
    /// If the commands grant anything, the tokens are drawn from the counter and synced to disk before the
    /// record is written and before any client gets a token.
    pub(super) fn commit<R>(
        &mut self,
        run: impl Fn(&mut Table, &mut Effects) -> R,
        accept: impl Fn(&R) -> bool,
    ) -> Result<Option<R>, OsError> {
        let mut effects = Effects::new();
        let mut table = self.table()?;
        let mut result = run(&mut table, &mut effects);
        if !accept(&result) {
            return Ok(None);
        }
        let store = Arc::clone(&self.store);
        if table.last_token() > self.state.table.last_token {
            // The commands grant: run them again, now with tokens above all those issued in this directory.
            let mut counter = store.counter.lock()?;
            self.state.table.last_token = self.state.table.last_token.max(counter.value());
            table = self.table()?;
            effects.clear();
            result = run(&mut table, &mut effects);
            counter.raise_to(table.last_token())?;
            die_at("token drawn");
        }
        let idle: Vec<SessionId> =
            table.sessions().filter(|session| session.requests == 0).map(|session| session.id).collect();
        for session in idle {
            let _ = table.apply_whole(Command::CloseSession { session }, &mut effects);
        }
        self.put(table.snapshot())?;
        Ok(Some(result))
    }

    /// For a request for several names: stores `returned`, the token that is returned to the holder (the
    /// highest of all names), with this record's hold, whose own token is `token`.
    pub(super) fn store_returned(&mut self, token: Token, returned: Token) -> Result<(), OsError> {
        if let Some(note) = self.state.notes.get_mut(&token.get()) {
            note.returned = returned.get();
            self.dirty = true;
        }
        self.put(self.state.table.clone())
    }

    /// Writes `table` to the file, collects the wake-ups, and removes files that are no longer needed.
    fn put(&mut self, table: Snapshot) -> Result<(), OsError> {
        let mut after = RecordState { table, notes: BTreeMap::new() };
        for request in &after.table.requests {
            let (token, closed) = match request.phase {
                Phase::Waiting { .. } => continue,
                Phase::Held { token, .. } | Phase::Revoked { token, .. } => (token, false),
                Phase::Closed { token, .. } => (token, true),
            };
            let before = self.state.table.requests.iter().find(|before| before.ticket == request.ticket);
            let was_closed = before.is_some_and(|before| matches!(before.phase, Phase::Closed { .. }));
            let note = self.state.notes.get(&token.get()).copied();
            let returned = note.map_or(token.get(), |note| note.returned);
            let note = note.filter(|_| closed == was_closed).unwrap_or_else(|| HoldNote::now(returned));
            after.notes.insert(token.get(), note);
        }
        if after == self.state && !self.dirty && (self.current.is_some() || !after.table.requests.is_empty())
        {
            return Ok(());
        }
        self.note_wakes(&after);
        let vacated: Vec<Slot> = {
            let kept: Vec<Slot> = slots_of(&after.table).collect();
            slots_of(&self.state.table).filter(|slot| !kept.contains(slot)).collect()
        };
        for slot in vacated {
            self.remove_hold_file(&names::slot_file(&self.stem, slot));
        }
        let written = if is_idle(&after) && !self.keep { self.remove() } else { self.write(&after) };
        written.map_err(|e| {
            self.wakes.clear();
            self.store.fault(explain("write", &self.store.path.join("locks").join(&self.stem), e))
        })?;
        self.state = after;
        self.dirty = false;
        Ok(())
    }

    fn write(&mut self, after: &RecordState) -> io::Result<()> {
        // There is no file after `remove`, and nothing is committed afterwards.
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let durable = after.promises() || self.state.promises();
        let is_new = self.current.is_none();
        self.current = Some(slots::write(file, self.current, &after.encode(&self.name))?);
        if durable {
            file.sync_data()?;
            if is_new || !self.state.promises() {
                self.store.locks.sync_all()?;
            }
        }
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        self.remove_hold_file(&names::hold_file(&self.stem));
        remove_at(&self.store.locks, &self.stem)?;
        self.file = None;
        if self.state.promises() {
            self.store.locks.sync_all()?;
        }
        Ok(())
    }

    /// Keeps the lock's files when it becomes idle; the caller removes them later.
    pub(super) fn keep_files(&mut self) {
        self.keep = true;
    }

    /// Removes the files of an idle lock.
    pub(super) fn remove_if_idle(&mut self) -> Result<(), OsError> {
        if self.file.is_none() || self.current.is_none() || !is_idle(&self.state) {
            return Ok(());
        }
        self.remove().map_err(|e| {
            self.store.fault(explain("remove", &self.store.path.join("locks").join(&self.stem), e))
        })
    }

    /// Removes a hold file if a backend created it and it is not flocked.
    fn remove_hold_file(&self, name: &str) {
        let opened;
        let file: &File = match &self.given_back {
            Some((own, file)) if own == name => file,
            _ => match open_at(&self.store.locks, name, nix::fcntl::OFlag::O_RDONLY) {
                Ok(file) => {
                    opened = file;
                    &opened
                }
                // A file left here does no harm; it is removed when the lock is idle again.
                Err(_) => return,
            },
        };
        let ours = file.metadata().is_ok_and(|metadata| metadata.mode() & OURS != 0);
        if ours && try_flock(file, true).unwrap_or(false) {
            let _ = remove_at(&self.store.locks, name);
            let _ = unflock(file);
        }
    }

    /// Releases the flock of a hold before the record is written, so that the next holder finds it free. The
    /// unlock applies to all copies of the descriptor, also to those in child processes.
    pub(super) fn give_back(&mut self, hold: Arc<File>, slot: Option<Slot>) -> Result<(), OsError> {
        let name = names::file_of_hold(&self.stem, slot);
        unflock(&hold).map_err(|e| {
            self.store.fault(explain("unlock", &self.store.path.join("locks").join(&name), e))
        })?;
        self.given_back = Some((name, hold));
        Ok(())
    }

    /// Takes the flock of a hold; `None` if a program other than Lockkeeper has it.
    pub(super) fn take_hold(&self, mode: ModeKind, slot: Option<Slot>) -> Result<Option<File>, OsError> {
        let name = names::file_of_hold(&self.stem, slot);
        let fault = |e| self.store.fault(explain("flock", &self.store.path.join("locks").join(&name), e));
        let file = open_or_create_at(&self.store.locks, &name, self.store.file_mode | OURS).map_err(fault)?;
        let taken = try_flock(&file, mode != ModeKind::Shared).map_err(fault)?;
        Ok(taken.then_some(file))
    }

    /// Collects wake-ups for requests that were granted or revoked, and for waiters that must watch another
    /// session now.
    fn note_wakes(&mut self, after: &RecordState) {
        let (old, new) = (self.state.watched(), after.watched());
        for request in &after.table.requests {
            let Some(owner) = request.owner else { continue };
            let before = self.state.table.requests.iter().find(|before| before.ticket == request.ticket);
            let changed = match before {
                None => false,
                Some(before) if is_held(request) => {
                    std::mem::discriminant(&before.phase) != std::mem::discriminant(&request.phase)
                }
                Some(_) => {
                    let (old, new) = (old.get(&owner), new.get(&owner));
                    new.into_iter().flatten().any(|id| !old.is_some_and(|old| old.contains(id)))
                }
            };
            if changed && let Some(tag) = after.tag(owner.0) {
                self.wakes.push((tag, owner.1));
            }
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let (Some(_), None) = (&self.file, self.current) {
            // Created for a query or a refused request, and never written.
            let _ = remove_at(&self.store.locks, &self.stem);
        }
        if !self.wakes.is_empty() {
            die_at("before the wake-up");
        }
        drop(self.file.take());
        for (tag, seq) in self.wakes.drain(..) {
            wake(&self.store, tag, seq);
        }
    }
}

/// Opens and flocks a record file, again if it was removed in between; `None` if it does not exist.
async fn lock(
    store: &Arc<FileStore>,
    stem: &str,
    open: impl Fn() -> io::Result<File>,
) -> Result<Option<File>, OsError> {
    let path = || store.path.join("locks").join(stem);
    let mut backoff = Backoff::new();
    loop {
        let file = match open() {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return if store.is_current() { Ok(None) } else { Err(OsError::Gone) };
            }
            Err(e) => return Err(store.fault(explain("open", &path(), e))),
        };
        while !try_flock(&file, true).map_err(|e| store.fault(explain("flock", &path(), e)))? {
            let Some(pause) = backoff.next() else {
                return Err(OsError::Stuck(BackendError::new(
                    BackendErrorKind::Unreachable,
                    format!(
                        "`{}` has been locked by another process for seconds; it was stopped in the middle of a change: \
                         continue or kill it (`fuser` names it)",
                        path().display()
                    ),
                )));
            };
            if pause < Duration::from_millis(1) {
                std::thread::sleep(pause);
            } else {
                reactor::sleep(pause).await;
            }
        }
        let metadata = file.metadata().map_err(|e| store.fault(explain("look at", &path(), e)))?;
        if metadata.nlink() > 0 {
            return Ok(Some(file));
        }
    }
}

/// Reads a record: the position of its content in the file, and its content, if it was ever written.
#[allow(clippy::type_complexity)]
fn load(
    store: &FileStore,
    stem: &str,
    file: &File,
) -> Result<(Option<Current>, Option<(LockName, RecordState)>), OsError> {
    let content = slots::read(file)
        .map_err(|e| store.fault(explain("read", &store.path.join("locks").join(stem), e)))?;
    match content {
        Content::Empty => Ok((None, None)),
        Content::Damaged => Err(damaged(store, stem, "neither of its two headers has a right checksum")),
        Content::Body(current, body) => {
            let found = RecordState::decode(&body).map_err(|why| damaged(store, stem, &why))?;
            Ok((Some(current), Some(found)))
        }
    }
}

fn damaged(store: &FileStore, stem: &str, why: &str) -> OsError {
    OsError::operator(format!(
        "the record `{}` is damaged: {why}; delete it: holds keep their flock, only the lock's queue and closed holds \
         are lost with it",
        store.path.join("locks").join(stem).display()
    ))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Fingerprint;
    use lockkeeper_core::snapshot::RequestState;

    use super::super::os::boot_id;
    use super::*;

    fn closed_before_a_reboot() -> (LockName, RecordState) {
        let (name, token) = (LockName::parse("x").unwrap(), Token::new(7).unwrap());
        let closed = RequestState {
            ticket: lockkeeper_core::Ticket(1),
            owner: None,
            fingerprint: Fingerprint::default(),
            names: vec![name.clone()],
            mode: ModeKind::Exclusive,
            subtree: false,
            keep_closed_ms: 0,
            value: Box::default(),
            meta: Box::default(),
            since: lockkeeper_core::WallTime::default(),
            caching: lockkeeper_core::Caching::None,
            spare_tokens: 0,
            holding: Box::default(),
            phase: Phase::Closed { token, slots: Vec::new(), ms: 60_000 },
        };
        let table = Snapshot {
            rules: 1,
            last_token: 7,
            last_ticket: 1,
            last_session: 1,
            requests: vec![closed],
            ..Snapshot::default()
        };
        let note = HoldNote { boot: [1; 16], at: 0, returned: 7 };
        (name, RecordState { table, notes: BTreeMap::from([(7, note)]) })
    }

    #[tokio::test]
    async fn a_hold_closed_before_a_reboot_restarts_its_full_delay_at_the_first_read() {
        let dir = tempfile::tempdir().unwrap();
        let config = super::super::store::Config {
            path: dir.path().join("locks"),
            tokens_above: None,
            fuse_allowed: false,
            wall_clock: super::super::store::wall_clock,
        };
        let store = Arc::new(FileStore::open(&config, 0).unwrap());
        let (name, state) = closed_before_a_reboot();
        let file = open_or_create_at(&store.locks, "x", 0o600).unwrap();
        slots::write(&file, None, &state.encode(&name)).unwrap();
        drop(file);
        let mut record = Record::open(&store, &name).await.unwrap();
        let (token, left) = record.state().closed().next().unwrap();
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60), "{left:?}");
        // The commit stores the note, so that the next reader continues the delay instead of starting it
        // again.
        record.commit(|_, _| (), |()| true).unwrap();
        drop(record);
        let record = Record::open(&store, &name).await.unwrap();
        let note = record.state().notes[&token.get()];
        assert!(note.boot == boot_id() && !record.dirty);
    }

    #[test]
    fn decoding_a_cut_or_flipped_body_never_panics() {
        let (name, state) = closed_before_a_reboot();
        let good = state.encode(&name);
        assert_eq!(RecordState::decode(&good), Ok((name, state)));
        for at in 0..good.len() {
            assert!(RecordState::decode(&good[..at]).is_err(), "cut at {at}");
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            // In use, the checksum excludes this case. Here decoding may return anything, but must not panic.
            let _ = RecordState::decode(&bad);
        }
    }
}
