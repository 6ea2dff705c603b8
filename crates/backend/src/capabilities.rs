//! Types for the abilities and promises of a backend. Each backend declares its own. The contract suite
//! measures them, and a test compares them with the backend's page (P11).

use std::fmt;

use crate::error::Unsupported;

/// The abilities of a backend. A test compares them with `docs/backends/<name>.md`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The URL scheme: `file`, `memory`, …
    pub backend: &'static str,
    /// The scope of exclusion: this process, this host, or all clients of the service.
    pub reach: Reach,
    /// Whether holds have fencing tokens.
    pub fencing: Fencing,
    /// Whether a hold has a deadline that must be renewed. Otherwise a connection or a descriptor holds the
    /// lock, and a stopped holder keeps it.
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
    /// Not waiting if too many wait already.
    pub queue_limit: bool,
    /// Locks that stay closed after the end of a hold.
    pub keep_closed: bool,
    /// Locks that stay closed for a while after a holder vanished.
    pub lock_delay: bool,
    /// Queries for holders and waiters.
    pub inspect: bool,
    /// Watches, which report each change of a lock as it happens.
    pub watch: bool,
    /// Breaking another client's hold with a grace period for its holder.
    pub break_hold: bool,
    /// Breaking another client's hold at once.
    pub break_now: bool,
    /// A value of a hold, which its holder replaces and others read.
    pub values: bool,
    /// Making an exclusive hold a shared one.
    pub downgrade: bool,
    /// Holds that a client keeps between its sections until another client needs the lock.
    pub cached: bool,
    /// The promises P1 to P12.
    pub promises: Promises,
}

/// The scope in which a backend's locks exclude.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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

/// The promises P1 to P12 of `docs/SAFETY.md`, which has their full text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promises {
    /// P1: in the table, holds of one lock never conflict.
    pub exclusion: Promise,
    /// P2: a later grant of a lock has a higher token.
    pub rising_tokens: Promise,
    /// P3: once a fence has accepted a token, it accepts no write with a lower one.
    pub fenced_sections: Promise,
    /// P4: nothing ends a hold but its release, its session's end, or an audited break.
    pub stable_holds: Promise,
    /// P5: a guard reports its loss before the service can grant the lock to another client.
    pub client_gives_up_first: Promise,
    /// P6: a keep-alive is acknowledged only by a service that can still grant the lock.
    pub confirmed_keep_alives: Promise,
    /// P7: a repeated request returns its first answer, and a lost reply leaves no orphan.
    pub harmless_retries: Promise,
    /// P8: waiters are granted in the order of arrival, and a dead one blocks no other.
    pub first_come_first_served: Promise,
    /// P9: a stall of the service ends no live session.
    pub survives_stalls: Promise,
    /// P10: a granted lock survives a crash of the service.
    pub durable: Promise,
    /// P11: an ability that the backend lacks is an error, once, before anything is sent.
    pub absent_ability_is_error: Promise,
    /// P12: a time-out after sending is reported as unknown, never as "not acquired".
    pub unknown_is_answer: Promise,
}

impl Promises {
    /// A backend writes only the promises that differ from this.
    pub const ALL_KEPT: Self = Self {
        exclusion: Promise::Kept,
        rising_tokens: Promise::Kept,
        fenced_sections: Promise::Kept,
        stable_holds: Promise::Kept,
        client_gives_up_first: Promise::Kept,
        confirmed_keep_alives: Promise::Kept,
        harmless_retries: Promise::Kept,
        first_come_first_served: Promise::Kept,
        survives_stalls: Promise::Kept,
        durable: Promise::Kept,
        absent_ability_is_error: Promise::Kept,
        unknown_is_answer: Promise::Kept,
    };

    /// Every promise with its number and its heading in `docs/SAFETY.md`, in order.
    #[must_use]
    pub fn list(&self) -> [(usize, &'static str, &Promise); 12] {
        [
            (1, "exclusion in the table", &self.exclusion),
            (2, "rising tokens", &self.rising_tokens),
            (3, "fenced sections", &self.fenced_sections),
            (4, "holds are stable", &self.stable_holds),
            (5, "the client gives up first", &self.client_gives_up_first),
            (6, "keep-alives are confirmed", &self.confirmed_keep_alives),
            (7, "retries are harmless", &self.harmless_retries),
            (8, "first come, first served", &self.first_come_first_served),
            (9, "a stall of the service ends no live session", &self.survives_stalls),
            (10, "durable", &self.durable),
            (11, "an absent ability is an error", &self.absent_ability_is_error),
            (12, "unknown is an answer", &self.unknown_is_answer),
        ]
    }
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

impl Promise {
    /// Whether it is kept, in a few words that don't change: `kept`, `kept if`, `not kept`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::KeptIf(_) => "kept if",
            Self::NotKept(_) => "not kept",
        }
    }
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
    /// A service on the network that has none of the other abilities, and keeps all promises. A backend
    /// writes what differs, as `Capabilities { ttl: true, ..Capabilities::minimal("redis", fencing) }`.
    #[must_use]
    pub const fn minimal(backend: &'static str, fencing: Fencing) -> Self {
        Self {
            backend,
            reach: Reach::Network,
            fencing,
            ttl: false,
            shared: false,
            permits: false,
            subtree: false,
            multi: false,
            wait: false,
            fair: false,
            queue_limit: false,
            keep_closed: false,
            lock_delay: false,
            inspect: false,
            watch: false,
            break_hold: false,
            break_now: false,
            values: false,
            downgrade: false,
            cached: false,
            promises: Promises::ALL_KEPT,
        }
    }

    /// Whether holds have fencing tokens.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        matches!(self.fencing, Fencing::Tokens { .. })
    }

    /// The error for an ability that the backend lacks (P11).
    pub fn lacks(&self, what: &'static str) -> Unsupported {
        Unsupported {
            backend: self.backend,
            what,
            why: "this lock service has no means for it",
            instead: "use `memory:` in tests, or a service whose page in docs/backends/ says that it can",
        }
    }

    /// The error for an operation that needs tokens, with the backend's reason for having none.
    pub fn lacks_tokens(&self, what: &'static str) -> Unsupported {
        match self.fencing {
            Fencing::Tokens { .. } => self.lacks(what),
            Fencing::None { why, instead } => Unsupported { backend: self.backend, what, why, instead },
        }
    }

    /// The error for an ability that only Lockkeeper's own service has.
    pub fn lacks_own_service(&self, what: &'static str) -> Unsupported {
        let (why, instead) = ("only our own service can", "use `lockkeeper://`");
        Unsupported { backend: self.backend, what, why, instead }
    }

    /// Every boolean ability with its name, in the order used by the backends' pages.
    #[must_use]
    pub fn abilities(&self) -> [(&'static str, bool); 18] {
        [
            ("fencing", self.has_tokens()),
            ("ttl", self.ttl),
            ("shared", self.shared),
            ("permits", self.permits),
            ("subtree", self.subtree),
            ("multi", self.multi),
            ("wait", self.wait),
            ("fair", self.fair),
            ("queue_limit", self.queue_limit),
            ("keep_closed", self.keep_closed),
            ("lock_delay", self.lock_delay),
            ("inspect", self.inspect),
            ("watch", self.watch),
            ("break", self.break_hold),
            ("break_now", self.break_now),
            ("values", self.values),
            ("downgrade", self.downgrade),
            ("cached", self.cached),
        ]
    }
}
