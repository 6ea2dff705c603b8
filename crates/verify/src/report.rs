//! What a check has found.

use lockkeeper_history::HistoryLine;

/// What a violation contradicts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ViolationKind {
    /// Two holds that exclude each other, at the same time (P1, P5).
    Overlap,
    /// A token that is not above that of an earlier grant (P2).
    TokenOrder,
    /// A later request was granted before one that waited already (P8).
    QueueOrder,
    /// A permit beyond the number of permits (P1).
    Permits,
    /// What a lock service said of a token, or of who holds a lock, was not so at any moment of the call.
    Answer,
    /// A fence accepted a token after a higher one, or its mark went back (P3).
    FenceOrder,
    /// An acknowledged update is not in what came after it (P3).
    LostUpdate,
    /// One resource was written under two locks that do not exclude each other.
    TwoLocks,
}

impl ViolationKind {
    /// In one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::TokenOrder => "token-order",
            Self::QueueOrder => "queue-order",
            Self::Permits => "permits",
            Self::Answer => "answer",
            Self::FenceOrder => "fence-order",
            Self::LostUpdate => "lost-update",
            Self::TwoLocks => "two-locks",
        }
    }
}

/// A place in a history that contradicts a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What it contradicts.
    pub kind: ViolationKind,
    /// In a sentence.
    pub text: String,
    /// The lines that prove it, in the order of their times.
    pub lines: Vec<HistoryLine>,
}

/// How much was checked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Lines.
    pub lines: u64,
    /// Writers.
    pub writers: u64,
    /// Acquires that were granted.
    pub grants: u64,
    /// Acquires that were not.
    pub denials: u64,
    /// Questions to lock services.
    pub questions: u64,
    /// Calls of fences and of what they protect.
    pub fenced: u64,
    /// Faults.
    pub faults: u64,
    /// Violations.
    pub violations: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Self { lines, writers, grants, denials, questions, fenced, faults, violations } = other;
        self.lines += lines;
        self.writers += writers;
        self.grants += grants;
        self.denials += denials;
        self.questions += questions;
        self.fenced += fenced;
        self.faults += faults;
        self.violations += violations;
    }
}

impl Counts {
    /// The operations that were checked.
    #[must_use]
    pub const fn operations(&self) -> u64 {
        self.grants + self.denials + self.questions + self.fenced
    }
}
