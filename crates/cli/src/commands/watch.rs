//! `watch`: prints locks as they change.
//!
//! The `lockkeeper://` service pushes changes; other services are polled four times per second. Either way
//! each line is a change to the state that was printed before, so that a reader who applies every line has
//! the current state, also after an interruption.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lockkeeper::{BackendError, BackendErrorKind, LockInfo, LockName, Locks, Watch, WatchEvent};
use serde_json::json;

use super::inspect::summary;
use crate::args::Ls;
use crate::exit::{Failure, INTERNAL, OK, chain};
use crate::guardian::Signals;
use crate::output::{self, say};
use crate::settings;
use crate::view;

/// The polling interval for services without a watch.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// The pause before another attempt to watch, after the service became unreachable.
const PAUSE: Duration = Duration::from_millis(500);

/// Prints the current state, then changes, until a signal arrives.
pub(super) async fn watch(args: Ls) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let prefix = prefix.as_ref().map(LockName::as_str);
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "watch").await?;
    let mut signals =
        Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))?;
    let mut printed = PrintedState::new(args.json);
    let watching = async {
        match locks.watch(prefix) {
            Ok(watch) => follow(&locks, prefix, watch, &mut printed).await,
            Err(error) if error.kind == BackendErrorKind::Unsupported => {
                say("this lock service is asked four times a second: what lasts shorter may be missing here");
                poll(&locks, prefix, &mut printed).await
            }
            Err(error) => Err(error.into()),
        }
    };
    tokio::select! {
        failed = watching => failed.map(|never| match never {}),
        _ = signals.until_end() => Ok(OK),
    }
}

/// Watching ends only with an error or a signal.
type Never = std::convert::Infallible;

/// Prints the changes that the service pushes. If the service becomes unreachable, starts another watch.
async fn follow(
    locks: &Locks,
    prefix: Option<&str>,
    mut watch: Watch,
    printed: &mut PrintedState,
) -> Result<Never, Failure> {
    loop {
        let cut = follow_once(&mut watch, printed).await?;
        if cut.kind != BackendErrorKind::Unreachable {
            return Err(cut.into());
        }
        printed.interrupted(&cut)?;
        tokio::time::sleep(PAUSE).await;
        watch = locks.watch(prefix)?;
    }
}

/// Reads one watch to its end and returns the error that ended it.
async fn follow_once(watch: &mut Watch, printed: &mut PrintedState) -> Result<BackendError, Failure> {
    printed.begin();
    loop {
        match watch.next().await {
            Some(Ok(WatchEvent::State(info) | WatchEvent::Changed(info))) => printed.lock(info)?,
            Some(Ok(WatchEvent::Synced)) => printed.synced()?,
            // An event kind of a newer library: `WatchEvent` is non-exhaustive.
            Some(Ok(_)) => {}
            Some(Err(error)) => return Ok(error),
            None => return Err(Failure::new(INTERNAL, "the watch ended without saying why; watch again")),
        }
    }
}

/// Polls the list of locks. A hold that begins and ends between two polls is not printed.
async fn poll(locks: &Locks, prefix: Option<&str>, printed: &mut PrintedState) -> Result<Never, Failure> {
    loop {
        printed.begin();
        for info in locks.list(prefix).await? {
            printed.lock(info)?;
        }
        printed.synced()?;
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// The state printed so far.
struct PrintedState {
    json: bool,
    /// For each lock in use, the [`fingerprint`] of the state that was printed last.
    known: BTreeMap<LockName, String>,
    /// While the whole state is being received: the locks received so far.
    seen: BTreeMap<LockName, String>,
    /// Whether the whole state was received at least once.
    was_synced: bool,
    /// Whether the whole state is being received.
    is_syncing: bool,
    is_interrupted: bool,
}

impl PrintedState {
    fn new(json: bool) -> Self {
        Self {
            json,
            known: BTreeMap::new(),
            seen: BTreeMap::new(),
            was_synced: false,
            is_syncing: true,
            is_interrupted: false,
        }
    }

    /// To be called when the whole state begins to be received.
    fn begin(&mut self) {
        self.seen.clear();
        self.is_syncing = true;
    }

    fn lock(&mut self, info: LockInfo) -> Result<(), Failure> {
        let now = fingerprint(&info);
        let is_vacant = info.holds.is_empty() && info.waiter_count == 0;
        let is_unused = is_vacant && info.permits.is_none();
        let is_news = self.known.get(&info.name).map_or(!is_unused, |before| *before != now);
        if is_news {
            let event = match () {
                () if !self.was_synced => "state",
                () if is_vacant => "vacant",
                () => "changed",
            };
            self.print(event, &info.name, (!is_unused).then_some(&info))?;
        }
        if is_unused {
            self.known.remove(&info.name);
        } else {
            if self.is_syncing {
                self.seen.insert(info.name.clone(), now.clone());
            }
            self.known.insert(info.name, now);
        }
        Ok(())
    }

    /// To be called when the whole state was received: prints as vacant every known lock that was not
    /// received.
    fn synced(&mut self) -> Result<(), Failure> {
        let gone: Vec<LockName> =
            self.known.keys().filter(|name| !self.seen.contains_key(*name)).cloned().collect();
        for name in gone {
            self.known.remove(&name);
            self.print("vacant", &name, None)?;
        }
        self.is_syncing = false;
        self.seen.clear();
        if self.is_interrupted && !self.json {
            say("watching again; what changed meanwhile is printed as one change per lock");
        }
        let is_news = !self.was_synced || self.is_interrupted;
        self.was_synced = true;
        self.is_interrupted = false;
        if is_news && self.json {
            return output::json(&json!({ "event": "synced", "name": null, "lock": null }));
        }
        Ok(())
    }

    /// Prints that the watch is interrupted, once for each interruption.
    fn interrupted(&mut self, error: &BackendError) -> Result<(), Failure> {
        if std::mem::replace(&mut self.is_interrupted, true) {
            return Ok(());
        }
        if self.json {
            let why = chain(error);
            return output::json(
                &json!({ "event": "interrupted", "name": null, "lock": null, "error": why }),
            );
        }
        say(format_args!("the watch is interrupted: {}; trying again until it works", chain(error)));
        Ok(())
    }

    fn print(&self, event: &str, name: &LockName, info: Option<&LockInfo>) -> Result<(), Failure> {
        if self.json {
            let lock = info.map(view::lock);
            return output::json(&json!({ "event": event, "name": name.as_str(), "lock": lock }));
        }
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        match info {
            Some(info) => output::line(format!("{now}  {}", summary(info))),
            None => output::line(format!("{now}  {name}  free")),
        }
    }
}

/// The fields whose change is printed, as one text; ages are left out.
fn fingerprint(info: &LockInfo) -> String {
    let holders: Vec<_> = info
        .holds
        .iter()
        .map(|holder| (holder.token, std::mem::discriminant(&holder.state), holder.mode))
        .collect();
    format!("{holders:?} {} {:?}", info.waiter_count, info.permits)
}
