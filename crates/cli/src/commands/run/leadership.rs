//! How `elect` reports leadership to other programs: a health check (`--health`), and hooks (`--on-elected`,
//! `--on-lost`).
//!
//! Responsible for: nothing here delays the end of leadership. The health check reads the deadline by which
//! the guardian ends the command, so it answers 503 on time even if this process was stopped meanwhile. Hooks
//! run beside the command; `elect` waits for them only at its own end.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::exit::{Failure, UNAVAILABLE};
use crate::guardian::boot_now;
use crate::output::say;

/// Maximum number of health checks at once; further ones wait.
const CHECKS_MAX: usize = 64;
/// Time limit for one health check, with its connection.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// A hook that still runs after this time is killed.
const HOOK_LIMIT: Duration = Duration::from_secs(30);
/// How often a hook's end is polled.
const HOOK_POLL: Duration = Duration::from_millis(20);

/// Until when this candidate leads.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// When SIGTERM is due (`CLOCK_BOOTTIME`, ns); 0: it does not lead; `u64::MAX`: there is no deadline.
    until: AtomicU64,
}

impl Leadership {
    fn leads(&self) -> bool {
        boot_now() < self.until.load(Ordering::Relaxed)
    }
}

/// Reports a leadership, from the start of its command to the SIGTERM that ends it.
pub(super) struct ShownLeadership<'a> {
    of: Option<&'a Leadership>,
    /// In ns.
    grace: u64,
    is_over: bool,
}

impl<'a> ShownLeadership<'a> {
    pub(super) fn begin(of: Option<&'a Leadership>, grace: u64) -> Self {
        Self { of, grace, is_over: false }
    }

    /// Shows that the command runs until this deadline at most (`CLOCK_BOOTTIME`, ns); `None`: there is none.
    pub(super) fn until(&self, deadline: Option<u64>) {
        if let Some(of) = self.of.filter(|_| !self.is_over) {
            of.until.store(deadline.map_or(u64::MAX, |at| at.saturating_sub(self.grace)), Ordering::Relaxed);
        }
    }

    pub(super) fn over(&mut self) {
        self.is_over = true;
        if let Some(of) = self.of {
            of.until.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for ShownLeadership<'_> {
    fn drop(&mut self) {
        self.over();
    }
}

/// Answers health checks at `address`, until this program ends: HTTP status 200 while it leads, else 503.
///
/// # Errors
/// The address can't be listened on.
pub(super) async fn answer_health_checks(address: &str, of: Arc<Leadership>) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::system(UNAVAILABLE, &format!("--health {address}"), &error))?;
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(CHECKS_MAX));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((socket, _)) = listener.accept().await else {
                // Out of descriptors, most likely.
                sleep(HOOK_POLL).await;
                continue;
            };
            let of = of.clone();
            tokio::spawn(async move {
                let _place = place;
                let answer = service_fn(move |_: Request<Incoming>| {
                    let leads = of.leads();
                    async move { Ok::<_, Infallible>(health(leads)) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).keep_alive(false);
                // An error is the caller's: it has gone, or speaks no HTTP.
                let _ = timeout(CHECK_LIMIT, http.serve_connection(TokioIo::new(socket), answer)).await;
            });
        }
    });
    Ok(())
}

fn health(leads: bool) -> Response<String> {
    let (status, text) = match leads {
        true => (StatusCode::OK, "leads\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "does not lead\n"),
    };
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    response
}

/// Runs `--on-elected` and `--on-lost`, one after the other: the next one ends an earlier one that still
/// runs.
pub(super) struct Hooks {
    /// Each hook's option, its shell command, and the token for it.
    due: UnboundedSender<DueHook>,
    task: JoinHandle<()>,
}

struct DueHook {
    option: &'static str,
    shell: String,
    name: String,
    token: Option<u64>,
}

impl Hooks {
    pub(super) fn start() -> Self {
        let (due, receiver) = unbounded_channel();
        Self { due, task: tokio::spawn(run_hooks(receiver)) }
    }

    /// Starts a hook soon; returns at once.
    pub(super) fn run(&self, option: &'static str, shell: &str, name: &str, token: Option<u64>) {
        let due = DueHook { option, shell: shell.to_owned(), name: name.to_owned(), token };
        // Fails only if the task has panicked, which the panic's own message says.
        let _ = self.due.send(due);
    }

    /// Waits for the last hook, at most [`HOOK_LIMIT`].
    pub(super) async fn finish(self) {
        drop(self.due);
        let _ = self.task.await;
    }
}

async fn run_hooks(mut due: UnboundedReceiver<DueHook>) {
    let mut next = due.recv().await;
    while let Some(hook) = next.take() {
        let why = match start_hook(&hook) {
            Ok(mut child) => {
                let why = until_end_or_next(&mut child, &mut due, &mut next).await;
                kill(&mut child);
                why
            }
            Err(error) => Some(format!("could not be started: {error}")),
        };
        if let Some(why) = why {
            say(format_args!("`{}`: {} {why}; the leadership does not depend on it", hook.name, hook.option));
        }
        if next.is_none() {
            next = due.recv().await;
        }
    }
}

/// Waits until the hook has ended, its time is over, or `next` is due. Returns what went wrong, for users.
async fn until_end_or_next(
    child: &mut Child,
    due: &mut UnboundedReceiver<DueHook>,
    next: &mut Option<DueHook>,
) -> Option<String> {
    let over = sleep(HOOK_LIMIT);
    tokio::pin!(over);
    let mut is_last = false;
    loop {
        tokio::select! {
            ended = until_end(child) => return match ended {
                Ok(status) if status.success() => None,
                Ok(status) => Some(format!("has failed ({status})")),
                Err(error) => Some(format!("can't be waited for: {error}")),
            },
            () = &mut over => {
                return Some(format!("still ran after {} s and was killed", HOOK_LIMIT.as_secs()));
            }
            later = due.recv(), if !is_last => {
                if later.is_some() {
                    *next = later;
                    return Some("still ran at the next change and was killed".to_owned());
                }
                is_last = true;
            }
        }
    }
}

fn start_hook(hook: &DueHook) -> std::io::Result<Child> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &hook.shell]).stdin(Stdio::null()).process_group(0);
    command.env("LOCKKEEPER_NAME", &hook.name);
    match hook.token {
        Some(token) => command.env("LOCKKEEPER_TOKEN", token.to_string()),
        None => command.env_remove("LOCKKEEPER_TOKEN"),
    };
    command.spawn()
}

/// Polls, since only a process that is not reaped yet may be killed by its id.
async fn until_end(child: &mut Child) -> std::io::Result<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None => sleep(HOOK_POLL.max(begun.elapsed() / 20)).await,
        }
    }
}

/// Kills the hook with all processes of its group, unless it has ended.
fn kill(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        // Fails if the group has just ended.
        let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        let _ = child.wait();
    }
}
