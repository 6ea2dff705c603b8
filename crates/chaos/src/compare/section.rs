//! What a contender does under the lock: it adds an element to three sets, each a file that is read and
//! written back whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use lockkeeper::{BootInstant, Token};
use lockkeeper_fence::Section;
use lockkeeper_fence::file::FileFence;
use lockkeeper_history::{
    EnteredEvent, FenceVerdict, HistoryEvent, HistoryWriter, ReadEvent, WriteOutcome, WroteEvent,
};

use crate::Result;
use crate::worker::{SERVICE, answers};

/// The lock of all contenders.
pub(crate) const LOCK: &str = "ledger";

/// How a set is guarded beside the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guarding {
    /// Not at all.
    Unfenced,
    /// Its fence checks the token of each write.
    CheckedWrites,
    /// The section also enters the fence before it reads.
    Entered,
}

impl Guarding {
    pub(crate) const ALL: [Self; 3] = [Self::Unfenced, Self::CheckedWrites, Self::Entered];

    /// The file of the set, and the name of the resource in histories.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::Unfenced => "unfenced",
            Self::CheckedWrites => "checked-writes",
            Self::Entered => "entered",
        }
    }
}

/// The sections of one contender.
pub(crate) struct Sections {
    history: HistoryWriter,
    folder: PathBuf,
    by: String,
    made: u64,
}

/// A set that a section has read.
struct ReadSet {
    guarding: Guarding,
    content: String,
}

/// The present moment, for histories.
pub(crate) fn now() -> u64 {
    BootInstant::now().as_nanos()
}

impl Sections {
    /// `by`: unique for this process.
    pub(crate) fn new(history: HistoryWriter, folder: &Path, by: String) -> Self {
        Self { history, folder: folder.to_owned(), by, made: 0 }
    }

    /// Reads the sets, works, and writes them back with one more element. Without a token, only the unfenced
    /// set is used. Nothing is asked of the lock service on the way, as in the examples of all clients.
    pub(crate) fn run(&mut self, token: Option<Token>, work: Duration) -> Result {
        self.made += 1;
        let made = format!("{}-{}", self.by, self.made);
        let section = token.map(Section::exclusive);
        let mut sets = Vec::new();
        for guarding in Guarding::ALL {
            match (guarding, section) {
                (Guarding::Unfenced, _) | (Guarding::CheckedWrites, Some(_)) => {}
                (Guarding::Entered, Some(section)) if self.enter(section)? => {}
                _ => continue,
            }
            sets.push(self.read(guarding)?);
        }
        thread::sleep(work);
        sets.into_iter().try_for_each(|set| self.write(set, section, &made))
    }

    fn fence(&self, guarding: Guarding) -> Result<FileFence> {
        let path = self.folder.join(guarding.resource());
        Ok(FileFence::new(path)?.wait_at_most(Duration::from_secs(20)))
    }

    fn enter(&self, section: Section) -> Result<bool> {
        let asked = now();
        let verdict = answers::verdict(&self.fence(Guarding::Entered)?.enter(section));
        let event = EnteredEvent {
            resource: Guarding::Entered.resource().into(),
            service: SERVICE.into(),
            lock: LOCK.into(),
            token: section.token().get(),
            asked,
            verdict,
        };
        self.history.write(now(), HistoryEvent::Entered(event));
        Ok(verdict == FenceVerdict::Accepted)
    }

    fn read(&self, guarding: Guarding) -> Result<ReadSet> {
        let asked = now();
        let content = elements(&self.folder, guarding)?;
        let (resource, version) = (guarding.resource().into(), version(&content));
        self.history.write(now(), HistoryEvent::Read(ReadEvent { resource, asked, version }));
        Ok(ReadSet { guarding, content })
    }

    fn write(&self, set: ReadSet, section: Option<Section>, made: &str) -> Result {
        let ReadSet { guarding, content } = set;
        let new = format!("{content}{made}\n");
        let section = section.filter(|_| guarding != Guarding::Unfenced);
        let asked = now();
        let outcome = match section {
            Some(section) => answers::outcome(&self.fence(guarding)?.write(section, new.as_bytes())),
            None => {
                let temporary = self.folder.join(format!("{}.new", self.by));
                answers::replace(&self.folder.join(guarding.resource()), &temporary, &new)?;
                WriteOutcome::Done
            }
        };
        let event = WroteEvent {
            resource: guarding.resource().into(),
            service: SERVICE.into(),
            lock: LOCK.into(),
            token: section.map(|section| section.token().get()),
            asked,
            saw: version(&content),
            made: made.to_owned(),
            outcome,
        };
        self.history.write(now(), HistoryEvent::Wrote(event));
        Ok(())
    }
}

/// The content of a set: one element a line.
pub(crate) fn elements(folder: &Path, guarding: Guarding) -> Result<String> {
    match fs::read_to_string(folder.join(guarding.resource())) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        content => Ok(content?),
    }
}

/// The latest element names the version.
fn version(content: &str) -> String {
    content.lines().next_back().unwrap_or_default().to_owned()
}
