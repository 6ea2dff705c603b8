//! The description of a deadlock, for people: a cycle of requests, each of which can't go on before the next
//! one (K2).

use std::fmt;
use std::time::Duration;

use crate::limits;
use crate::name::LockName;
use crate::types::{SessionId, Token};

/// A cycle of waits and holds. It begins with the refused request, and ends with the hold that the caller of
/// the refused request keeps. A wait is followed by what blocks it, a hold by the wait of its caller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cycle {
    /// At most [`limits::DEADLOCK_LISTED_MAX`]; of a longer cycle the first ones and the last one. Empty if
    /// the cycle is unknown: for a retry.
    pub requests: Vec<CycleRequest>,
    /// Number of requests left out before the last one.
    pub left_out: usize,
}

/// A wait or a hold in a cycle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CycleRequest {
    /// Its session.
    pub session: SessionId,
    /// The session's label; empty: none.
    pub label: Box<str>,
    /// The first of its names.
    pub name: LockName,
    /// The number of its names.
    pub names: usize,
    /// The token of a hold; `None` for a wait.
    pub token: Option<Token>,
    /// For how long it has held or waited, by the leader's wall clock; `None`: unknown (E3).
    pub age: Option<Duration>,
}

impl Cycle {
    /// Shortens a whole cycle to the limit.
    pub(crate) fn of(mut requests: Vec<CycleRequest>) -> Self {
        let left_out = requests.len().saturating_sub(limits::DEADLOCK_LISTED_MAX);
        let last = requests.len().saturating_sub(1);
        requests.drain(last - left_out..last);
        Self { requests, left_out }
    }
}

/// Prints the first characters of a text that a client has chosen, without control characters.
struct Shortened<'a>(&'a str, usize);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        let shown = chars.by_ref().take(self.1);
        shown.map(|it| if it.is_control() { '?' } else { it }).try_for_each(|it| write!(f, "{it}"))?;
        if chars.next().is_some() { f.write_str("…") } else { Ok(()) }
    }
}

impl CycleRequest {
    fn names(&self) -> String {
        let name = Shortened(self.name.as_str(), 96);
        if self.names > 1 { format!("`{name}` and {} more", self.names - 1) } else { format!("`{name}`") }
    }

    fn owner(&self) -> String {
        match &*self.label {
            "" => self.session.to_string(),
            label => format!("{} ({})", self.session, Shortened(label, 48)),
        }
    }

    fn age(&self) -> String {
        self.age.map(|age| format!(" for {} s", age.as_secs())).unwrap_or_default()
    }
}

/// The text of the refusal: at most some 10 KiB.
impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this wait would never end, it closes a cycle of waits (deadlock)")?;
        let mut before: Option<&CycleRequest> = None;
        for (index, request) in self.requests.iter().enumerate() {
            let (names, owner, age) = (request.names(), request.owner(), request.age());
            let is_last = index > 0 && index + 1 == self.requests.len();
            if is_last && self.left_out > 0 {
                write!(f, "; then {} more", self.left_out)?;
            }
            match (before, request.token) {
                (None, _) => write!(f, ": this request waits for {names}")?,
                (_, Some(token)) if is_last => {
                    write!(f, "; the caller of this request holds {names}{age}, with token {token}")?;
                }
                (_, Some(token)) => write!(f, "; {owner} holds {names}{age}, with token {token}")?,
                (Some(hold), None) if hold.token.is_some() && hold.session == request.session => {
                    write!(f, ", and waits for {names}{age}")?;
                }
                (Some(hold), None) if hold.token.is_some() => {
                    write!(f, ", and its caller waits as {owner} for {names}{age}")?;
                }
                (Some(_), None) => write!(f, "; before it {owner} waits for {names}{age}")?,
            }
            before = Some(request);
        }
        f.write_str(
            "; use a lock that is held already instead of asking for it again, and ask for several locks in one order \
             everywhere, or at once",
        )
    }
}
