//! `verify --follow`: checks histories while they are written, and compares them with what lock services say.
//!
//! Lines are checked as they come: the checker takes them in any order. What a lock service says of its
//! holders is written as answers without a beginning: that a token was held by the time the news arrived. The
//! marks of fences are asked for again and again.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{BootInstant, HolderState, LockInfo, Reach, Token, WatchEvent};
use lockkeeper_history::{
    HistoryEvent, HistoryLine, MarkedEvent, StatusEvent, TokenAnswer, WriterEvent, host_clock, service_of,
};
use lockkeeper_verify::{Checker, parse};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Report, metrics, opened};
use crate::args::{FenceTarget, Verify};
use crate::commands::fence::FenceStore;
use crate::exit::{CONFIG, Failure, INTERNAL};
use crate::guardian::Signals;
use crate::output::say;
use crate::settings;

/// How often files are looked at.
const EVERY: Duration = Duration::from_millis(100);
/// How often the figures are told.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// How often the metrics are written.
const METRICS_EVERY: Duration = Duration::from_secs(1);
/// The pause before another attempt to watch.
const PAUSE: Duration = Duration::from_millis(500);
/// How many lines are read of one file before the others have their turn.
const TURN: usize = 10_000;

/// Checks until a signal comes.
pub(in crate::commands) async fn follow(args: Verify) -> Result<u8, Failure> {
    let mut signals =
        Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))?;
    let mut files =
        args.files.iter().map(|path| Followed::open(path)).collect::<Result<Vec<_>, Failure>>()?;
    let (sender, mut news) = unbounded_channel();
    for url in &args.locks {
        let locks = settings::connect(url, "verify").await?;
        tokio::spawn(watch(locks, url.clone(), sender.clone()));
    }
    for target in &args.fences {
        let store = FenceStore::open(&target_of(target)).await?;
        tokio::spawn(look(store, target.clone(), sender.clone()));
    }
    drop(sender);
    let (mut checker, mut report) = (Checker::default(), Report::new(&args));
    let mut told = BootInstant::now();
    let (mut metrics_at, mut newest) = (told, 0);
    loop {
        let mut is_behind = false;
        for file in &mut files {
            is_behind |= file.read(&mut checker, &mut newest)?;
        }
        heard(&mut news, &mut checker)?;
        report.show(checker.take_violations())?;
        let now = BootInstant::now();
        if let Some(path) = args.metrics.as_deref().filter(|_| now >= metrics_at) {
            metrics_at = now + METRICS_EVERY;
            metrics::write(path, &checker, newest)?;
        }
        if now - told >= TOLD_EVERY {
            told = now;
            let (counts, (open, locks)) = (checker.counts(), checker.size());
            say(format!(
                "{} operations, {} violations; {open} holds of {locks} locks; the last line is {} ms old",
                counts.operations(),
                counts.violations,
                now.as_nanos().saturating_sub(newest) / 1_000_000
            ));
        }
        let pause = if is_behind { Duration::ZERO } else { EVERY };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = signals.until_end() => return report.end(&checker.counts()),
        }
    }
}

/// A file that is being written.
struct Followed {
    path: PathBuf,
    reader: BufReader<std::fs::File>,
    /// The beginning of a line whose end is not there yet.
    begun: String,
    number: u64,
}

impl Followed {
    fn open(path: &Path) -> Result<Self, Failure> {
        let reader = BufReader::with_capacity(1 << 18, opened(path)?);
        Ok(Self { path: path.to_owned(), reader, begun: String::new(), number: 0 })
    }

    /// Checks new lines; returns whether there are more.
    fn read(&mut self, checker: &mut Checker, latest: &mut u64) -> Result<bool, Failure> {
        for _ in 0..TURN {
            let read = self.reader.read_line(&mut self.begun);
            let length = read.map_err(|error| {
                Failure::system(crate::exit::IO, &format!("cannot read `{}`", self.path.display()), &error)
            })?;
            if length == 0 || !self.begun.ends_with('\n') {
                return Ok(false);
            }
            self.number += 1;
            let line = parse(&self.begun).map_err(|error| {
                Failure::new(CONFIG, format!("{}: line {}: {error}", self.path.display(), self.number))
            })?;
            self.begun.clear();
            if let Some(line) = line {
                *latest = (*latest).max(line.at);
                checker.push(line);
            }
        }
        Ok(true)
    }
}

/// Tells the checker what this process has found out.
struct NewsWriter {
    by: String,
    news: UnboundedSender<Result<HistoryLine, Failure>>,
}

impl NewsWriter {
    fn begin(by: String, clock: &str, news: UnboundedSender<Result<HistoryLine, Failure>>) -> Self {
        let writer = Self { by, news };
        writer.tell(HistoryEvent::Writer(WriterEvent {
            format: lockkeeper_history::FORMAT,
            clock: clock.to_owned(),
            label: "lockkeeper verify".to_owned(),
        }));
        writer
    }

    /// Sends a line. Returns false if the receiver is closed.
    fn tell(&self, event: HistoryEvent) -> bool {
        let at = BootInstant::now().as_nanos();
        self.news.send(Ok(HistoryLine { at, by: self.by.clone(), event })).is_ok()
    }
}

/// Checks what the watches have told.
fn heard(
    news: &mut UnboundedReceiver<Result<HistoryLine, Failure>>,
    checker: &mut Checker,
) -> Result<(), Failure> {
    while let Ok(line) = news.try_recv() {
        checker.push(line?);
    }
    Ok(())
}

/// Tells of every holder that the service reports, from now on.
async fn watch(locks: lockkeeper::Locks, url: String, news: UnboundedSender<Result<HistoryLine, Failure>>) {
    let clock = host_clock().unwrap_or_default();
    let of = if locks.capabilities().reach == Reach::Network { "" } else { &clock };
    let service = service_of(&url, of);
    let writer = NewsWriter::begin(format!("watch {service}"), &clock, news);
    loop {
        let mut watch = match locks.watch(None) {
            Ok(watch) => watch,
            Err(error) => {
                let _ = writer.news.send(Err(error.into()));
                return;
            }
        };
        while let Some(Ok(event)) = watch.next().await {
            let (WatchEvent::State(info) | WatchEvent::Changed(info)) = event else { continue };
            if !current(&info, &service).all(|event| writer.tell(event)) {
                return;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// `TARGET#RESOURCE`, or a file.
fn target_of(text: &str) -> FenceTarget {
    let named = text.rsplit_once('#').filter(|(target, _)| target.contains("://"));
    let (target, resource) = named.map_or((text, None), |(target, name)| (target, Some(name.to_owned())));
    FenceTarget { target: target.into(), resource, json: true }
}

/// Tells of the marks of a fence, from now on. What can't be read now is read later: a fence that is damaged
/// refuses everybody, and says so.
async fn look(store: FenceStore, target: String, news: UnboundedSender<Result<HistoryLine, Failure>>) {
    let resource = match (&store, target.rsplit_once('#')) {
        (FenceStore::File(fence), _) => fence.path().display().to_string(),
        (_, Some((_, resource))) => resource.to_owned(),
        (_, None) => target.clone(),
    };
    let writer = NewsWriter::begin(format!("fence {target}"), &host_clock().unwrap_or_default(), news);
    let mut last = None;
    loop {
        let asked = BootInstant::now().as_nanos();
        if let Ok(marks) = store.marks().await
            && last.as_ref() != Some(&marks)
        {
            let slots = marks.slots.keys().map(|slot| (format!("{resource}#{slot}"), marks.effective(*slot)));
            for (resource, pair) in std::iter::once((resource.clone(), marks.base)).chain(slots) {
                // Only what has passed for writing comes in the order of tokens.
                let Some(token) = pair.writer.map(Token::get) else { continue };
                if !writer.tell(HistoryEvent::Marked(MarkedEvent { resource, asked, token })) {
                    return;
                }
            }
            last = Some(marks);
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The holders of a lock, as answers.
fn current<'a>(info: &'a LockInfo, service: &'a str) -> impl Iterator<Item = HistoryEvent> + 'a {
    let live =
        info.holds.iter().filter(|hold| !hold.cached && !matches!(hold.state, HolderState::Closed { .. }));
    live.filter_map(|hold| hold.token).map(|token| {
        let (service, lock, token) = (service.to_owned(), info.name.as_str().to_owned(), token.get());
        // When the service noticed is not known: only that it was before the news arrived.
        HistoryEvent::Status(StatusEvent { service, lock, token, asked: 0, answer: TokenAnswer::Current })
    })
}
