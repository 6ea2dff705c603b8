//! A lock with its options: cheap to create and to clone, no I/O before it is acquired.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_backend::{
    AcquireRequest, BackendError, BackendErrorKind, BootInstant, Capabilities, LossCause, Spec, encode_meta,
};
use lockkeeper_core::validate::{AcquireContent, SessionContent};
use lockkeeper_core::{LockName, Mode, NameError, Token, limits};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::error::{AcquireError, HoldError, Lost, ReleaseError};
use crate::guard::{Guard, Held};
use crate::kind::{Kind, Unfenced};
use crate::locks_core::Core;
use crate::machine::{AcquireLimits, NotAcquired};
use crate::observe;
use crate::prepared::Prepared;
use crate::session::{Callbacks, NotHeld};

/// How long an acquire waits for a lock that isn't free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// Do not wait.
    No,
    /// Wait until the lock is granted.
    Forever,
    /// Wait for at most this duration.
    For(Duration),
    /// Wait until this moment.
    Until(BootInstant),
}

/// What [`Lock::run`] does when the lock is lost while the body runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The body continues, and is expected to watch [`Guard::lost`].
    #[default]
    Signal,
    /// The body's future is dropped at once. Only for bodies that may stop at any await point.
    DropBody,
    /// The process aborts.
    AbortProcess,
}

/// A lock that can be acquired. Created by [`Locks`](crate::Locks); each option method returns the changed
/// lock.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<F: Kind = Unfenced> {
    pub(crate) core: Arc<Core>,
    names: Result<Vec<LockName>, NameError>,
    mode: Mode,
    pub(crate) options: Options,
    pub(crate) prepared: OnceLock<Arc<Prepared>>,
    kind: PhantomData<F>,
}

#[derive(Clone)]
pub(crate) struct Options {
    ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) subtree: bool,
    wait: Wait,
    max_waiters: Option<u32>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    keep_closed: Duration,
    lock_delay: Duration,
    linger: Duration,
    pub(crate) min_validity: Duration,
    pub(crate) cached: bool,
    pub(crate) cache_for: Duration,
    grace: Option<Duration>,
    on_lost: OnLost,
    pub(crate) value: Vec<u8>,
    pub(crate) meta: Vec<(String, String)>,
    holding: Vec<Token>,
    on_queued: Option<Arc<dyn Fn(u64) + Send + Sync>>,
    on_refused: Option<OnRefused>,
}

type OnRefused = Arc<dyn Fn(&BackendError) + Send + Sync>;

impl<F: Kind> fmt::Debug for Lock<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { core, names, mode, options, prepared: _, kind: _ } = self;
        let mut shown = f.debug_struct("Lock");
        shown.field("backend", &core.backend_name());
        match names {
            Ok(names) => shown.field("names", names),
            Err(error) => shown.field("error", error),
        };
        shown.field("mode", mode).field("ttl", &options.ttl).field("wait", &options.wait);
        shown.finish_non_exhaustive()
    }
}

impl<F: Kind> Lock<F> {
    pub(crate) fn new(core: Arc<Core>, names: Result<Vec<LockName>, NameError>, mode: Mode) -> Self {
        let options = Options {
            ttl: Duration::from_secs(30),
            renew: true,
            subtree: false,
            wait: Wait::Forever,
            max_waiters: None,
            max_hold: None,
            min_hold: Duration::ZERO,
            keep_closed: Duration::ZERO,
            lock_delay: Duration::ZERO,
            linger: Duration::ZERO,
            min_validity: Duration::ZERO,
            cached: false,
            cache_for: Duration::from_secs(10),
            grace: None,
            on_lost: OnLost::default(),
            value: Vec::new(),
            meta: Vec::new(),
            holding: Vec::new(),
            on_queued: None,
            on_refused: None,
        };
        Self { core, names, mode, options, prepared: OnceLock::new(), kind: PhantomData }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self.prepared = OnceLock::new();
        self
    }

    /// Session ttl: how long the hold outlives its last keep-alive. 1 s to 1 h, 30 s by default; renewed
    /// every third of it. Has no effect where a descriptor or a connection holds the lock
    /// ([`Capabilities::ttl`]).
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|options| options.ttl = ttl)
    }

    /// Disables renewal: the hold ends at most one ttl after it was acquired.
    pub fn no_renew(self) -> Self {
        self.with(|options| options.renew = false)
    }

    /// How long to wait for a lock that is not free; forever by default.
    pub fn wait(self, wait: Wait) -> Self {
        self.with(|options| options.wait = wait)
    }

    /// Waits only if fewer requests than this wait already; otherwise the acquire ends at once with
    /// [`AcquireError::Busy`]. Only our own service and `memory:` can ([`Capabilities::queue_limit`]). With
    /// several names, it counts for each of them.
    pub fn max_waiters(self, most: u32) -> Self {
        self.with(|options| options.max_waiters = Some(most))
    }

    /// Covers all names below the given ones too: a hold of `a` then excludes `a/b/c`.
    pub fn subtree(self) -> Self {
        self.with(|options| options.subtree = true)
    }

    /// Maximum duration of a hold, so that a hung holder does not renew forever. After it the hold counts as
    /// lost, and it ends when the grace period is over: [`Lock::run`] and [`Guard::release`] then report the
    /// loss even if the section stops within the grace. Unlimited by default, for leaders that work for days.
    /// For a section of known length, about ten times its usual duration is a good value.
    pub fn max_hold(self, max: Duration) -> Self {
        self.with(|options| options.max_hold = Some(max))
    }

    /// Minimum duration of a hold, from its grant on, so that hosts whose clocks differ do not run a short
    /// scheduled job one after the other. At most 24 h. [`Guard::release`] and [`Lock::run`] wait for the
    /// rest of it; a dropped guard is released after it in the background, unless
    /// [`Locks::shutdown`](crate::Locks::shutdown) comes first. If the holder dies, the lock stays closed for
    /// the same time (at most 1 h) after the end of the hold, by [`Lock::lock_delay`] where the lock service
    /// supports it.
    pub fn min_hold(self, min: Duration) -> Self {
        self.with(|options| options.min_hold = min)
    }

    /// Keeps the lock closed for this duration after the hold has ended for any reason: at most one hold per
    /// interval, even if the holder dies. At most 24 h.
    pub fn keep_closed(self, duration: Duration) -> Self {
        self.with(|options| options.keep_closed = duration)
    }

    /// Keeps the lock closed for this duration after a hold that ended because its session expired: the
    /// holder vanished without a release. At most 1 h.
    pub fn lock_delay(self, delay: Duration) -> Self {
        self.with(|options| options.lock_delay = delay)
    }

    /// Frees the lock this long after the holder's connection was closed from the holder's side, instead of
    /// after the whole ttl. If a middlebox closes the connection, the service takes that for a close by the
    /// holder, and the hold can end before its holder notices (an exception to P5).
    pub fn linger(self, linger: Duration) -> Self {
        self.with(|options| options.linger = linger)
    }

    /// Minimum remaining validity of a grant. A grant that arrives with less is released and requested again,
    /// never returned.
    pub fn min_validity(self, need: Duration) -> Self {
        self.with(|options| options.min_validity = need)
    }

    /// Grace period between the signal of a loss with advance notice (`max_hold`, a break) and the end of the
    /// hold. By default a sixth of the ttl, or 5 s where holds have no ttl.
    pub fn grace(self, grace: Duration) -> Self {
        self.with(|options| options.grace = Some(grace))
    }

    /// What [`Lock::run`] does when the lock is lost.
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.with(|options| options.on_lost = on_lost)
    }

    /// The value of the hold from its grant on, as by [`Guard::set_value`]. At most 4,096 bytes; empty by
    /// default.
    pub fn value(self, value: impl Into<Vec<u8>>) -> Self {
        self.with(|options| options.value = value.into())
    }

    /// Adds a key and value that describe the hold's purpose to operators. Keys must not contain `=`, neither
    /// part may contain line breaks; 1 KiB in all.
    pub fn meta(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|options| options.meta.push((key.into(), value.into())))
    }

    /// Declares a hold that the caller keeps while it waits for this lock; several calls add holds, at most
    /// 16. If this task holds `a` and waits for `b` without limit, while another holds `b` and waits for `a`,
    /// the newer of the two acquires ends at once with [`AcquireError::Deadlock`], which names the cycle.
    /// It is found only through holds that are declared: whoever waits while it holds should declare them.
    /// Only our own service and `memory:` see all waits; other lock services, and guards without tokens,
    /// ignore the declaration.
    ///
    /// A lock that the task holds itself need not be acquired again: [`Guard::reenter`].
    ///
    /// ```
    /// # async fn example(locks: lockkeeper::Locks) -> Result<(), lockkeeper::AcquireError> {
    /// let order = locks.mutex("orders/42").acquire().await?;
    /// let stock = locks.mutex("stock/7").holding(&order).acquire().await?;
    /// # drop(stock); Ok(()) }
    /// ```
    pub fn holding<G: Kind>(self, guard: &Guard<G>) -> Self {
        guard.token_hint().into_iter().fold(self, Self::holding_token)
    }

    /// As [`Lock::holding`], for a hold of another process on behalf of which this one works: its token on
    /// the same lock service.
    pub fn holding_token(self, token: Token) -> Self {
        self.with(|options| options.holding.push(token))
    }

    /// Callback for the number of waiters ahead: called on every report of the backend, and at least once
    /// when queued.
    pub fn on_queued(self, tell: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.with(|options| options.on_queued = Some(Arc::new(tell)))
    }

    /// Callback for each temporary refusal of the lock service; the acquire continues.
    pub fn on_refused(self, tell: impl Fn(&BackendError) + Send + Sync + 'static) -> Self {
        self.with(|options| options.on_refused = Some(Arc::new(tell)))
    }

    /// Acquires the lock, and waits for it as configured by [`Lock::wait`].
    ///
    /// Cancel-safe: if the future is dropped at any await point, the client ends the hold or the queued
    /// request in the background.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is held then, unless the variant is [`AcquireError::Ambiguous`].
    pub async fn acquire(&self) -> Result<Guard<F>, AcquireError> {
        self.acquire_for(self.options.wait).await
    }

    /// Acquires the lock if it is free; `None` if it is not: [`Lock::acquire`] with [`Wait::No`] returns an
    /// [`AcquireError::Busy`] that says who holds it. If the lock service does not answer, gives up after 10
    /// s or the ttl, whichever is shorter.
    ///
    /// # Errors
    /// [`AcquireError`], but never [`AcquireError::Busy`].
    pub async fn try_acquire(&self) -> Result<Option<Guard<F>>, AcquireError> {
        match self.acquire_for(Wait::No).await {
            Ok(guard) => Ok(Some(guard)),
            Err(AcquireError::Busy(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `body` under the lock and releases the lock afterwards. The body should watch [`Guard::lost`] and
    /// pass [`Guard::token`] to its fence: `enter` before it reads the data that it will write.
    ///
    /// The body's error may be of any type that can be made from a [`HoldError`], such as `anyhow::Error`:
    ///
    /// ```
    /// # async fn example(locks: lockkeeper::Locks) -> anyhow::Result<()> {
    /// let lines = locks.mutex("reports").run(async |_held| {
    ///     let text = std::fs::read_to_string("reports.txt")?;
    ///     anyhow::Ok(text.lines().count())
    /// }).await?;
    /// # drop(lines); Ok(()) }
    /// ```
    ///
    /// or a boxed error:
    ///
    /// ```
    /// # use std::error::Error;
    /// # async fn example(locks: lockkeeper::Locks) -> Result<(), Box<dyn Error + Send + Sync>> {
    /// let port = locks.mutex("reports").run(async |_held| -> Result<u16, Box<dyn Error + Send + Sync>> {
    ///     Ok(std::fs::read_to_string("port")?.trim().parse()?)
    /// }).await?;
    /// # drop(port); Ok(()) }
    /// ```
    ///
    /// or an enum of the program, which can tell a lost lock from its own failures:
    ///
    /// ```
    /// use lockkeeper::HoldError;
    ///
    /// #[derive(Debug, thiserror::Error)]
    /// enum ReportError {
    ///     #[error("the report can't be read")]
    ///     Io(#[from] std::io::Error),
    ///     #[error(transparent)]
    ///     Hold(#[from] HoldError),
    /// }
    ///
    /// // `Guard::check` in the body reports a loss by itself.
    /// impl From<lockkeeper::Lost> for ReportError {
    ///     fn from(lost: lockkeeper::Lost) -> Self {
    ///         HoldError::from(lost).into()
    ///     }
    /// }
    ///
    /// # async fn example(locks: lockkeeper::Locks) { let report = locks.mutex("reports").run(async |_held|
    /// Ok(std::fs::read_to_string("reports.txt")?)).await; match report { Ok(text) => println!("{text}"),
    /// Err(ReportError::Hold(HoldError::Lost(lost))) => println!("do it again: {lost}"), Err(error) =>
    /// println!("{error}"), }
    /// # }
    /// ```
    ///
    /// # Errors
    /// The body's own error, whether or not the lock was lost as well; a fence that refuses a token returns
    /// one. Otherwise [`HoldError`]: the lock was not acquired, or it was lost before its release, and the
    /// body's value is dropped. A release without an answer is no error: the work was done under the lock,
    /// which is free at the latest when its ttl has passed.
    pub async fn run<T, E: From<HoldError>>(
        &self,
        body: impl AsyncFnOnce(Held<'_, F>) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.acquire().await.map_err(HoldError::from)?;
        let lost = guard.lost();
        let result = {
            let mut body = std::pin::pin!(body(guard.held()));
            tokio::select! {
                biased;
                result = &mut body => Some(result),
                () = lost.cancelled() => match self.options.on_lost {
                    OnLost::Signal => Some(body.await),
                    OnLost::DropBody => None,
                    OnLost::AbortProcess => std::process::abort(),
                },
            }
        };
        // A lost hold is ended in the background: its release might wait for the service.
        let released = match guard.valid_until() {
            Err(lost) => Err(ReleaseError::AlreadyLost(lost)),
            Ok(_) => guard.release().await,
        };
        run_result(result, released)
    }

    async fn acquire_for(&self, wait: Wait) -> Result<Guard<F>, AcquireError> {
        let span = tracing::info_span!(
            "lockkeeper.acquire",
            backend = self.core.backend_name(),
            names = ?self.names.as_ref().ok(),
            outcome = Empty,
            token = Empty
        );
        let asked = self.core.recorder.as_ref().map(|_| BootInstant::now());
        let mut result = match self.begin_section() {
            Some(guard) => {
                // A loop over a cached lock waits for nothing, and would starve the other tasks of its
                // thread.
                tokio::task::coop::consume_budget().await;
                Ok(guard)
            }
            None => self.acquire_within(&span, wait).instrument(span.clone()).await,
        };
        if let Some(asked) = asked {
            self.record(&mut result, asked);
        }
        span.record("outcome", outcome(&result));
        if let Some(token) = result.as_ref().ok().and_then(Guard::token_hint) {
            // OpenTelemetry has signed numbers only; a token is below 2^53.
            span.record("token", token.get() as i64);
        }
        result
    }

    /// Writes the result to the client's history.
    fn record(&self, result: &mut Result<Guard<F>, AcquireError>, asked: BootInstant) {
        let (Some(recorder), Ok(names)) = (&self.core.recorder, &self.names) else { return };
        let subtree = self.options.subtree;
        let why = match result {
            Ok(guard) => {
                if guard.record(recorder, names, (self.mode.kind(), subtree), asked) {
                    return;
                }
                "lost-at-once"
            }
            Err(_) => outcome(result),
        };
        recorder.denied(names, asked, why);
    }

    async fn acquire_within(&self, span: &Span, wait: Wait) -> Result<Guard<F>, AcquireError> {
        let capabilities = self.core.capabilities();
        let options = &self.options;
        let names = self.names.clone()?;
        self.check(capabilities, names.len(), wait)?;
        let delay_for_min_hold =
            if capabilities.lock_delay { options.min_hold.min(LOCK_DELAY_MAX) } else { Duration::ZERO };
        let spec = Spec {
            ttl: capabilities.ttl.then_some(options.ttl),
            lock_delay: options.lock_delay.max(delay_for_min_hold),
            linger: options.linger,
            renew: options.renew,
        };
        let session = self.core.session(spec)?;
        let caching = self.prepare(&session, &names);
        if let Some(guard) = self.begin_section() {
            return Ok(guard);
        }
        let since = session.now();
        let wait_until = match wait {
            Wait::No | Wait::Forever => None,
            Wait::For(duration) => Some(since + duration),
            Wait::Until(at) => Some(at),
        };
        let waits = match wait {
            Wait::No => false,
            Wait::Forever => true,
            Wait::For(_) | Wait::Until(_) => wait_until.is_some_and(|until| until > since),
        };
        let request = Arc::new(AcquireRequest {
            names,
            mode: self.mode,
            subtree: options.subtree,
            wait: waits,
            waiters_max: options.max_waiters,
            keep_closed: options.keep_closed,
            value: options.value.clone().into(),
            meta: encode_meta(&options.meta),
            spare_tokens: caching.as_ref().map_or(0, |caching| session.spare_tokens(&caching.lock)),
            holding: options.holding.clone().into(),
            traceparent: observe::traceparent(span),
        });
        let limits = AcquireLimits {
            wait_until: wait_until.filter(|_| waits),
            patience: (!waits).then_some(PATIENCE_WITHOUT_WAIT),
            min_validity: options.min_validity,
            max_hold: options.max_hold,
            grace: options.grace.unwrap_or(if capabilities.ttl {
                options.ttl / 6
            } else {
                GRACE_WITHOUT_TTL
            }),
        };
        let on = Callbacks { queued: options.on_queued.as_deref(), refused: options.on_refused.as_deref() };
        let result = session.acquire(request, limits, caching, on).await;
        let waited = session.now() - since;
        let backend = self.core.backend_name();
        let result = result.map(|mut hold| {
            hold.hold_at_least(options.min_hold);
            Guard::new(hold)
        });
        let result = result.map_err(|NotHeld { why, refusal }| match (why, refusal) {
            (NotAcquired::Busy(busy), _) => AcquireError::Busy(busy),
            (NotAcquired::TimedOut, refusal) => {
                // The service counts whole milliseconds, so it may answer just before the limit.
                let waited = wait_until.map_or(waited, |until| waited.max(until - since));
                AcquireError::TimedOut { waited, why: session.reason(refusal.as_deref()) }
            }
            (NotAcquired::Refused(error), _) if error.kind == BackendErrorKind::Deadlock => {
                AcquireError::Deadlock { cycle: error.message }
            }
            (NotAcquired::Refused(error), _) => AcquireError::Backend(error),
            (NotAcquired::Unreachable, Some(refusal)) if refusal.kind != BackendErrorKind::Unreachable => {
                AcquireError::Backend((*refusal).clone())
            }
            (NotAcquired::Unreachable, refusal) => {
                AcquireError::Unreachable { waited, why: session.reason(refusal.as_deref()) }
            }
            (NotAcquired::Ambiguous, refusal) => {
                AcquireError::Ambiguous { waited, why: session.reason(refusal.as_deref()) }
            }
            (NotAcquired::ShuttingDown, _) => AcquireError::ShuttingDown,
        });
        observe::acquired(backend, outcome(&result), waited);
        result
    }

    /// All checks that need no answer from the backend.
    fn check(&self, can: &Capabilities, names: usize, wait: Wait) -> Result<(), AcquireError> {
        let options = &self.options;
        let invalid = AcquireError::invalid;
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        // The label was cut to its limit when the client was created.
        let session = SessionContent {
            ttl_ms: ms(options.ttl),
            lock_delay_ms: ms(options.lock_delay),
            linger_ms: ms(options.linger),
            label_bytes: 0,
            identity_bytes: 0,
        };
        session.check()?;
        let acquire = AcquireContent {
            names,
            mode: self.mode,
            subtree: options.subtree,
            keep_closed_ms: ms(options.keep_closed),
            value_bytes: options.value.len(),
            meta_bytes: encode_meta(&options.meta).len(),
            // More are asked for later, within the limit.
            spare_tokens: u32::from(options.cached),
            holding: options.holding.len(),
        };
        acquire.check()?;
        self.check_cached()?;
        // Just before a renewal, which is due every third of the ttl, two thirds are left, less the margin
        // for clock drift.
        let validity_max = options.ttl * 65 / 100;
        if can.ttl && options.min_validity > validity_max {
            let allowed = format!("at most {validity_max:?} (65 % of the ttl) can be had; use a longer ttl");
            return Err(invalid("min_validity", format!("{:?}", options.min_validity), allowed));
        }
        if options.max_hold.is_some_and(|max| max.is_zero()) {
            let allowed = "a longer time is needed: such a hold would be lost at once".to_owned();
            return Err(invalid("max_hold", "0ns".to_owned(), allowed));
        }
        if options.min_hold > MIN_HOLD_MAX {
            let allowed = format!("at most {MIN_HOLD_MAX:?} is allowed");
            return Err(invalid("min_hold", format!("{:?}", options.min_hold), allowed));
        }
        if let Some(max) = options.max_hold
            && max < options.min_hold
        {
            let allowed = format!("at most max_hold ({max:?}) is allowed");
            return Err(invalid("min_hold", format!("{:?}", options.min_hold), allowed));
        }
        if let Some((key, value)) = options.meta.iter().find(|(key, value)| {
            key.is_empty() || key.contains(['=', '\n', '\r']) || value.contains(['\n', '\r'])
        }) {
            let allowed = "a key without `=` and one line each are allowed".to_owned();
            return Err(invalid("meta", format!("{key:?}={value:?}"), allowed));
        }
        let needs = [
            (matches!(self.mode, Mode::Shared), can.shared, "share a lock between readers"),
            (matches!(self.mode, Mode::Permit { .. }), can.permits, "count permits"),
            (options.subtree, can.subtree, "lock a subtree"),
            (names > 1, can.multi, "lock several names at once"),
            (wait != Wait::No, can.wait, "wait for a lock"),
            (options.max_waiters.is_some(), can.queue_limit, "limit the number of waiters"),
            (!options.value.is_empty(), can.values, "keep a value of a hold"),
            (options.cached, can.cached, "cache a lock"),
            (!options.keep_closed.is_zero(), can.keep_closed, "keep a lock closed after its hold"),
            (!options.lock_delay.is_zero(), can.lock_delay, "delay a lock after its holder vanished"),
            (
                !options.linger.is_zero(),
                can.ttl,
                "linger: it notices a vanished holder at once anyway, or never",
            ),
        ];
        match needs.into_iter().find(|(needed, has, _)| *needed && !has) {
            None => Ok(()),
            Some((_, _, what)) => Err(can.lacks(what).into()),
        }
    }
}

const LOCK_DELAY_MAX: Duration = Duration::from_millis(limits::LOCK_DELAY_MS_MAX);
/// The limit of `keep_closed`.
const MIN_HOLD_MAX: Duration = Duration::from_millis(limits::KEEP_CLOSED_MS_MAX);
/// Grace period for backends whose holds do not expire.
const GRACE_WITHOUT_TTL: Duration = Duration::from_secs(5);
/// Limit for an acquire without waiting when the service does not answer; long enough for a change of leader.
const PATIENCE_WITHOUT_WAIT: Duration = Duration::from_secs(10);

/// The result of [`Lock::run`]. `body`: the body's result; `None` if it was dropped because of a loss.
pub(crate) fn run_result<T, E: From<HoldError>>(
    body: Option<Result<T, E>>,
    released: Result<(), ReleaseError>,
) -> Result<T, E> {
    let lost = match (body, released) {
        (Some(Err(error)), _) => return Err(error),
        (Some(Ok(value)), Ok(()) | Err(ReleaseError::Ambiguous { .. })) => return Ok(value),
        (_, Err(ReleaseError::AlreadyLost(lost))) => lost,
        (None, _) => Lost::new(LossCause::Expired),
    };
    Err(HoldError::Lost(lost).into())
}

fn outcome<F: Kind>(result: &Result<Guard<F>, AcquireError>) -> &'static str {
    match result {
        Ok(_) => "acquired",
        Err(AcquireError::Busy(_)) => "busy",
        Err(AcquireError::Deadlock { .. }) => "deadlock",
        Err(AcquireError::TimedOut { .. }) => "timed-out",
        Err(AcquireError::Ambiguous { .. }) => "ambiguous",
        Err(_) => "failed",
    }
}
