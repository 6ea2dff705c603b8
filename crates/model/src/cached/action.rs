//! The events of the model of cached holds, and their descriptions.

use std::fmt;

/// One event. Clients count from 0 (shown as 1, 2, 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CachedAction {
    /// Half of a lease passes.
    Tick,
    /// A client sends an acquire with this number of spare tokens.
    Ask {
        /// The client.
        client: u8,
        /// The spare tokens.
        spare: u8,
        /// The acquire does not wait.
        is_try: bool,
    },
    /// The table applies the oldest message of a client.
    Apply(u8),
    /// A client reads the oldest message of the service.
    Hear(u8),
    /// A client begins a section with the hold that it has cached.
    Begin(u8),
    /// A client ends its section.
    End(u8),
    /// A client releases the hold that it has cached.
    GiveBack(u8),
    /// A keep-alive of a client is acknowledged.
    Renew(u8),
    /// A client's stream ends, and loses what is on its way.
    Break(u8),
    /// A client attaches on a new stream, perhaps to a new leader, and sends again what has no answer.
    Attach(u8),
    /// The service ends a client's session, after its lease.
    Expire(u8),
}

impl fmt::Display for CachedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |client: u8| client + 1;
        match *self {
            Self::Tick => write!(f, "a tick"),
            Self::Ask { client, spare: 0, is_try: false } => write!(f, "{} asks", name(client)),
            Self::Ask { client, is_try: true, .. } => write!(f, "{} tries", name(client)),
            Self::Ask { client, spare, .. } => {
                write!(f, "{} asks with spare tokens ({spare})", name(client))
            }
            Self::Apply(client) => write!(f, "the table applies what {} sent", name(client)),
            Self::Hear(client) => write!(f, "{} hears the service", name(client)),
            Self::Begin(client) => write!(f, "{} begins a section by itself", name(client)),
            Self::End(client) => write!(f, "{} ends its section", name(client)),
            Self::GiveBack(client) => write!(f, "{} gives its idle hold back", name(client)),
            Self::Renew(client) => write!(f, "{} keeps its session alive", name(client)),
            Self::Break(client) => write!(f, "the stream of {} ends", name(client)),
            Self::Attach(client) => write!(f, "{} attaches again", name(client)),
            Self::Expire(client) => write!(f, "the session of {} ends", name(client)),
        }
    }
}
