//! The script's side of a play: the processes of the actors, the points at which they are held, and the
//! faults.
//!
//! Guarantees: every wait has a time limit; all actors, and what they have started, end with the scene.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::actor::{Cue, Message};
use crate::{Pitfall, Result, Variant, Verdict};

/// How long an actor may take to reach a point. Far more than any play needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One line of a play's trace.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Line {
    /// Milliseconds since the first actor was started.
    pub at_ms: u64,
    /// What kind of line it is.
    pub kind: LineKind,
    /// The actor; empty if it is the script.
    pub actor: String,
    /// What happens.
    pub text: String,
}

/// The kind of a line of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LineKind {
    /// An actor did something.
    Step,
    /// The script injected a fault, did what an operator does, or measured something.
    Script,
}

/// Plays a pitfall with one of its programs. `actor` is the command line of a process that calls
/// [`crate::act`]; `watch` gets each line as it happens.
///
/// # Errors
/// The play failed: a server or an actor does not start, an actor ends with an error, or a point is not
/// reached.
///
/// # Panics
/// A server does not start: see `lockkeeper_rig`.
pub fn play(
    pitfall: &'static Pitfall,
    variant: Variant,
    actor: &[&OsStr],
    watch: &mut dyn FnMut(&Line),
) -> Result<Verdict> {
    let (sender, events) = channel();
    let mut scene = Scene {
        pitfall,
        variant,
        command: actor,
        urls: BTreeMap::new(),
        actors: BTreeMap::new(),
        sender,
        events,
        began: None,
        watch,
    };
    (pitfall.script)(&mut scene)
}

/// Where an actor is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    /// At this point, where it waits.
    At(String),
    /// Its program has come to its end.
    End,
}

/// One play. See the module's text.
pub(crate) struct Scene<'play> {
    pitfall: &'static Pitfall,
    variant: Variant,
    command: &'play [&'play OsStr],
    urls: BTreeMap<&'static str, String>,
    actors: BTreeMap<&'static str, ActorProcess>,
    sender: Sender<(&'static str, Instant, ActorEvent)>,
    events: Receiver<(&'static str, Instant, ActorEvent)>,
    began: Option<Instant>,
    watch: &'play mut dyn FnMut(&Line),
}

enum ActorEvent {
    Message(Message),
    /// The actor has closed its standard output.
    Closed,
}

struct ActorProcess {
    child: Child,
    go: ChildStdin,
    /// The points at which it is held; it passes all others.
    stops: &'static [&'static str],
    reached: Option<Reached>,
}

impl Drop for ActorProcess {
    fn drop(&mut self) {
        // The group also has the processes that the actor has started.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl ActorProcess {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("the system's pids are i32"))
    }
}

impl Scene<'_> {
    /// Gives actors that are started from now on the URL of a server, as
    /// [`Actor::url`](crate::actor::Actor::url).
    pub(crate) fn serve(&mut self, server: &'static str, url: impl Into<String>) {
        self.urls.insert(server, url.into());
    }

    /// Starts an actor, which runs until it reaches one of `stops` or its end, and waits until then.
    pub(crate) fn start(&mut self, actor: &'static str, stops: &'static [&'static str]) -> Result<Reached> {
        self.start_by(&[], actor, stops)
    }

    /// As [`start`](Self::start), by a program that starts the actor: `wrapper` is its command line.
    pub(crate) fn start_by(
        &mut self,
        wrapper: &[&OsStr],
        actor: &'static str,
        stops: &'static [&'static str],
    ) -> Result<Reached> {
        self.enter(wrapper, actor, stops)?;
        self.wait(actor)
    }

    /// Starts an actor, as [`start_by`](Self::start_by), and doesn't wait.
    fn enter(&mut self, wrapper: &[&OsStr], actor: &'static str, stops: &'static [&'static str]) -> Result {
        let words = [wrapper, self.command].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must reach the script only; and the group has what the actor starts.
            .process_group(0)
            .spawn()?;
        let (Some(mut go), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("an actor was started without its pipes".into());
        };
        let cue = Cue {
            pitfall: self.pitfall.name.to_owned(),
            variant: self.variant,
            actor: actor.to_owned(),
            urls: self.urls.iter().map(|(name, url)| ((*name).to_owned(), url.clone())).collect(),
        };
        writeln!(go, "{}", serde_json::to_string(&cue)?)?;
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            // Sending fails only if the play has ended.
            for line in BufReader::new(says).lines().map_while(std::io::Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or(Message::Error { text: line });
                let _ = sender.send((actor, Instant::now(), ActorEvent::Message(message)));
            }
            let _ = sender.send((actor, Instant::now(), ActorEvent::Closed));
        });
        self.began.get_or_insert_with(Instant::now);
        self.actors.insert(actor, ActorProcess { child, go, stops, reached: None });
        Ok(())
    }

    /// Lets an actor go on from its point, to one of `stops` or its end, and waits until it is there.
    pub(crate) fn until(&mut self, actor: &'static str, stops: &'static [&'static str]) -> Result<Reached> {
        self.go(actor, stops)?;
        self.wait(actor)
    }

    /// As [`until`](Self::until) for the end.
    pub(crate) fn end(&mut self, actor: &'static str) -> Result {
        self.until(actor, &[]).map(drop)
    }

    /// Lets an actor go on from its point, and doesn't wait.
    pub(crate) fn go(&mut self, actor: &'static str, stops: &'static [&'static str]) -> Result {
        let it = self.actor(actor)?;
        it.stops = stops;
        if let Some(Reached::At(_)) = it.reached.take_if(|reached| *reached != Reached::End) {
            writeln!(it.go)?;
        }
        Ok(())
    }

    /// Waits until an actor is at one of its stops or at its end.
    pub(crate) fn wait(&mut self, actor: &'static str) -> Result<Reached> {
        match self.wait_for(actor, PATIENCE)? {
            Some(reached) => Ok(reached),
            None => Err(format!("{actor} reaches nothing within {PATIENCE:?}").into()),
        }
    }

    /// As [`wait`](Self::wait), for at most `limit`; `None` if it is neither at a stop nor at its end by
    /// then.
    pub(crate) fn wait_for(&mut self, actor: &'static str, limit: Duration) -> Result<Option<Reached>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(reached) = &self.actor(actor)?.reached {
                return Ok(Some(reached.clone()));
            }
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((who, at, event)) => self.handle(who, at, event)?,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err("the actors' messages have ended".into()),
            }
        }
    }

    /// Whether an actor that waits for something reaches a stop or its end. `never` looks for the proof that
    /// it can't, each time that the actor has waited for `period` in vain.
    pub(crate) fn comes(
        &mut self,
        actor: &'static str,
        period: Duration,
        mut never: impl FnMut() -> bool,
    ) -> Result<bool> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.wait_for(actor, period)?.is_some() {
                return Ok(true);
            }
            if never() {
                return Ok(false);
            }
        }
        Err(format!("{actor} reaches nothing within {PATIENCE:?}, and nothing proves that it can't").into())
    }

    fn handle(&mut self, who: &'static str, at: Instant, event: ActorEvent) -> Result {
        match event {
            ActorEvent::Message(Message::Step { point, text }) => {
                self.line(at, LineKind::Step, who, text);
                if let (Some(point), Some(actor)) = (point, self.actors.get_mut(who)) {
                    if actor.stops.contains(&point.as_str()) {
                        actor.reached = Some(Reached::At(point));
                    } else {
                        writeln!(actor.go)?;
                    }
                }
                Ok(())
            }
            ActorEvent::Message(Message::End) => {
                if let Some(actor) = self.actors.get_mut(who) {
                    actor.reached = Some(Reached::End);
                }
                Ok(())
            }
            ActorEvent::Message(Message::Error { text }) => Err(format!("{who}: {text}").into()),
            ActorEvent::Closed => match self.actors.get(who) {
                Some(actor) if actor.reached != Some(Reached::End) => {
                    Err(format!("{who} has ended without a word").into())
                }
                _ => Ok(()),
            },
        }
    }

    /// Stops an actor's process (SIGSTOP), as a garbage collection, a swapped-out page or a suspended VM
    /// does.
    pub(crate) fn pause(&mut self, actor: &'static str) -> Result {
        let pid = self.actor(actor)?.pid();
        kill(pid, Signal::SIGSTOP)?;
        // WNOWAIT: a process that has ended is not reaped here.
        waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
        self.note(format!("{actor} stands still (SIGSTOP): a long GC pause, a suspended VM"));
        Ok(())
    }

    /// Continues a stopped actor's process. It still waits at its point.
    pub(crate) fn resume(&mut self, actor: &'static str) -> Result {
        kill(self.actor(actor)?.pid(), Signal::SIGCONT)?;
        self.note(format!("{actor} goes on, and knows nothing of it"));
        Ok(())
    }

    /// Kills an actor's process, but nothing that it has started.
    pub(crate) fn kill(&mut self, actor: &'static str) -> Result {
        let it = self.actor(actor)?;
        it.child.kill()?;
        it.child.wait()?;
        it.reached = Some(Reached::End);
        self.note(format!("{actor} is killed (SIGKILL)"));
        Ok(())
    }

    /// Adds a line of the script: a fault, what an operator does, or a measurement.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.line(Instant::now(), LineKind::Script, "", text.into());
    }

    fn line(&mut self, at: Instant, kind: LineKind, actor: &str, text: String) {
        let began = self.began.unwrap_or(at);
        let at_ms = u64::try_from(at.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX);
        (self.watch)(&Line { at_ms, kind, actor: actor.to_owned(), text });
    }

    fn actor(&mut self, actor: &'static str) -> Result<&mut ActorProcess> {
        self.actors.get_mut(actor).ok_or_else(|| format!("{actor} was not started").into())
    }
}
