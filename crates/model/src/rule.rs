//! The rules that can be left out, one at a time.

/// One rule of the session deadlines, the quorum reads, or the client's lease deadline. A renewal is a
/// keep-alive or an attach. "Without" describes the model in which the rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// The leader acknowledges a renewal only after a quorum read. Without: at once (P6).
    Round,
    /// The quorum read begins after the renewal was read. Without: the renewal joins the quorum read in
    /// progress.
    LaterRound,
    /// A new leader is inactive until the first entry of its own term is applied. Without: it is active from
    /// its election.
    FirstEntry,
    /// A new leader gives every session its full ttl. Without: no time at all (P9).
    FullTtl,
    /// Nothing is acknowledged once the session's end is proposed.
    NothingAfterEnd,
    /// A session expires only after a quorum read that began after its deadline.
    ExpiryRound,
    /// A session expires only after all input was read that had arrived when the leader's check of the
    /// session began (P9).
    ExpiryDrain,
    /// Time during which the leader was stalled does not count towards any deadline (P9).
    StallsDontCount,
    /// `linger` begins only if the client's side closed the stream. Without: also if the service did.
    ClientsCloseOnly,
    /// `linger` does not bring a session's deadline closer than one ttl after a new leader became active.
    Floor,
    /// The client cuts its own lease deadline to `linger` when its stream ends.
    ClientCuts,
    /// The latest attach counts, and input from older streams is dropped.
    NewestAttach,
    /// Every acknowledgement after a break names the revoked hold (P4).
    NamesRevoked,
    /// A revoked hold is opened one ttl after the break, or after a later leader became active.
    RevokedWaits,
    /// The client stamps a renewal before it sends it. Without: when it receives the acknowledgement.
    StampBeforeSend,
    /// The client's lease deadline is shorter than the ttl, by the assumed drift between clocks.
    Margin,
    /// A leader reads its clock after it has taken its input. Without: up to a tick before.
    ClockAfterInput,
}

impl Rule {
    /// All rules.
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

    /// The rule's name on the command line and in `docs/lease-rules.md`.
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
