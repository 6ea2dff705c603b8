//! The file of a session: a named pipe whose flock shows that its process is alive, and which carries its
//! wake-ups.
//!
//! The session keeps the pipe open and flocked while it lives; the kernel drops the flock with the last copy
//! of the descriptor, also after kill -9. A process with the read end gets a hang-up at that moment, so
//! polling is not needed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_core::Seq;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::FchmodatFlags;

use super::os::{OsError, explain, mode_bits, open_at, remove_at, try_flock, unflock};
use super::store::FileStore;
use super::tag::Tag;

/// The file of this process' own session.
pub(super) struct SessionFile {
    pub(super) tag: Tag,
    /// `None` once the session was lost.
    pipe: Mutex<Option<Arc<File>>>,
}

impl SessionFile {
    pub(super) fn create(store: &FileStore) -> Result<Self, OsError> {
        loop {
            let tag = Tag::random();
            let fault = |doing: &str, e: io::Error| {
                store.fault(explain(doing, &store.path.join("sessions").join(tag.file()), e))
            };
            let name = tag.file();
            match nix::unistd::mkfifoat(&store.sessions, name.as_str(), mode_bits(store.file_mode)) {
                Ok(()) => {}
                Err(Errno::EEXIST) => continue,
                Err(errno) => return Err(fault("make", errno.into())),
            }
            let (mode, flags) = (mode_bits(store.file_mode), FchmodatFlags::FollowSymlink);
            match nix::sys::stat::fchmodat(&store.sessions, name.as_str(), mode, flags) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(fault("set the mode of", errno.into())),
            }
            // A sweep may find the file before it is flocked, take it for a dead session's file and remove
            // it; then another is made.
            let pipe = match open_at(&store.sessions, &name, OFlag::O_RDWR | OFlag::O_NONBLOCK) {
                Ok(pipe) => pipe,
                Err(e) if e.kind() == io::ErrorKind::NotFound && store.is_current() => continue,
                Err(e) => return Err(fault("open", e)),
            };
            let ours = try_flock(&pipe, true).map_err(|e| fault("flock", e))?;
            if ours && pipe.metadata().map_err(|e| fault("look at", e))?.nlink() > 0 {
                return Ok(Self { tag, pipe: Mutex::new(Some(Arc::new(pipe))) });
            }
            remove_at(&store.sessions, &name).map_err(|e| fault("remove", e))?;
        }
    }

    pub(super) fn pipe(&self) -> Option<Arc<File>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the file is still in the directory.
    pub(super) fn is_there(&self) -> bool {
        self.pipe().is_some_and(|pipe| pipe.metadata().is_ok_and(|metadata| metadata.nlink() > 0))
    }

    /// Ends the session for all processes, even if others have a copy of the descriptor.
    pub(super) fn end(&self, store: &FileStore) {
        // On failure the next sweep cleans up: the session has ended in any case.
        let _ = remove_at(&store.sessions, &self.tag.file());
        if let Some(pipe) = self.pipe() {
            let _ = unflock(&pipe);
        }
    }

    /// Ends this process' part of a session that was lost. Processes with a copy of the descriptor keep it
    /// alive: a guardian does until the command that had the lock has ended.
    pub(super) fn abandon(&self) {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Reads wake-ups from a session's own pipe until the pipe is empty, and returns the requests that they name.
/// `None` is an unreadable wake-up, after which all requests must be checked.
pub(super) fn drain(pipe: &OwnedFd) -> Vec<Option<Seq>> {
    let mut woken = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match nix::unistd::read(pipe, &mut buffer) {
            Ok(0) => return woken,
            Ok(n) => {
                let whole = buffer[..n].chunks_exact(8);
                if !whole.remainder().is_empty() {
                    woken.push(None);
                }
                woken.extend(
                    whole.map(|bytes| Some(Seq(u64::from_le_bytes(std::array::from_fn(|i| bytes[i]))))),
                );
            }
            Err(Errno::EINTR) => {}
            Err(_) => return woken,
        }
    }
}

/// Wakes a request of a session. An ended session needs no wake-up. If the pipe is full, the session has
/// wake-ups to read anyway.
pub(super) fn wake(store: &FileStore, tag: Tag, seq: Seq) {
    if let Ok(mut pipe) = open_at(&store.sessions, &tag.file(), OFlag::O_WRONLY | OFlag::O_NONBLOCK) {
        let _ = pipe.write(&seq.0.to_le_bytes());
    }
}

/// Whether another session lives.
pub(super) enum Life {
    /// Alive; a hang-up on the descriptor signals its end.
    Alive(File),
    Dead,
}

/// Checks whether a session lives: first opens the pipe, then tries the flock. A session found alive was
/// still a writer of the pipe after this process had opened it, so its hang-up cannot be missed.
pub(super) fn probe(store: &FileStore, tag: Tag) -> Result<Life, OsError> {
    let name = tag.file();
    let fault =
        |doing: &str, e: io::Error| store.fault(explain(doing, &store.path.join("sessions").join(&name), e));
    let pipe = match open_at(&store.sessions, &name, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
        Ok(pipe) => pipe,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return if store.is_current() { Ok(Life::Dead) } else { Err(OsError::Gone) };
        }
        Err(e) => return Err(fault("open", e)),
    };
    // Shared, so that two concurrent checks do not take each other for the session.
    match try_flock(&pipe, false) {
        Ok(true) => Ok(Life::Dead),
        Ok(false) => Ok(Life::Alive(pipe)),
        Err(e) => Err(fault("flock", e)),
    }
}

/// Removes the file of a dead session.
pub(super) fn bury(store: &FileStore, tag: Tag) {
    // On failure a later sweep removes it.
    let _ = remove_at(&store.sessions, &tag.file());
}

/// Checks at most `most` session files and removes those of dead sessions: a session without locks is found
/// only here.
pub(super) fn sweep(store: &FileStore, most: usize) {
    let Ok(entries) = std::fs::read_dir(store.path.join("sessions")) else { return };
    for entry in entries.take(most).flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.len() == 32) else { continue };
        if let Ok(pipe) = open_at(&store.sessions, name, OFlag::O_RDONLY | OFlag::O_NONBLOCK)
            && let Ok(true) = try_flock(&pipe, false)
        {
            let _ = remove_at(&store.sessions, name);
        }
    }
}
