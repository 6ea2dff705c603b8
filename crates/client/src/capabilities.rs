//! What a backend can do and which promises it keeps: declared here, derived by the contract suite, held against each
//! other and against the backend's page (P11).

use std::fmt;

/// What a backend can do. `docs/backends/<name>.md` says the same, and a test compares.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The URL scheme: `file`, `memory`, …
    pub backend: &'static str,
    /// Whom it excludes: this process, this host, everyone who uses the service.
    pub reach: Reach,
    /// Whether holds have fencing tokens.
    pub fencing: Fencing,
    /// Whether a hold has a deadline that must be renewed. Otherwise a connection or a descriptor holds it, and a
    /// stopped holder keeps it.
    pub ttl: bool,
    /// Readers side by side.
    pub shared: bool,
    /// One of N.
    pub permits: bool,
    /// A hold that covers everything below its name.
    pub subtree: bool,
    /// Several names at once, all or nothing.
    pub multi: bool,
    /// Waiting instead of failing.
    pub wait: bool,
    /// First come, first served.
    pub fair: bool,
    /// Staying closed after the end of a hold.
    pub keep_closed: bool,
    /// Staying closed for a while after a holder vanished.
    pub lock_delay: bool,
    /// Saying who holds and who waits.
    pub inspect: bool,
    /// Ending another's hold, giving it time to stop.
    pub break_hold: bool,
    /// Ending another's hold at once.
    pub break_now: bool,
    /// P1 to P12.
    pub promises: [Promise; 12],
}

/// Whom a backend's locks exclude.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// This process only.
    Process,
    /// Every process of this host that may use the same directory.
    Host,
    /// Everyone who uses the same service.
    Network,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "this process",
            Self::Host => "this host",
            Self::Network => "everyone who uses the service",
        })
    }
}

/// Whether holds have tokens, and where they come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fencing {
    /// Each grant has a higher token than every earlier one (P2).
    Tokens {
        /// Where they come from.
        source: &'static str,
    },
    /// There are none.
    None {
        /// Why.
        why: &'static str,
        /// What to use.
        instead: &'static str,
    },
}

/// Whether a promise of `docs/SAFETY.md` is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Kept.
    Kept,
    /// Kept under a condition.
    KeptIf(&'static str),
    /// Not kept.
    NotKept(&'static str),
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("kept"),
            Self::KeptIf(condition) => write!(f, "kept if {condition}"),
            Self::NotKept(why) => write!(f, "not kept: {why}"),
        }
    }
}

impl Capabilities {
    /// Every yes-or-no ability with its name, in the order of the backends' pages.
    #[must_use]
    pub fn abilities(&self) -> [(&'static str, bool); 13] {
        [
            ("fencing", matches!(self.fencing, Fencing::Tokens { .. })),
            ("ttl", self.ttl),
            ("shared", self.shared),
            ("permits", self.permits),
            ("subtree", self.subtree),
            ("multi", self.multi),
            ("wait", self.wait),
            ("fair", self.fair),
            ("keep_closed", self.keep_closed),
            ("lock_delay", self.lock_delay),
            ("inspect", self.inspect),
            ("break", self.break_hold),
            ("break_now", self.break_now),
        ]
    }
}
