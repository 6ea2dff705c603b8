//! Clients and their holds, as the lock service of a play sees them.

use lockkeeper::machine::Event;
use lockkeeper_core::Token;

use crate::trace::Lane;

/// The lock service's view of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Client {
    A,
    B,
    C,
}

impl Client {
    pub(crate) fn lane(self) -> Lane {
        match self {
            Self::A => Lane::A,
            Self::B => Lane::B,
            Self::C => Lane::C,
        }
    }
}

/// A message of the lock service to a client's machine.
pub(crate) struct Sent {
    pub(crate) client: Client,
    pub(crate) event: Event,
}

impl Sent {
    pub(crate) fn to(client: Client, event: Event) -> Self {
        Self { client, event }
    }
}

/// A hold, as the lock service counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CountedHold {
    pub(crate) token: Option<Token>,
    pub(crate) holder: Client,
    pub(crate) is_closed: bool,
}
