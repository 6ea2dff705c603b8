//! Locks held by the wrappers above this process. Waiting for such a lock would never end: the wrapper
//! releases it only after this process has ended.
//!
//! `LOCKKEEPER_HELD` lists them, the innermost last: a line of lock service, name and token for each,
//! separated by tabs. Names contain no control characters.

use std::ffi::OsString;

use lockkeeper::{AcquireError, Guard, LockName, Unfenced, Wait};

use super::outage::OutageReport;
use super::waiting::{self, Waited, Wish};
use crate::exit::Failure;
use crate::guardian::Signals;
use crate::settings;

/// The variable's name.
pub(super) const VARIABLE: &str = "LOCKKEEPER_HELD";

/// The variable's value for a command under this hold.
pub(super) fn with(url: &str, name: &LockName, guard: &Guard<Unfenced>) -> OsString {
    let above = std::env::var(VARIABLE).unwrap_or_default();
    let token = guard.token_hint().map(|token| token.to_string()).unwrap_or_default();
    let line = format!("{}\t{}\t{token}", settings::shown(url), name.as_str());
    if above.is_empty() { line.into() } else { format!("{above}\n{line}").into() }
}

/// The token of an ancestor's hold of this lock; empty if it has none.
pub(super) fn by_ancestor(url: &str, name: &LockName) -> Option<String> {
    listed(&std::env::var(VARIABLE).ok()?, &settings::shown(url), name.as_str())
}

fn listed(list: &str, url: &str, name: &str) -> Option<String> {
    let fields = |line: &str| -> Option<(String, String, String)> {
        let mut fields = line.split('\t').map(ToOwned::to_owned);
        Some((fields.next()?, fields.next()?, fields.next()?))
    };
    let mut holds = list.lines().rev().filter_map(fields);
    holds.find(|(service, held, _)| service == url && held == name).map(|(_, _, token)| token)
}

/// Acquires a lock that an ancestor may hold. Tries once without waiting, which succeeds for example for
/// another reader. Waits only if the ancestor no longer holds the lock.
pub(super) async fn acquire(
    wish: Wish<'_>,
    token: String,
    signals: &mut Signals,
    outage: &mut OutageReport,
) -> Result<Waited, Failure> {
    match wish.lock.clone().wait(Wait::No).acquire().await {
        Ok(guard) => return Ok(Waited::Acquired(guard)),
        Err(AcquireError::Busy(_)) => {}
        // Repeated with a wait, which reports the error.
        Err(_) => return waiting::acquire(wish, signals, outage).await,
    }
    // Without a token, or if the lock can't be inspected, `LOCKKEEPER_HELD` decides.
    let is_held = wish.locks.inspect(wish.name).await.map_or(true, |info| {
        let has = |own: Option<lockkeeper::Token>| own.is_none_or(|own| own.to_string() == token);
        token.is_empty() || info.holds.iter().any(|holder| has(holder.token))
    });
    if is_held {
        return Ok(Waited::ForItself);
    }
    waiting::acquire(wish, signals, outage).await
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn innermost_hold_of_the_same_service_is_found() {
        let list = "file:///a\tx\t1\nfile:///b\tx y\t2\nfile:///a\tx\t3\nfile:///a\tz\t";
        for (url, name, token) in [
            ("file:///a", "x", Some("3")),
            ("file:///b", "x y", Some("2")),
            ("file:///b", "x", None),
            ("file:///a", "z", Some("")),
        ] {
            assert_eq!(listed(list, url, name).as_deref(), token);
        }
        assert_eq!(listed("a line of somebody else", "file:///a", "x"), None);
    }
}
