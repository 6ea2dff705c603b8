//! Inspection: holders, waiters, names in use; and an operator's break.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_backend::leased::EntryId;
use lockkeeper_backend::{
    BackendError, BackendErrorKind, BreakOrder, Broken, CallError, HolderInfo, HolderState, Host, LockInfo,
    WaiterInfo,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::answers::Items;
use super::layout::{self, Hold, KeySet, foreign_holder};
use super::link::{Failure, Over};
use super::refusal::{self, PASSING_PAUSE};
use super::role;
use super::scripts::{SCRIPTS, Script};
use super::slots::{Range, ranges};
use super::store::RedisStore;

/// Used as the entry id in calls about a whole name.
const NO_ENTRY: EntryId = EntryId(String::new());
/// How many waiters an inspection lists.
const WAITERS_SHOWN: usize = 20;
/// Time limit of one command.
const LIMIT: Duration = Duration::from_secs(5);
/// Largest number of keys in a database whose locks are listed: a `SCAN` visits every key.
const KEYS_MAX: u64 = 1_000_000;
/// Keys that one `SCAN` step visits.
const STEP: usize = 1000;
/// Largest number of steps of one `SCAN`. A dense table of [`KEYS_MAX`] keys needs a thousand. Redis skips up
/// to ten empty buckets for each key of a step, so this suffices for a table that has shrunk to a hundredth.
const STEPS_MAX: usize = 10_000;

/// The state of a name on one server.
#[derive(Clone, Debug, Default)]
pub struct NameState {
    /// Live and closed holds.
    pub holds: Vec<Seen>,
    /// The first [`WAITERS_SHOWN`] waiters.
    pub waiters: Vec<WaiterInfo>,
    /// How many waiters there are.
    pub waiter_count: usize,
    /// The limit of permits, while any is held.
    pub limit: Option<u32>,
    /// The greatest token that may have been drawn for it.
    last_token: u64,
}

/// A holder, decoded from its key.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its entry; `None` if another client holds it.
    pub id: Option<EntryId>,
    /// The holder, for display.
    pub info: HolderInfo,
}

impl Seen {
    fn of(hold: Hold, slot: Option<u32>, left: Duration, now: u64) -> Self {
        Self { info: hold.shown(slot, left, now), id: Some(hold.id) }
    }
}

impl NameState {
    pub(super) fn into_info(self, name: LockName) -> LockInfo {
        let mut holders: Vec<HolderInfo> = self.holds.into_iter().map(|seen| seen.info).collect();
        holders.sort_by_key(|holder| holder.token);
        LockInfo {
            waiter_count: self.waiter_count,
            waiters: self.waiters,
            permits: self.limit,
            ..LockInfo::held_by(name, holders)
        }
    }

    fn is_in_use(&self) -> bool {
        !self.holds.is_empty() || self.waiter_count > 0
    }
}

impl RedisStore {
    /// The state of a name on this server.
    pub async fn inspect(&self, name: &LockName) -> Result<NameState, BackendError> {
        self.check_name(name)?;
        let answer = self.run(&SCRIPTS.inspect, &self.inspect_call(name)).await?;
        self.refuse_replica().await?;
        self.decoded(name, &answer)
    }

    /// The names at and below `below` that clients of this library use, in order.
    pub async fn list(&self, below: Option<&LockName>) -> Result<Vec<(LockName, NameState)>, BackendError> {
        let names = self.names(below).await?;
        let calls: Vec<Cmd> = names.iter().map(|name| self.inspect_call(name)).collect();
        let until = deadline();
        let answers = loop {
            match self.link.run_all(Over::Runtime, &SCRIPTS.inspect, &calls, LIMIT).await {
                Ok(answers) => break answers,
                Err(failure) => self.pause_after(failure, until).await?,
            }
        };
        self.refuse_replica().await?;
        let mut list = Vec::with_capacity(names.len());
        for (name, answer) in names.into_iter().zip(answers) {
            let state = self.decoded(&name, &answer)?;
            if state.is_in_use() {
                list.push((name, state));
            }
        }
        Ok(list)
    }

    /// The cluster's map of slots, as this node at `host` reports it.
    pub(super) async fn slots(&self, host: &Host) -> Result<Vec<Range>, BackendError> {
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let answer = self.ask(ask).await?;
        ranges(&answer, host).ok_or_else(|| self.unexpected("CLUSTER SLOTS", &answer))
    }

    /// Classifies a token (B4).
    pub(super) async fn check_token(&self, name: &LockName, token: u64) -> Result<TokenStatus, BackendError> {
        let state = self.inspect(name).await?;
        let held = state.holds.iter().filter(|seen| seen.info.state == HolderState::Held);
        let mut live: Vec<Token> = held.filter_map(|seen| seen.info.token).collect();
        live.sort_unstable();
        Ok(if token == 0 || token > state.last_token {
            TokenStatus::NeverIssued
        } else if live.iter().any(|held| held.get() == token) {
            TokenStatus::Current
        } else {
            TokenStatus::NotCurrent { live }
        })
    }

    /// Breaks a hold by its token (B1 to B3).
    pub(super) async fn break_hold(&self, order: &BreakOrder) -> Result<Broken, BackendError> {
        self.check_name(&order.name)?;
        let mut call = SCRIPTS.break_hold.call(&self.keys(&order.name), KeySet::All, &NO_ENTRY);
        call.arg(order.token.get()).arg(if order.now { "now" } else { "" });
        call.arg(layout::one_line(&order.reason)).arg(layout::one_line(&order.by));
        let answer = self.run(&SCRIPTS.break_hold, &call).await?;
        broken(&answer).ok_or_else(|| self.unexpected("EVALSHA", &answer))
    }
}

/// Decodes the reply of `break_hold.lua`.
fn broken(answer: &Value) -> Option<Broken> {
    let mut items = Items::of(answer)?;
    Some(match items.word()? {
        "done" => Broken::Done,
        "closed" => Broken::StillClosed,
        "other" => {
            let mut live = Vec::new();
            while !items.is_empty() {
                live.push(Token::new(items.number()?)?);
            }
            live.sort_unstable();
            Broken::NotCurrent { live }
        }
        _ => return None,
    })
}

/// Decodes the reply of `inspect.lua`. `Err`: the lock's key has this type, which is not a lock's.
fn decode_state(answer: &Value) -> Option<Result<NameState, &str>> {
    let mut items = Items::of(answer)?;
    let (now, kind, value) = (items.number()?, items.word()?, items.bytes()?);
    // Negative: the key never expires.
    let left = u64::try_from(items.integer()?).map_or(Duration::MAX, Duration::from_millis);
    let (mut permits, waiter_count, mut waiting) = (items.list()?, items.number()?, items.list()?);
    let mut state = NameState { waiter_count: usize::try_from(waiter_count).ok()?, ..NameState::default() };
    match kind {
        "none" => {}
        "string" => match layout::Value::decode(value) {
            layout::Value::Ours(hold) => state.holds.push(Seen::of(hold, None, left, now)),
            layout::Value::Permits { limit, .. } => state.limit = Some(limit),
            layout::Value::Foreign(shown) => {
                state.holds.push(Seen { id: None, info: foreign_holder(shown) });
            }
        },
        other => return Some(Err(other)),
    }
    while !permits.is_empty() {
        let (value, slot, left) = (permits.bytes()?, permits.small()?, permits.number()?);
        let hold = Hold::decode(value);
        state.holds.extend(hold.map(|hold| Seen::of(hold, Some(slot), Duration::from_millis(left), now)));
    }
    while !waiting.is_empty() {
        state.waiters.extend(layout::waiter(waiting.bytes()?));
    }
    // The counter expires after 30 days without a grant. All tokens are then below the server's clock, so the
    // clock is the bound.
    let counter = items.number()?;
    state.last_token = if counter > 0 { counter } else { now.saturating_sub(EPOCH_US) };
    Some(Ok(state))
}

/// Decodes the reply of a `SCAN` step: the next cursor, and keys.
fn step(answer: &Value) -> Option<(&str, Vec<&[u8]>)> {
    let mut items = Items::of(answer)?;
    let cursor = items.word().filter(|cursor| cursor.parse::<u64>().is_ok())?;
    let (mut keys, mut page) = (items.list()?, Vec::new());
    while !keys.is_empty() {
        page.push(keys.bytes()?);
    }
    Some((cursor, page))
}

impl RedisStore {
    fn inspect_call(&self, name: &LockName) -> Cmd {
        let mut call = SCRIPTS.inspect.call(&self.keys(name), KeySet::All, &NO_ENTRY);
        call.arg(WAITERS_SHOWN);
        call
    }

    fn decoded(&self, name: &LockName, answer: &Value) -> Result<NameState, BackendError> {
        let state = decode_state(answer).ok_or_else(|| self.unexpected("EVALSHA", answer))?;
        state.map_err(|kind| self.wrong_type(name, kind))
    }

    /// The error for a reply that the command never gives.
    pub(super) fn unexpected(&self, command: &str, reply: &Value) -> BackendError {
        refusal::unexpected(&self.link.server(), command, reply)
    }

    /// Every name in use, found by a scan of the database.
    async fn names(&self, below: Option<&LockName>) -> Result<BTreeSet<LockName>, BackendError> {
        let count = self.ask(redis::cmd("DBSIZE")).await?;
        let Value::Int(keys @ 0..) = count else { return Err(self.unexpected("DBSIZE", &count)) };
        if keys.unsigned_abs() > KEYS_MAX {
            let what = format!(
                "{} has {keys} keys, at most {KEYS_MAX} are looked through for locks; ask for one lock by its name, or \
                 give locks a database of their own",
                self.link.server()
            );
            return Err(BackendError::new(BackendErrorKind::Refused, what));
        }
        let [locks, plain, tagged] = layout::patterns(&self.prefix, below);
        let mut names = BTreeSet::new();
        for (pattern, kind) in [(locks, "string"), (plain, "zset"), (tagged, "zset")] {
            self.scan(&pattern, kind, below, &mut names).await?;
        }
        Ok(names)
    }

    /// Scans the keys of a type (lock keys or queues) that match the pattern, and adds the names of their
    /// locks at and below `below`.
    async fn scan(
        &self,
        pattern: &str,
        kind: &str,
        below: Option<&LockName>,
        names: &mut BTreeSet<LockName>,
    ) -> Result<(), BackendError> {
        let name = |key: &[u8]| {
            let key = std::str::from_utf8(key).ok()?;
            let lock = if kind == "string" { Some(key) } else { layout::lock_of_queue(key) };
            let name = LockName::parse(lock?.strip_prefix(&*self.prefix)?).ok()?;
            below.is_none_or(|below| *below == name || below.is_above(name.as_str())).then_some(name)
        };
        let mut cursor = "0".to_owned();
        let mut steps = 0;
        while steps < STEPS_MAX && names.len() as u64 <= KEYS_MAX {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP).arg("TYPE").arg(kind);
            let answer = self.ask(scan).await?;
            let (next, keys) = step(&answer).ok_or_else(|| self.unexpected("SCAN", &answer))?;
            let page = keys.into_iter().filter_map(name);
            if kind == "string" {
                names.append(&mut self.only_ours(page.collect()).await?);
            } else {
                names.extend(page);
            }
            if next == "0" {
                return Ok(());
            }
            next.clone_into(&mut cursor);
            steps += 1;
        }
        let what = format!(
            "{} has not come to the end of a SCAN after {steps} steps, with {} names so far: at most {STEPS_MAX} steps and \
             {KEYS_MAX} names are taken; ask for one lock by its name, or give locks a database of their own",
            self.link.server(),
            names.len()
        );
        Err(BackendError::new(BackendErrorKind::Operator, what))
    }

    /// The locks whose value this library wrote.
    async fn only_ours(&self, names: Vec<LockName>) -> Result<BTreeSet<LockName>, BackendError> {
        let begins = |name: &LockName| {
            let mut get = redis::cmd("GETRANGE");
            get.arg(self.keys(name).lock()).arg(0).arg(layout::OURS.len() - 1);
            get
        };
        let commands: Vec<Cmd> = names.iter().map(begins).collect();
        let answers = self.link.send_all(Over::Runtime, &commands, deadline()).await;
        let answers = answers.map_err(|failure| self.unanswered(failure))?;
        let mut ours = BTreeSet::new();
        for ((name, get), answer) in names.into_iter().zip(commands).zip(answers) {
            let answer = match answer {
                // The key's type has changed since the scan.
                Value::ServerError(error) if error.code() == "WRONGTYPE" => continue,
                // Repeated if the refusal may pass; otherwise this fails.
                Value::ServerError(_) => self.ask(get).await?,
                answer => answer,
            };
            match answer {
                Value::BulkString(text) if text == layout::OURS.as_bytes() => drop(ours.insert(name)),
                Value::BulkString(_) => {}
                other => return Err(self.unexpected("GETRANGE", &other)),
            }
        }
        Ok(ours)
    }

    /// Sends one plain command.
    pub(super) async fn ask(&self, command: Cmd) -> Result<Value, BackendError> {
        let until = deadline();
        loop {
            match self.link.command(&command, until).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.pause_after(failure, until).await?,
            }
        }
    }

    /// Runs a script.
    async fn run(&self, script: &Script, call: &Cmd) -> Result<Value, BackendError> {
        let until = deadline();
        loop {
            match self.link.run(script, call, until).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.pause_after(failure, until).await?,
            }
        }
    }

    /// Waits before the repeat of a call that the server refused for a reason that passes soon.
    ///
    /// # Errors
    /// It failed for another reason, or there is no time left.
    async fn pause_after(&self, failure: Failure, until: Instant) -> Result<(), BackendError> {
        match failure {
            Failure::TryAgain(_) if Instant::now() + PASSING_PAUSE < until => {
                tokio::time::sleep(PASSING_PAUSE).await;
                Ok(())
            }
            failure => Err(self.unanswered(failure)),
        }
    }

    /// An error if the server is a replica, which may lack locks. Called after the read, so that it also
    /// detects a server that was demoted before the read.
    async fn refuse_replica(&self) -> Result<(), BackendError> {
        let asked = self.link.send_all(Over::Runtime, &[role::ask()], deadline()).await;
        let answers = asked.map_err(|failure| self.unanswered(failure))?;
        match answers.first() {
            Some(answer) if role::is_replica(answer) => {
                self.link.replace();
                Err(refusal::replica(self.link.server()))
            }
            _ => Ok(()),
        }
    }

    fn unanswered(&self, failure: Failure) -> BackendError {
        match failure {
            Failure::Refused(refusal) | Failure::TryAgain(refusal) => refusal.into_error(),
            Failure::Silent(CallError { refusal: Some(refusal), .. }) => (*refusal).clone(),
            Failure::Silent(_) => {
                let silent = || format!("{} does not answer; is it running?", self.link.server());
                BackendError::new(
                    BackendErrorKind::Unreachable,
                    self.link.last_error().unwrap_or_else(silent),
                )
            }
        }
    }
}

fn deadline() -> Instant {
    Instant::now() + LIMIT
}

/// 2026-01-01 in µs since 1970, the origin of tokens (scripts/parts/value.lua).
const EPOCH_US: u64 = 1_767_225_600_000_000;
