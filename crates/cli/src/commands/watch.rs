//! `watch`: locks as they change.
//!
//! Our own service tells; elsewhere it looks four times a second. Either way what is printed is the difference to what
//! was printed before, so that a reader who applies every line knows the state, also over an interruption.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::{BackendError, BackendErrorKind, LockInfo, LockName, Locks, Watch, WatchEvent};
use serde_json::{Value, json};

use super::inspect::summary;
use crate::args::Ls;
use crate::exit::{Failure, INTERNAL, OK, chain};
use crate::guardian::{Signal, Signals};
use crate::output::{self, lock_json, say};
use crate::settings;

/// How often it looks where nobody tells.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Between two tries to watch again.
const PAUSE: Duration = Duration::from_millis(500);

/// The state first, then changes, until a signal comes.
pub(super) async fn watch(args: Ls) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "watch").await?;
    let mut signals =
        Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))?;
    let mut told = Told::new(args.json);
    let watching = async {
        match locks.watch(prefix.as_ref()) {
            Ok(watch) => follow(&locks, prefix.as_ref(), watch, &mut told).await,
            Err(error) if error.kind == BackendErrorKind::Unsupported => {
                look(&locks, prefix.as_ref(), &mut told).await
            }
            Err(error) => Err(error.into()),
        }
    };
    tokio::select! {
        failed = watching => failed.map(|never| match never {}),
        () = ended(&mut signals) => Ok(OK),
    }
}

/// Somebody has seen enough.
async fn ended(signals: &mut Signals) {
    use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    while !matches!(signals.next().await.signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {}
}

/// Never ends well.
type Never = std::convert::Infallible;

/// The service tells. It may go away and come back.
async fn follow(
    locks: &Locks,
    prefix: Option<&LockName>,
    mut watch: Watch,
    told: &mut Told,
) -> Result<Never, Failure> {
    loop {
        let cut = follow_once(&mut watch, told).await?;
        if cut.kind != BackendErrorKind::Unreachable {
            return Err(cut.into());
        }
        told.interrupted(&cut)?;
        tokio::time::sleep(PAUSE).await;
        watch = locks.watch(prefix)?;
    }
}

/// To the end of one stream; why it ended.
async fn follow_once(watch: &mut Watch, told: &mut Told) -> Result<BackendError, Failure> {
    told.begin();
    loop {
        match watch.next().await {
            Some(Ok(WatchEvent::State(info) | WatchEvent::Changed(info))) => told.lock(info)?,
            Some(Ok(WatchEvent::Synced)) => told.synced()?,
            // A newer library may know more.
            Some(Ok(_)) => {}
            Some(Err(error)) => return Ok(error),
            None => return Err(Failure::new(INTERNAL, "the watch ended without saying why; watch again")),
        }
    }
}

/// Nobody tells. What begins and ends between two looks is not seen, but a holder that came and went shows in the next
/// token.
async fn look(locks: &Locks, prefix: Option<&LockName>, told: &mut Told) -> Result<Never, Failure> {
    loop {
        told.begin();
        for info in locks.list(prefix).await? {
            told.lock(info)?;
        }
        told.synced()?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What was printed.
struct Told {
    json: bool,
    /// What is known of each lock that is in use.
    known: BTreeMap<LockName, String>,
    /// Those that were named since the state began to come.
    seen: BTreeMap<LockName, String>,
    /// The state came whole at least once.
    was_synced: bool,
    /// The state is coming.
    is_syncing: bool,
    is_interrupted: bool,
}

impl Told {
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

    /// The state comes now.
    fn begin(&mut self) {
        self.seen.clear();
        self.is_syncing = true;
    }

    fn lock(&mut self, info: LockInfo) -> Result<(), Failure> {
        let now = fingerprint(&info);
        let is_vacant = info.holders.is_empty() && info.waiter_count == 0;
        let is_unused = is_vacant && info.limit.is_none();
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

    /// The state is whole: what was known and did not come is not in use any more.
    fn synced(&mut self) -> Result<(), Failure> {
        let gone: Vec<LockName> =
            self.known.keys().filter(|name| !self.seen.contains_key(*name)).cloned().collect();
        for name in gone {
            self.known.remove(&name);
            self.print("vacant", &name, None)?;
        }
        self.is_syncing = false;
        self.seen.clear();
        if self.is_interrupted {
            say("watching again; what changed meanwhile is told as one change a lock");
        }
        let is_news = !self.was_synced || self.is_interrupted;
        self.was_synced = true;
        self.is_interrupted = false;
        if is_news && self.json {
            return output::json(&json!({ "event": "synced", "name": null, "lock": null }));
        }
        Ok(())
    }

    /// Once for each interruption.
    fn interrupted(&mut self, error: &BackendError) -> Result<(), Failure> {
        if std::mem::replace(&mut self.is_interrupted, true) {
            return Ok(());
        }
        say(format_args!("the watch is interrupted: {}; trying again until it works", chain(error)));
        if self.json {
            output::json(&json!({ "event": "interrupted", "name": null, "lock": null }))?;
        }
        Ok(())
    }

    fn print(&self, event: &str, name: &LockName, info: Option<&LockInfo>) -> Result<(), Failure> {
        if self.json {
            let lock = info.map_or(Value::Null, lock_json);
            return output::json(&json!({ "event": event, "name": name.as_str(), "lock": lock }));
        }
        match info {
            Some(info) => output::line(summary(info)),
            None => output::line(format!("{name}  free")),
        }
    }
}

/// What must differ for a change to be worth a line: not the ages.
fn fingerprint(info: &LockInfo) -> String {
    let holders: Vec<_> = info
        .holders
        .iter()
        .map(|holder| (holder.token, std::mem::discriminant(&holder.state), holder.mode))
        .collect();
    format!("{holders:?} {} {:?}", info.waiter_count, info.limit)
}
