//! The settings of a play: times, faults, and what the fence at the resource checks.

use std::time::Duration;

use serde::Serialize;

/// Longest time of a setting, in milliseconds; bounds a play's work.
const TIME_MS_MAX: u64 = 120_000;
/// The range of the ttl, in milliseconds. With a shorter one, the play's slow network would use up the lease.
const TTL_MS: (u64, u64) = (2_000, 60_000);
/// The greatest error of the clock of A, in percent.
const DRIFT_MAX: i64 = 50;

/// The settings of a play. Times are in milliseconds of virtual time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// The lock service.
    pub service: LockServiceKind,
    /// The clients that compete with A.
    pub others: Others,
    /// What the resource checks.
    pub fence: Fence,
    /// The ttl of the leases: 2 s to 60 s.
    pub ttl_ms: u64,
    /// How long the lock stays closed after a session has expired.
    pub lock_delay_ms: u64,
    /// How long a session lives after its client has closed the connection; 0: for its ttl, as if the client
    /// were silent.
    pub linger_ms: u64,
    /// The time between reading and writing.
    pub work_ms: u64,
    /// The point at which the process of A is paused, once.
    pub pause: Pause,
    /// The length of the pause.
    pub pause_ms: u64,
    /// How much faster the clock of A runs than the others, in percent; negative: slower.
    pub drift_percent: i64,
    /// The time at which the network between A and the lock service is cut.
    pub cut_at_ms: u64,
    /// The length of the cut; 0: no cut.
    pub cut_ms: u64,
    /// The additional time that A's first write takes to the resource.
    pub write_delay_ms: u64,
    /// Whether A's process is killed after it has sent its first write.
    pub crash: bool,
    /// The time at which the clocks of three of the five Redis servers are set forward.
    pub step_at_ms: u64,
    /// The size of that step; 0: no step.
    pub step_ms: u64,
}

/// A lock service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockServiceKind {
    /// Our own service: its table decides, by sessions with keep-alives.
    Lockkeeper,
    /// A key with an expiry on each of five Redis servers, of which three must agree. It issues no tokens.
    Redlock,
}

/// The clients that compete with A; A withdraws 30.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Others {
    /// B withdraws 50.
    Writer,
    /// B and C read the balance twice, under a shared lock.
    Readers,
}

/// What the resource checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fence {
    /// Nothing.
    None,
    /// The token of each write.
    Write,
    /// The token of each write, and of each reader before it reads: `enter`.
    Enter,
}

impl Fence {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::None, Self::Write, Self::Enter];

    /// The name of the variant as the value of a setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Write => "write",
            Self::Enter => "enter",
        }
    }
}

/// A point in the program of A.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pause {
    /// A is not paused.
    Never,
    /// After A has got the lock, before A reads.
    BeforeRead,
    /// After A has read, before A works.
    BeforeWork,
    /// Before A checks that its lease is valid.
    BeforeCheck,
    /// After that check, before A writes.
    BeforeWrite,
}

/// A setting that can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// There is no such setting.
    #[error("there is no setting `{key}`; there are: {}", KEYS.join(", "))]
    Unknown {
        /// The given text.
        key: String,
    },
    /// A value that the setting can't have.
    #[error("`{key}` is `{value}`; it must be {allowed}")]
    Value {
        /// The setting.
        key: &'static str,
        /// The given text.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// Settings that do not fit together.
    #[error("{0}")]
    Together(&'static str),
}

/// The names of the settings, for [`Settings::set`].
pub const KEYS: [&str; 16] = [
    "service",
    "others",
    "fence",
    "ttl",
    "lock-delay",
    "linger",
    "work",
    "pause",
    "pause-for",
    "drift",
    "cut-at",
    "cut-for",
    "write-delay",
    "crash",
    "step-at",
    "step",
];

impl Default for Settings {
    /// A and B withdraw under a lease of 10 s, and nothing goes wrong.
    fn default() -> Self {
        Self {
            service: LockServiceKind::Lockkeeper,
            others: Others::Writer,
            fence: Fence::None,
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            work_ms: 2_000,
            pause: Pause::Never,
            pause_ms: 0,
            drift_percent: 0,
            cut_at_ms: 0,
            cut_ms: 0,
            write_delay_ms: 0,
            crash: false,
            step_at_ms: 0,
            step_ms: 0,
        }
    }
}

impl Settings {
    /// Sets one of [`KEYS`] from its text. Durations are as `10s` or `1500ms`, drift is a number of percent,
    /// `crash` is `true` or `false`.
    ///
    /// # Errors
    /// [`SettingsError`]: the key or the value is unknown, or out of range. Nothing was set.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingsError> {
        match key {
            "service" => {
                let all =
                    [("lockkeeper", LockServiceKind::Lockkeeper), ("redlock", LockServiceKind::Redlock)];
                self.service = choice("service", value, &all)?;
            }
            "others" => {
                self.others =
                    choice("others", value, &[("writer", Others::Writer), ("readers", Others::Readers)])?;
            }
            "fence" => {
                self.fence = choice("fence", value, &Fence::ALL.map(|fence| (fence.name(), fence)))?;
            }
            "pause" => {
                let all = [
                    ("never", Pause::Never),
                    ("before-read", Pause::BeforeRead),
                    ("before-work", Pause::BeforeWork),
                    ("before-check", Pause::BeforeCheck),
                    ("before-write", Pause::BeforeWrite),
                ];
                self.pause = choice("pause", value, &all)?;
            }
            "crash" => self.crash = choice("crash", value, &[("true", true), ("false", false)])?,
            "drift" => {
                let drift = value.parse().ok().filter(|drift| (-DRIFT_MAX..=DRIFT_MAX).contains(drift));
                let allowed = || format!("a number of percent from -{DRIFT_MAX} to {DRIFT_MAX}");
                self.drift_percent = drift.ok_or_else(|| SettingsError::value("drift", value, allowed()))?;
            }
            "ttl" => self.ttl_ms = time("ttl", value, TTL_MS)?,
            "lock-delay" => self.lock_delay_ms = time("lock-delay", value, (0, TIME_MS_MAX))?,
            "linger" => self.linger_ms = time("linger", value, (0, TIME_MS_MAX))?,
            "work" => self.work_ms = time("work", value, (0, TIME_MS_MAX))?,
            "pause-for" => self.pause_ms = time("pause-for", value, (0, TIME_MS_MAX))?,
            "cut-at" => self.cut_at_ms = time("cut-at", value, (0, TIME_MS_MAX))?,
            "cut-for" => self.cut_ms = time("cut-for", value, (0, TIME_MS_MAX))?,
            "write-delay" => self.write_delay_ms = time("write-delay", value, (0, TIME_MS_MAX))?,
            "step-at" => self.step_at_ms = time("step-at", value, (0, TIME_MS_MAX))?,
            "step" => self.step_ms = time("step", value, (0, TIME_MS_MAX))?,
            _ => return Err(SettingsError::Unknown { key: key.chars().take(100).collect() }),
        }
        Ok(())
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    /// [`SettingsError::Together`], with what does not fit.
    pub fn check(&self) -> Result<(), SettingsError> {
        let of_redlock = self.service == LockServiceKind::Redlock;
        let refusals = [
            (
                of_redlock && self.fence != Fence::None,
                "Redlock issues no tokens, so there is nothing that a fence could check: `fence` must be `none`",
            ),
            (
                of_redlock && self.others == Others::Readers,
                "Redlock has no shared locks: `others` must be `writer`",
            ),
            (
                of_redlock && self.lock_delay_ms + self.linger_ms > 0,
                "Redlock has no sessions: `lock-delay` and `linger` must be 0s",
            ),
            (
                !of_redlock && self.step_ms > 0,
                "our own service trusts no clock's time, so a step changes nothing: `step` must be 0s, or `service` `redlock`",
            ),
            (self.linger_ms > self.ttl_ms, "`linger` must not be longer than `ttl`"),
        ];
        match refusals.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, why)) => Err(SettingsError::Together(why)),
            None => Ok(()),
        }
    }
}

impl SettingsError {
    /// The error for a value that `key` can't have; the value is shortened.
    pub(crate) fn value(key: &'static str, value: &str, allowed: String) -> Self {
        Self::Value { key, value: value.chars().take(100).collect(), allowed }
    }
}

fn choice<T: Copy>(key: &'static str, value: &str, all: &[(&str, T)]) -> Result<T, SettingsError> {
    let found = all.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        SettingsError::value(key, value, format!("one of {}", names.join(", ")))
    })
}

fn time(key: &'static str, value: &str, (min, max): (u64, u64)) -> Result<u64, SettingsError> {
    let ms = humantime::parse_duration(value).ok().and_then(|time| u64::try_from(time.as_millis()).ok());
    ms.filter(|ms| (min..=max).contains(ms)).ok_or_else(|| {
        let shown = |ms| humantime::format_duration(Duration::from_millis(ms));
        SettingsError::value(
            key,
            value,
            format!("a duration from {} to {}, as `10s` or `1500ms`", shown(min), shown(max)),
        )
    })
}
