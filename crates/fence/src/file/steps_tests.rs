//! Kills and power cuts after every step, on a model of a directory.
//!
//! The model is harsher than common filesystems: any subset of the renames since the last sync may survive a
//! power cut, those of marks and of data in any combination.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::io;
use std::path::PathBuf;

use lockkeeper_core::Token;

use super::error::FileError;
use super::steps::{self, FenceFiles, Target};
use crate::format;
use crate::rule::{Action, Marks, Section};

#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Names {
    marks: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
    founded: bool,
}

/// A change of a directory entry, or of the lock file's content, that a power cut may undo.
#[derive(Clone, Debug)]
enum Change {
    Rename(Target, Vec<u8>),
    Found,
}

impl Names {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Rename(Target::Marks, bytes) => self.marks = Some(bytes.clone()),
            Change::Rename(Target::Data, bytes) => self.data = Some(bytes.clone()),
            Change::Found => self.founded = true,
        }
    }
}

/// A directory whose process dies after a given number of steps.
#[derive(Clone, Default)]
struct Model {
    seen: Names,
    durable: Names,
    pending: Vec<Change>,
    prepared: Option<Vec<u8>>,
    steps_left: usize,
}

impl Model {
    fn step(&mut self) -> Result<(), FileError> {
        match self.steps_left.checked_sub(1) {
            Some(left) => self.steps_left = left,
            None => return Err(FileError::io("live", &PathBuf::new())(io::ErrorKind::Interrupted.into())),
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        self.seen.apply(&change);
        self.pending.push(change);
    }

    /// Every directory state that a power cut may leave.
    fn after_power_cut(&self) -> impl Iterator<Item = Names> {
        (0..1_u32 << self.pending.len()).map(|kept| {
            let mut names = self.durable.clone();
            for (index, change) in self.pending.iter().enumerate() {
                if kept & (1 << index) != 0 {
                    names.apply(change);
                }
            }
            names
        })
    }
}

impl FenceFiles for Model {
    fn marks(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.seen.marks.clone())
    }

    fn founded(&mut self) -> Result<bool, FileError> {
        Ok(self.seen.founded)
    }

    fn found(&mut self) -> Result<(), FileError> {
        self.step()?;
        self.change(Change::Found);
        self.step()?;
        self.durable.founded = true;
        Ok(())
    }

    fn prepare(&mut self, _: Target, bytes: &[u8]) -> Result<(), FileError> {
        self.step()?;
        self.prepared = Some(bytes.to_vec());
        Ok(())
    }

    fn rename(&mut self, target: Target) -> Result<(), FileError> {
        self.step()?;
        let bytes = self.prepared.take().expect("prepared before it is renamed");
        self.change(Change::Rename(target, bytes));
        Ok(())
    }

    fn sync_names(&mut self) -> Result<(), FileError> {
        self.step()?;
        // Syncing the directory does not sync the bytes of the lock file.
        let founded = self.durable.founded;
        self.durable = Names { founded, ..self.seen.clone() };
        self.pending.retain(|change| matches!(change, Change::Found));
        Ok(())
    }

    fn missing(&self) -> FileError {
        FileError::MarksMissing { path: PathBuf::new() }
    }

    fn unreadable(&self, why: format::Unreadable) -> FileError {
        panic!("the model never damages bytes: {why:?}")
    }

    fn unsure(&self, source: FileError) -> FileError {
        FileError::Unsure { path: PathBuf::new(), source: Box::new(source) }
    }
}

type Write = fn(&mut Model, Section, &[u8]) -> Result<(), FileError>;

fn write(disk: &mut Model, section: Section, bytes: &[u8]) -> Result<(), FileError> {
    steps::pass(disk, Action::Write, section)?;
    steps::put(disk, bytes)
}

#[derive(Default)]
struct Acknowledged {
    mark: u64,
    data: u64,
}

/// Runs sections with the tokens 5, 6 and 7 in order; 7 writes without entering. Starts at call `from`;
/// returns the call in which the process died, or `None` if it lived.
fn run(disk: &mut Model, write: Write, from: usize, told: &mut Acknowledged) -> Option<usize> {
    let calls = [(5, false), (5, true), (5, true), (6, false), (6, true), (7, true)];
    for (call, (token, writes)) in calls.into_iter().enumerate().skip(from) {
        let section = Section::exclusive(Token::new(token).expect("a token"));
        let answer = if writes {
            write(disk, section, token.to_string().as_bytes())
        } else {
            steps::pass(disk, Action::Enter, section)
        };
        match answer {
            Ok(()) => {
                told.mark = token;
                told.data = if writes { token } else { told.data };
            }
            Err(FileError::Refused(refused)) => panic!("call {call}: {refused}"),
            Err(_) => return Some(call),
        }
    }
    None
}

/// Checks the invariants of a directory state after a fault; `Err` names the violated one.
fn judge(left: Names, told: &Acknowledged) -> Result<(), String> {
    let data = match &left.data {
        Some(bytes) => String::from_utf8_lossy(bytes).parse().map_err(|_| "torn data".to_owned())?,
        None => 0,
    };
    let mut disk = Model { seen: left, ..Model::default() };
    let marks: Marks = steps::load(&mut disk).map_err(|error| format!("the fence is shut: {error}"))?;
    let mark = marks.base.any.map_or(0, Token::get);
    if mark < told.mark {
        return Err(format!("mark {mark}, acknowledged {}", told.mark));
    }
    if data < told.data {
        return Err(format!("data of {data}, acknowledged {}", told.data));
    }
    if mark < data {
        return Err(format!("mark {mark} under the data of {data}"));
    }
    Ok(())
}

/// Kills the first process after every step; then a second process repeats the interrupted call and
/// continues, and the power is cut after every step of the second process. Returns the number of outcomes
/// checked.
fn cut_everywhere(write: Write) -> Result<usize, String> {
    let mut judged = 0;
    for kill in 0.. {
        let mut first = Model { steps_left: kill, ..Model::default() };
        let mut told = Acknowledged::default();
        let died = run(&mut first, write, 0, &mut told);
        for cut in 0.. {
            let mut second = Model { steps_left: cut, ..first.clone() };
            let mut told = Acknowledged { ..told };
            let again = died.and_then(|call| run(&mut second, write, call, &mut told));
            for left in second.after_power_cut() {
                judged += 1;
                judge(left, &told)
                    .map_err(|why| format!("kill after {kill} steps, cut after {cut}: {why}"))?;
            }
            if again.is_none() {
                break;
            }
        }
        if died.is_none() {
            return Ok(judged);
        }
    }
    unreachable!("the calls end")
}

#[test]
fn kill_or_power_cut_never_loses_an_acknowledged_write_or_puts_data_before_its_mark() {
    let judged = cut_everywhere(write).expect("nothing is lost");
    println!("{judged} outcomes judged");
    assert!(judged > 1000, "only {judged}");
}

/// A mutant: this order of the same steps must violate an invariant.
#[test]
fn mutant_data_before_mark_is_detected() {
    let found = cut_everywhere(|disk, section, bytes| {
        steps::put(disk, bytes)?;
        steps::pass(disk, Action::Write, section)
    });
    assert!(found.expect_err("an error").contains("under the data"));
}

#[test]
fn mutant_data_before_durable_mark_is_detected() {
    let found = cut_everywhere(|disk, section, bytes| {
        let mut marks = steps::load(disk)?;
        let _ = marks.check(Action::Write, section)?;
        disk.prepare(Target::Marks, &format::encode(&marks))?;
        disk.rename(Target::Marks)?;
        steps::put(disk, bytes)
    });
    assert!(found.expect_err("an error").contains("under the data"));
}

#[test]
fn mutant_success_before_directory_sync_is_detected() {
    let found = cut_everywhere(|disk, section, bytes| {
        steps::pass(disk, Action::Write, section)?;
        disk.prepare(Target::Data, bytes)?;
        disk.rename(Target::Data)
    });
    assert!(found.expect_err("an error").contains("acknowledged"));
}

/// Shows why `pass` syncs even if no mark rose: a process that died may have renamed the marks without making
/// the name durable.
#[test]
fn mutant_skipped_sync_of_an_equal_mark_is_detected() {
    let found = cut_everywhere(|disk, section, bytes| {
        let mut marks = steps::load(disk)?;
        if marks.check(Action::Write, section)? == crate::rule::Passed::Raised {
            steps::pass(disk, Action::Write, section)?;
        }
        steps::put(disk, bytes)
    });
    assert!(found.expect_err("an error").contains("under the data"));
}

#[test]
fn interrupted_reset_leaves_the_old_or_the_new_marks() {
    let token = |token| Token::new(token).expect("a token");
    for cut in 0.. {
        let mut disk = Model { steps_left: usize::MAX, ..Model::default() };
        steps::pass(&mut disk, Action::Enter, Section::exclusive(token(900))).expect("no cut yet");
        disk.steps_left = cut;
        let told = steps::reset(&mut disk, token(17)).is_ok();
        for left in disk.after_power_cut() {
            let mut disk = Model { seen: left, ..Model::default() };
            let marks = steps::load(&mut disk).expect("the fence is not shut");
            let mark = marks.base.any.map_or(0, Token::get);
            assert!(mark == 17 || (mark == 900 && !told), "cut after {cut} steps: {marks:?}");
        }
        if told {
            assert!(cut > 2, "only {cut} steps");
            return;
        }
    }
}
