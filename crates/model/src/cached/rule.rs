//! The rules of cached holds that can be left out, one at a time.

/// One of the rules C2 to C7 of `docs/table-rules.md`. "Without" describes the model in which it is left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CachedRule {
    /// Each section of a hold has the next token of its block (C2). Without: all have the first.
    FreshToken,
    /// The token counter rises by the whole block (C2). Without: by one.
    WholeBlock,
    /// No section begins after a recall (C5).
    NoneAfterRecall,
    /// A section begins only while the session's lease is valid, and a hold is lost at the deadline (C7, P5).
    ValidLease,
    /// A try that meets an idle hold waits for its holder's answer (C6). Without: it is busy at once.
    PutOff,
    /// A recall is told again at every attach (C4). Without: only once.
    ToldAgain,
    /// A recall that the client hears before the grant counts for the hold (C4).
    EarlyRecall,
    /// A settled hold ends with its section (C5). Without: the client keeps it.
    SettledEnds,
}

impl CachedRule {
    /// All rules.
    pub const ALL: [Self; 8] = [
        Self::FreshToken,
        Self::WholeBlock,
        Self::NoneAfterRecall,
        Self::ValidLease,
        Self::PutOff,
        Self::ToldAgain,
        Self::EarlyRecall,
        Self::SettledEnds,
    ];

    /// The rule's name on the command line and in `docs/lease-rules.md`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FreshToken => "fresh-token",
            Self::WholeBlock => "whole-block",
            Self::NoneAfterRecall => "none-after-recall",
            Self::ValidLease => "valid-lease",
            Self::PutOff => "put-off",
            Self::ToldAgain => "told-again",
            Self::EarlyRecall => "early-recall",
            Self::SettledEnds => "settled-ends",
        }
    }
}
