//! The rules that can be left out, one at a time.

/// One rule of the deadline book, of the rounds, or of the client's belief.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// A sign of life is acknowledged only after a majority has confirmed the leader. Without: at once (P6).
    Round,
    /// The round begins later than the sign of life was read. Without: it joins the round that is under way.
    LaterRound,
    /// A new leader does nothing before its first own entry is applied. Without: it begins when it is elected.
    FirstEntry,
    /// A new leader gives every session its full ttl. Without: none (P9).
    FullTtl,
    /// Nothing is acknowledged once the session's end is proposed.
    NothingAfterEnd,
    /// A session ends only after a majority has confirmed its leader since its deadline.
    ExpiryRound,
    /// A session ends only after all input that had arrived by then was read (P9).
    ExpiryDrain,
    /// Time in which the leader did not run counts for nobody (P9).
    StallsDontCount,
    /// `linger` begins only if the client's side closed the stream. Without: also if the service did.
    ClientsCloseOnly,
    /// `linger` cuts nothing below the deadline that a new leader gave.
    Floor,
    /// The client cuts its own belief to `linger` when its stream ends.
    ClientCuts,
    /// The latest attach counts, and what older streams bring is dropped.
    NewestAttach,
    /// Every acknowledgement after a break names the revoked hold (P4).
    NamesRevoked,
    /// A revoked hold is opened a ttl after the break, or after the zero point of a later leader.
    RevokedWaits,
    /// The client stamps a sign of life before it is sent. Without: when its acknowledgement comes.
    StampBeforeSend,
    /// The client believes for less than the ttl, by as much as rates of clocks may differ.
    Margin,
    /// A leader's clock is read after its input was taken. Without: up to a tick before.
    ClockAfterInput,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Round,
        Self::LaterRound,
        Self::FirstEntry,
        Self::FullTtl,
        Self::NothingAfterEnd,
        Self::ExpiryRound,
        Self::ExpiryDrain,
        Self::StallsDontCount,
        Self::ClientsCloseOnly,
        Self::Floor,
        Self::ClientCuts,
        Self::NewestAttach,
        Self::NamesRevoked,
        Self::RevokedWaits,
        Self::StampBeforeSend,
        Self::Margin,
        Self::ClockAfterInput,
    ];

    /// Its name on the command line and in `docs/SAFETY.md`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::LaterRound => "later-round",
            Self::FirstEntry => "first-entry",
            Self::FullTtl => "full-ttl",
            Self::NothingAfterEnd => "nothing-after-end",
            Self::ExpiryRound => "expiry-round",
            Self::ExpiryDrain => "expiry-drain",
            Self::StallsDontCount => "stalls-dont-count",
            Self::ClientsCloseOnly => "clients-close-only",
            Self::Floor => "floor",
            Self::ClientCuts => "client-cuts",
            Self::NewestAttach => "newest-attach",
            Self::NamesRevoked => "names-revoked",
            Self::RevokedWaits => "revoked-waits",
            Self::StampBeforeSend => "stamp-before-send",
            Self::Margin => "margin",
            Self::ClockAfterInput => "clock-after-input",
        }
    }
}
