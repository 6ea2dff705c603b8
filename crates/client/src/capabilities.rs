//! Abilities and promises of a backend. They are declared here, measured by the contract suite, and a test compares
//! both with the backend's page (P11).

use std::fmt;

/// The abilities of a backend. A test compares them with `docs/backends/<name>.md`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The URL scheme: `file`, `memory`, …
    pub backend: &'static str,
    /// The scope of exclusion: this process, this host, or all clients of the service.
    pub reach: Reach,
    /// Whether holds have fencing tokens.
    pub fencing: Fencing,
    /// Whether a hold has a deadline that must be renewed. Otherwise a connection or a descriptor holds the lock, and a
    /// stopped holder keeps it.
    pub ttl: bool,
    /// Locks shared by readers.
    pub shared: bool,
    /// Semaphores: one permit of N.
    pub permits: bool,
    /// Holds that cover all names below theirs.
    pub subtree: bool,
    /// Several names in one request, all or nothing.
    pub multi: bool,
    /// Waiting for a lock that is not free.
    pub wait: bool,
    /// Grants in the order of arrival.
    pub fair: bool,
    /// Locks that stay closed after the end of a hold.
    pub keep_closed: bool,
    /// Locks that stay closed for a while after a holder vanished.
    pub lock_delay: bool,
    /// Queries for holders and waiters.
    pub inspect: bool,
    /// Breaking another client's hold with a grace period for its holder.
    pub break_hold: bool,
    /// Breaking another client's hold at once.
    pub break_now: bool,
    /// The promises P1 to P12.
    pub promises: [Promise; 12],
}

/// The scope in which a backend's locks exclude.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// This process only.
    Process,
    /// All processes of this host that can use the same directory.
    Host,
    /// All clients of the same service.
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

/// Whether holds have tokens, and their source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fencing {
    /// Each grant has a higher token than every earlier one (P2).
    Tokens {
        /// The source of the tokens.
        source: &'static str,
    },
    /// Holds have no tokens.
    None {
        /// The reason.
        why: &'static str,
        /// The recommended alternative.
        instead: &'static str,
    },
}

/// Whether the backend keeps a promise of `docs/SAFETY.md`.
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
    /// Every boolean ability with its name, in the order used by the backends' pages.
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
