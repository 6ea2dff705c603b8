//! `elect`: runs a command while it leads, again and again. `leader`: shows who leads.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{BackendError, Leader, LeaderWatch, LockName, Token};
use lockkeeper_http::view::content::shown;
use serde::Serialize;
use serde_json::json;

use super::leadership::{Hooks, Leadership, answer_health_checks};
use super::outage::OutageReport;
use super::{PAUSE, RunEnd, install_signals, pause, under_lock};
use crate::args::{Elect, LeaderArgs, Run};
use crate::exit::{BUSY, Failure, NO, OK};
use crate::guardian::Left;
use crate::output::{self, say};
use crate::settings;

pub(in crate::commands) async fn elect(mut args: Elect) -> Result<u8, Failure> {
    args.command.take_name();
    let options = CampaignOptions {
        once: args.once,
        quiet: args.command.quiet,
        on_elected: args.on_elected,
        on_lost: args.on_lost,
    };
    let run = Run {
        job: args.job,
        command: args.command,
        wait: None,
        try_: false,
        max_waiters: None,
        latest: false,
        reenter: false,
        shared: false,
        permit: None,
        keep_closed: None,
        min_hold: None,
        once_key: None,
        records: None,
        rate: None,
        left: Left::Wait,
        busy_exit: BUSY,
        otlp: None,
        status_file: None,
    };
    let shown = Arc::new(Leadership::default());
    if let Some(address) = &args.health {
        answer_health_checks(address, shown.clone()).await?;
    }
    let hooks = Hooks::start();
    let ended = campaign(&run, &options, &shown, &hooks).await;
    hooks.finish().await;
    ended
}

/// The options of `elect` that `run` does not have.
struct CampaignOptions {
    once: bool,
    quiet: bool,
    on_elected: Option<String>,
    on_lost: Option<String>,
}

/// Campaigns and leads, again and again, until a signal or an error.
async fn campaign(
    run: &Run,
    options: &CampaignOptions,
    shown: &Arc<Leadership>,
    hooks: &Hooks,
) -> Result<u8, Failure> {
    let name = run.command.name.to_string_lossy().into_owned();
    let tell = |text: std::fmt::Arguments<'_>| {
        if !options.quiet {
            say(text);
        }
    };
    let mut signals = install_signals()?;
    let mut outage = OutageReport::default();
    loop {
        let mut elected = None;
        let end = under_lock(run, &mut signals, &mut outage, Some(shown), |hold| {
            let token = hold.token.map(|token| format!(", with token {token}")).unwrap_or_default();
            tell(format_args!("`{name}`: elected{token}"));
            if let Some(shell) = &options.on_elected {
                hooks.run("--on-elected", shell, &name, hold.token);
            }
            elected = Some(hold.token);
        })
        .await;
        if let (Some(token), Some(shell)) = (elected, &options.on_lost) {
            hooks.run("--on-lost", shell, &name, token);
        }
        if end.is_ok() {
            outage.over();
        }
        let is_over = options.once || signals.ended_by().is_some();
        // Lets another candidate lead, and keeps a command that always fails from loading the lock service.
        let until_next = match end {
            Ok(end) if is_over => return Ok(end.exit_code(run)),
            Ok(RunEnd::Lost { .. }) => Duration::ZERO,
            Ok(RunEnd::Ran(command)) => {
                let code = command.exit_code();
                tell(format_args!(
                    "`{name}`: resigned, since the command has ended with exit code {code}; campaigning again"
                ));
                PAUSE
            }
            Ok(
                RunEnd::GuardianDied
                | RunEnd::LeftOpen(..)
                | RunEnd::AlreadyDone(_)
                | RunEnd::Busy(_)
                | RunEnd::TimedOut(_)
                | RunEnd::Interrupted(_),
            ) => PAUSE,
            // Also with `--once`, since this program has not led yet.
            Err(failure) if failure.may_pass && signals.ended_by().is_none() => {
                outage.failed(&failure.message);
                PAUSE
            }
            Err(failure) => return Err(failure),
        };
        if let Some(code) = pause(&mut signals, until_next).await {
            return Ok(code);
        }
    }
}

pub(in crate::commands) async fn leader(args: LeaderArgs) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "leader").await?;
    let election = locks.election(&name);
    if !args.watch {
        let leader = election.leader().await?;
        print(&name, leader.as_ref(), args.json)?;
        return Ok(if leader.is_some() { OK } else { NO });
    }
    let mut signals = install_signals()?;
    tokio::select! {
        failed = follow(&name, election.observe(), args.json) => Err(failed),
        _ = signals.until_end() => Ok(OK),
    }
}

/// Prints each leader. Ends only with an error.
async fn follow(name: &LockName, mut observed: LeaderWatch, json: bool) -> Failure {
    let mut is_interrupted = false;
    loop {
        match observed.next().await {
            Ok(leader) => {
                is_interrupted = false;
                if let Err(failure) = print(name, leader.as_ref(), json) {
                    return failure;
                }
            }
            Err(error) if error.kind.may_pass() => {
                if !is_interrupted {
                    is_interrupted = true;
                    say(interruption(&error));
                }
            }
            Err(error) => return error.into(),
        }
    }
}

fn interruption(error: &BackendError) -> String {
    format!("it is not known who leads, until the lock service answers again: {error}")
}

fn print(name: &LockName, leader: Option<&Leader>, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&json!({ "name": name.as_str(), "leader": leader.map(LeaderView::from) }));
    }
    let Some(leader) = leader else { return output::line(format!("`{}`: nobody leads", name.as_str())) };
    let token = leader.token.map(|token| format!(", token {token}")).unwrap_or_default();
    let value = match String::from_utf8_lossy(&leader.value) {
        none if none.is_empty() => String::new(),
        value => format!(": {value}"),
    };
    output::line(format!("`{}`: {} leads{token}{value}", name.as_str(), leader.label))
}

/// A leader, with the names that the same fields have in a hold (docs/json.md).
#[derive(Serialize)]
struct LeaderView {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

impl From<&Leader> for LeaderView {
    fn from(leader: &Leader) -> Self {
        let (value, value_base64) = shown(leader.value.clone());
        Self { token: leader.token.map(Token::get), label: leader.label.clone(), value, value_base64 }
    }
}
