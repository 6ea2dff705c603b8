//! Several files as one history, in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::BufRead;

use lockkeeper_history::{HistoryLine, LineError, parse};

use crate::clock::{Ahead, Clocks, Time};

/// By how much a line may be older than one before it in its file, and still be put in its place. Those that
/// are later are checked, but compared with less.
const SLACK_NS: i64 = 100_000_000;
/// How many lines of a file are kept for that at most.
const HELD_BACK: usize = 100_000;

/// Why a history can't be read further.
#[derive(Debug)]
pub struct MergeError {
    /// The file, by its place.
    pub file: usize,
    /// Its line, from 1.
    pub line: u64,
    /// What is wrong.
    pub why: MergeErrorKind,
}

/// What is wrong.
#[derive(Debug)]
pub enum MergeErrorKind {
    /// It can't be read.
    Io(std::io::Error),
    /// It is no line of a history.
    HistoryLine(LineError),
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            MergeErrorKind::Io(error) => write!(f, "line {}: {error}", self.line),
            MergeErrorKind::HistoryLine(error) => write!(f, "line {}: {error}", self.line),
        }
    }
}

impl std::error::Error for MergeError {}

/// The lines of several files.
pub struct Merged<R> {
    files: Vec<HistoryFile<R>>,
    clocks: Clocks,
}

struct HistoryFile<R> {
    reader: R,
    number: u64,
    buffer: String,
    /// Lines that may still be behind others of the file.
    held_back: BinaryHeap<Reverse<Placed>>,
    latest: Time,
    is_over: bool,
}

struct Placed {
    at: Time,
    number: u64,
    line: HistoryLine,
}

impl PartialEq for Placed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Placed {}
impl PartialOrd for Placed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Placed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<R: BufRead> Merged<R> {
    /// Reads these files together.
    pub fn new(files: Vec<R>) -> Self {
        let source = |reader| HistoryFile {
            reader,
            number: 0,
            buffer: String::new(),
            held_back: BinaryHeap::new(),
            latest: Time::MIN,
            is_over: false,
        };
        Self { files: files.into_iter().map(source).collect(), clocks: Clocks::default() }
    }

    /// Reads a file's lines until its oldest is certainly the next, within the slack.
    fn fill(&mut self, file: usize) -> Result<(), MergeError> {
        loop {
            let source = &mut self.files[file];
            let is_certain = source.held_back.peek().is_some_and(|Reverse(oldest)| {
                source.latest.saturating_sub(oldest.at) > SLACK_NS || source.held_back.len() >= HELD_BACK
            });
            if source.is_over || is_certain {
                return Ok(());
            }
            source.buffer.clear();
            source.number += 1;
            let number = source.number;
            let wrong = |why| MergeError { file, line: number, why };
            let read = source.reader.read_line(&mut source.buffer);
            let length = read.map_err(|error| wrong(MergeErrorKind::Io(error)))?;
            // A last line without a line feed was cut by the end of its writer.
            if length == 0 || !source.buffer.ends_with('\n') {
                source.is_over = true;
                return Ok(());
            }
            if source.buffer.trim().is_empty() {
                continue;
            }
            let parsed = parse(&source.buffer).map_err(|error| wrong(MergeErrorKind::HistoryLine(error)))?;
            let Some(line) = parsed else { continue };
            self.clocks.hear(&line);
            let ahead = self.clocks.ahead_of_writer(&line.by);
            // Of a clock without bounds, the order in its file is all there is.
            let at = if ahead.is_some() { Ahead::latest(ahead, line.at) } else { source.latest };
            source.latest = source.latest.max(at);
            source.held_back.push(Reverse(Placed { at, number, line }));
        }
    }
}

impl<R: BufRead> Iterator for Merged<R> {
    type Item = Result<HistoryLine, MergeError>;

    fn next(&mut self) -> Option<Self::Item> {
        for file in 0..self.files.len() {
            if let Err(error) = self.fill(file) {
                self.files[file].is_over = true;
                return Some(Err(error));
            }
        }
        let oldest = |source: &HistoryFile<R>| source.held_back.peek().map(|Reverse(placed)| placed.at);
        let next = self
            .files
            .iter_mut()
            .filter(|source| !source.held_back.is_empty())
            .min_by_key(|it| oldest(it))?;
        next.held_back.pop().map(|Reverse(placed)| Ok(placed.line))
    }
}
