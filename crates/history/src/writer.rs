//! Appending lines to a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::{HistoryEvent, HistoryLine, WriterEvent};

/// The name of this host's clock in histories: the kernel's id of this boot.
///
/// # Errors
/// The kernel gives none.
pub fn host_clock() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A history that is being written. Clones write as the same writer.
#[derive(Clone, Debug)]
pub struct HistoryWriter(Arc<OpenFile>);

#[derive(Debug)]
struct OpenFile {
    file: File,
    by: String,
    holds: AtomicU64,
    failed: AtomicU64,
}

impl HistoryWriter {
    /// Opens or creates a file and appends the `writer` event. Several processes may append to one file.
    ///
    /// `by`: a name that no other writer has, whatever the host and the process. `at`: the present moment on
    /// `clock`.
    ///
    /// # Errors
    /// The file can't be opened or written.
    pub fn append(path: &Path, by: String, clock: String, label: String, at: u64) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let history =
            Self(Arc::new(OpenFile { file, by, holds: AtomicU64::new(1), failed: AtomicU64::new(0) }));
        let writer = HistoryEvent::Writer(WriterEvent { format: crate::FORMAT, clock, label });
        (&history.0.file).write_all(history.line(at, writer).as_bytes())?;
        Ok(history)
    }

    /// The number of the next hold.
    #[must_use]
    pub fn next_hold(&self) -> u64 {
        self.0.holds.fetch_add(1, Ordering::Relaxed)
    }

    /// Appends an event. One that can't be written is counted ([`HistoryWriter::failed`]): a full disk must
    /// not stop those who work under locks.
    pub fn write(&self, at: u64, event: HistoryEvent) {
        if (&self.0.file).write_all(self.line(at, event).as_bytes()).is_err() {
            self.0.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of events that could not be written.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    fn line(&self, at: u64, event: HistoryEvent) -> String {
        HistoryLine { at, by: self.0.by.clone(), event }.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EndedEvent, HoldEnd};

    #[test]
    fn writers_of_one_file_append_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h");
        let open = |by: &str| {
            HistoryWriter::append(&path, by.to_owned(), "c".to_owned(), "test".to_owned(), 1).unwrap()
        };
        let writers = [open("a"), open("b")];
        std::thread::scope(|scope| {
            for writer in &writers {
                scope.spawn(|| {
                    for at in 0..1000 {
                        let hold = writer.next_hold();
                        writer.write(
                            at,
                            HistoryEvent::Ended(EndedEvent { hold, until: at, how: HoldEnd::Released }),
                        );
                    }
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().map(|line| crate::parse(line).unwrap().unwrap()).collect();
        assert_eq!((lines.len(), writers[0].failed()), (2002, 0));
        for by in ["a", "b"] {
            let own = lines.iter().filter(|line| line.by == by);
            let holds = own.filter_map(|line| match &line.event {
                HistoryEvent::Ended(ended) => Some(ended.hold),
                _ => None,
            });
            assert!(holds.eq(1..=1000), "{by}");
        }
    }

    #[test]
    fn full_disk_is_counted() {
        let full = Path::new("/dev/full");
        assert!(HistoryWriter::append(full, "a".into(), "c".into(), "test".into(), 1).is_err());
    }
}
