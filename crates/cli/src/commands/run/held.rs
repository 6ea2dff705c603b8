//! Locks held by the wrappers above this process. Waiting for such a lock would never end: the wrapper
//! releases it only after this process has ended.
//!
//! `LOCKKEEPER_HELD` lists them, the innermost last: a line of lock service, name, token and mode for each,
//! separated by tabs. Names contain no control characters.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use lockkeeper::{AcquireError, Guard, HolderState, LockInfo, LockName, Mode, Token, Unfenced, Wait};

use super::job::LockOf;
use super::outage::OutageReport;
use super::waiting::{self, Waited, Wish};
use super::{SHUTDOWN_LIMIT, connect, mode};
use crate::args::Run;
use crate::exit::{self, Failure};
use crate::guardian::Signals;
use crate::settings;

/// The variable's name.
pub(super) const VARIABLE: &str = "LOCKKEEPER_HELD";
/// How many holds a request can declare.
const DECLARED_MAX: usize = lockkeeper_core::limits::HOLDING_MAX;

/// The variable's value for a command under this hold.
pub(super) fn with(lock: LockOf<'_>, guard: &Guard<Unfenced>) -> OsString {
    let above = std::env::var(VARIABLE).unwrap_or_default();
    let token = guard.token_hint().map(|token| token.to_string()).unwrap_or_default();
    let line = format!("{}\t{}\t{token}\t{}", settings::shown(lock.url), lock.name.as_str(), lock.mode);
    if above.is_empty() { line.into() } else { format!("{above}\n{line}").into() }
}

/// A hold of an ancestor.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct HeldAbove {
    name: String,
    /// Empty if it has none.
    token: String,
    /// Empty if an older version has listed it.
    mode: String,
}

impl HeldAbove {
    /// Whether the lock service shows the hold. Without a token, any hold of the lock counts.
    fn is_in(&self, info: &LockInfo) -> bool {
        info.holds.iter().any(|holder| {
            let is_same = holder.token.is_none_or(|token| token.to_string() == self.token);
            self.token.is_empty() || is_same
        })
    }

    /// Whether work that needs the lock in this mode may be done under the hold.
    fn covers(&self, wanted: Mode) -> bool {
        self.mode == Mode::Exclusive.to_string()
            || (wanted == Mode::Shared && self.mode == Mode::Shared.to_string())
    }
}

/// An ancestor's hold of this lock.
pub(super) fn by_ancestor(url: &str, name: &LockName) -> Option<HeldAbove> {
    let list = std::env::var(VARIABLE).ok()?;
    listed(&list, &settings::shown(url)).find(|hold| hold.name == name.as_str())
}

/// The tokens of the ancestors' holds at this lock service, the innermost first: they last until this process
/// has ended.
pub(super) fn tokens(url: &str) -> Vec<Token> {
    let list = std::env::var(VARIABLE).unwrap_or_default();
    let url = settings::shown(url);
    listed(&list, &url).filter_map(|hold| hold.token.parse().ok()).take(DECLARED_MAX).collect()
}

/// The holds at this lock service, the innermost first.
fn listed(list: &str, url: &str) -> impl Iterator<Item = HeldAbove> {
    list.lines().rev().filter_map(move |line| {
        let mut fields = line.split('\t').map(ToOwned::to_owned);
        let (service, name, token) = (fields.next()?, fields.next()?, fields.next()?);
        (service == url).then(|| HeldAbove { name, token, mode: fields.next().unwrap_or_default() })
    })
}

/// `--reenter`: replaces this process by the command if an ancestor holds the lock. The command needs no
/// guardian of its own: the ancestor's ends all that was started under its hold. Returns if the lock has to
/// be acquired.
pub(super) async fn reenter(args: &Run) -> Result<(), Failure> {
    let Some((path, words)) = args.command.argv.split_first() else { return Ok(()) };
    let name = settings::lock_name(&args.command.name)?;
    let url = settings::locks_url(args.job.service.locks.as_deref(), true)?;
    let Some(hold) = by_ancestor(&url, &name) else { return Ok(()) };
    let locks = connect(&args.job, &args.command.argv, &url).await?;
    let info = locks.inspect(&name).await;
    let _ = locks.shutdown(SHUTDOWN_LIMIT).await;
    let mut info = info?;
    info.holds.retain(|holder| matches!(holder.state, HolderState::Held));
    if !hold.is_in(&info) {
        return Ok(());
    }
    if !hold.covers(mode(args)) {
        let text = format!(
            "`{}` is held for the command that runs this one, but not in a mode that this one could use: {} was asked for, it \
             has {}; take it as {} there",
            name.as_str(),
            mode(args),
            if hold.mode.is_empty() { "an unknown one" } else { &hold.mode },
            Mode::Exclusive,
        );
        return Err(Failure::new(exit::DEADLOCK, text));
    }
    let mut command = Command::new(path);
    command.args(words).env("LOCKKEEPER_NAME", name.as_str()).env("LOCKKEEPER_TOKEN", &hold.token);
    for variable in ["LOCKKEEPER_SLOT", "LOCKKEEPER_PARTITION"] {
        command.env_remove(variable);
    }
    if hold.token.is_empty() {
        command.env_remove("LOCKKEEPER_TOKEN");
    }
    let error = command.exec();
    let code = if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
    Err(Failure::new(code, format!("cannot run `{}`: {error}", path.display())))
}

/// Acquires a lock that an ancestor may hold. Tries once without waiting, which succeeds for example for
/// another reader. Waits only if the ancestor no longer holds the lock.
pub(super) async fn acquire(
    wish: Wish<'_>,
    hold: &HeldAbove,
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
    if wish.locks.inspect(wish.name).await.map_or(true, |info| hold.is_in(&info)) {
        return Ok(Waited::ForItself);
    }
    waiting::acquire(wish, signals, outage).await
}

#[cfg(test)]
mod tests {
    use lockkeeper::Mode::{Exclusive, Permit, Shared};

    use super::{HeldAbove, listed};

    #[test]
    fn holds_of_the_same_service_are_listed_innermost_first() {
        let list =
            "file:///a\tx\t1\nfile:///b\tx y\t2\tshared\nfile:///a\tx\t3\texclusive\nfile:///a\tz\t\nx";
        let fields = |url: &str| -> Vec<[String; 3]> {
            listed(list, url).map(|HeldAbove { name, token, mode }| [name, token, mode]).collect()
        };
        assert_eq!(fields("file:///a"), [["z", "", ""], ["x", "3", "exclusive"], ["x", "1", ""]]);
        assert_eq!(fields("file:///b"), [["x y", "2", "shared"]]);
        assert_eq!(fields("a line of somebody else").len(), 0);
    }

    #[test]
    fn hold_covers_its_own_mode_and_weaker_ones() {
        for (mode, covered) in
            [("exclusive", &[Exclusive, Shared][..]), ("shared", &[Shared]), ("permit", &[]), ("", &[])]
        {
            let hold = HeldAbove { name: "x".into(), token: "1".into(), mode: mode.into() };
            for wanted in [Exclusive, Shared] {
                assert_eq!(hold.covers(wanted), covered.contains(&wanted), "{mode}, {wanted}");
            }
            assert!(mode == "exclusive" || !hold.covers(Permit));
        }
    }
}
