//! Settings that show one effect.

use serde::Serialize;

use crate::settings::{Fence, LockServiceKind, Others, Pause, Settings, SettingsError};

/// A story: its text, and the settings that play it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Story {
    /// Its name on a command line and in an address.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What happens, and why.
    pub about: &'static str,
    #[serde(skip)]
    settings: fn() -> Settings,
}

impl Story {
    /// The settings of the story.
    #[must_use]
    pub fn settings(&self) -> Settings {
        (self.settings)()
    }

    /// The fences that this story can use: with Redlock there are no tokens to check.
    #[must_use]
    pub fn fences(&self) -> Vec<Fence> {
        let base = self.settings();
        let fits = |fence: &Fence| Settings { fence: *fence, ..base.clone() }.check().is_ok();
        Fence::ALL.into_iter().filter(fits).collect()
    }
}

impl Settings {
    /// Settings from a query. `story` names the story whose settings they start from; all other keys are from
    /// [`KEYS`](crate::settings::KEYS).
    ///
    /// # Errors
    /// [`SettingsError`]: a key or a value can't be used, or the settings do not fit together.
    pub fn of_query(pairs: &[(&str, &str)]) -> Result<Self, SettingsError> {
        let mut settings = match pairs.iter().find(|(key, _)| *key == "story") {
            Some((_, name)) => story(name)?.settings(),
            None => Self::default(),
        };
        for (key, value) in pairs.iter().filter(|(key, _)| *key != "story") {
            settings.set(key, value)?;
        }
        settings.check().map(|()| settings)
    }
}

/// A story by its name.
///
/// # Errors
/// [`SettingsError::Value`]: there is no such story.
pub fn story(name: &str) -> Result<&'static Story, SettingsError> {
    STORIES.iter().find(|story| story.name == name).ok_or_else(|| {
        let names = STORIES.map(|story| story.name).join(", ");
        SettingsError::value("story", name, format!("one of {names}"))
    })
}

/// All stories, from the first lesson to the last.
pub const STORIES: [Story; 9] = [
    Story {
        name: "paused-holder",
        title: "The paused holder",
        about: "A checks its lease, and stands still before it writes: a GC pause, a suspended VM, a slow disk. Its lease \
                ends meanwhile, and B does its work. Then A goes on with its next instruction, which is the write. No \
                check that A makes can help: time can always pass between a check and what comes after it. Let the \
                resource check the tokens, and the late write is refused.",
        settings: || Settings { pause: Pause::BeforeWrite, pause_ms: 15_000, ..Settings::default() },
    },
    Story {
        name: "write-only",
        title: "A fence on writes only still loses",
        about: "The resource refuses writes with a token older than the latest write's. But B has only read so far when A \
                wakes up: no newer token has written, so A's late write passes, and B overwrites it by what it makes of \
                the balance that it has read before. Both had the lock, both were checked, and a withdrawal is lost.",
        settings: || Settings {
            fence: Fence::Write,
            work_ms: 4_000,
            pause: Pause::BeforeWrite,
            pause_ms: 10_000,
            ..Settings::default()
        },
    },
    Story {
        name: "enter",
        title: "What enter does",
        about: "The same pause, but everybody shows its token before it reads. When B enters, the resource notes its token, \
                and from then on refuses A: whatever B reads stays true until B writes. A stops, gets a new token, and \
                reads again.",
        settings: || Settings {
            fence: Fence::Enter,
            work_ms: 4_000,
            pause: Pause::BeforeWrite,
            pause_ms: 10_000,
            ..Settings::default()
        },
    },
    Story {
        name: "delayed-packet",
        title: "The delayed packet",
        about: "A does nothing wrong: it sends its write in time, and is killed. The write is held up in the network, until \
                after the lease has ended and B has written. Nobody is left who could check anything, except the resource.",
        settings: || Settings { write_delay_ms: 14_000, crash: true, ..Settings::default() },
    },
    Story {
        name: "redlock-clock",
        title: "Redlock with a clock that jumps",
        about: "Five Redis servers keep a key with an expiry each, and who has three of them has the lock. Three clocks are \
                set forward, by an operator or by NTP, and the keys of A expire there at once. B gets three servers while A \
                still holds by its own clock. There is no pause and no slow network here, and no token that a resource \
                could check.",
        settings: || Settings {
            service: LockServiceKind::Redlock,
            ttl_ms: 30_000,
            work_ms: 3_000,
            step_at_ms: 2_500,
            step_ms: 40_000,
            ..Settings::default()
        },
    },
    Story {
        name: "renewed-lease",
        title: "The renewal after a pause",
        about: "A stands still before it checks its lease. When it goes on, its library looks at the clock before anything \
                else, so it neither trusts the old deadline nor the answer to a late keep-alive: the session has ended, and \
                no renewal brings it back. A stops and begins again. Here the check is enough, but only because the pause \
                did not come after it.",
        settings: || Settings { pause: Pause::BeforeCheck, pause_ms: 15_000, ..Settings::default() },
    },
    Story {
        name: "late-writer",
        title: "Two readers and a late writer",
        about: "B and C read the balance twice under a shared lock, and what they make of it relies on both. A, paused \
                since before they began, writes in between. Readers write nothing, so a fence on writes only never hears \
                of them. With enter the resource knows their tokens: it refuses A, and lets both readers be, though their \
                tokens differ.",
        settings: || Settings {
            others: Others::Readers,
            work_ms: 4_000,
            pause: Pause::BeforeWrite,
            pause_ms: 10_000,
            ..Settings::default()
        },
    },
    Story {
        name: "slow-clock",
        title: "A clock that runs slow",
        about: "A is cut off from the lock service, so its lease ends where nobody can tell it. A would notice by its own \
                clock; but that runs 40 % slow, far beyond the 1 % that leases allow for. So A writes in the belief that \
                its lease is valid.",
        settings: || Settings {
            work_ms: 12_000,
            drift_percent: -40,
            cut_at_ms: 2_000,
            cut_ms: 30_000,
            ..Settings::default()
        },
    },
    Story {
        name: "lock-delay",
        title: "Lock-delay and linger",
        about: "A is killed right after it has sent its write, which takes 5 s. Its connection is closed, so with a linger \
                of 2 s its session ends well before its ttl. With a lock-delay the lock then stays closed for some more \
                time, in which the write arrives: nothing is lost, even at a resource that can check nothing. It is a \
                guess about the network, though, not a promise: let the write take longer, or set the lock-delay to 0s.",
        settings: || Settings {
            write_delay_ms: 5_000,
            crash: true,
            linger_ms: 2_000,
            lock_delay_ms: 10_000,
            ..Settings::default()
        },
    },
];
