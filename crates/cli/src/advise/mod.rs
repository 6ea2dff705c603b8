//! `advise`: the decision tree, the walk through it, and the advice at its end.
//!
//! The tree is defined in `tree.toml` only. The dialogue, the flags and the documentation page are generated
//! from it.

mod page;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

pub use page::markdown;

/// The tree of this program.
pub static TREE: LazyLock<Tree> =
    LazyLock::new(|| toml::from_str(include_str!("tree.toml")).expect("a test reads the tree"));

/// The decision tree, and the data about lock services and runtimes from which the settings of a lock are
/// computed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    first: String,
    question: Vec<Question>,
    advice: Vec<AdviceText>,
    service: Vec<Service>,
    runtime: Vec<Runtime>,
}

/// A question with its answers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    id: String,
    text: String,
    answers: Vec<Choice>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    key: String,
    text: String,
    question: Option<String>,
    advice: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdviceText {
    id: String,
    kind: Kind,
    /// Whether the recommended lock must have fencing tokens.
    #[serde(default)]
    fenced: bool,
    title: String,
    why: String,
    start: Vec<String>,
    read: Vec<String>,
}

/// The kind of lock that fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// No lock.
    None,
    /// A lock that rarely fails to exclude, which costs little.
    Efficiency,
    /// A lock whose failure would do damage.
    Correctness,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    key: String,
    text: String,
    url: String,
    fenced_url: Option<String>,
    leased: bool,
    tokens: bool,
    lock_delay: bool,
    ttl_max_s: Option<u64>,
    note: String,
    page: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Runtime {
    key: String,
    text: String,
    /// The longest pause to expect of a process on this runtime, in seconds.
    pause_s: u64,
}

/// The answers so far, by question.
pub type Answers = BTreeMap<String, String>;

/// The next question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenQuestion {
    /// The flag of the answer, without its dashes.
    pub id: String,
    /// The question.
    pub text: String,
    /// Value and meaning of each answer; empty if the answer is a duration.
    pub answers: Vec<(String, String)>,
}

/// An answer that the question does not have.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[error("--{id} `{value}`: {known}")]
pub struct UnknownAnswer {
    id: String,
    value: String,
    known: String,
}

/// The end of a walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// The advice's id.
    pub id: String,
    /// The kind of lock that fits.
    pub kind: Kind,
    /// The advice in a few words.
    pub title: String,
    /// The reason.
    pub why: String,
    /// The lock's settings, if a lock is recommended.
    pub lock: Option<LockAdvice>,
    /// The first commands or statements.
    pub start: Vec<String>,
    /// Pages of the documentation.
    pub read: Vec<String>,
}

/// The settings of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockAdvice {
    /// The URL of the lock service.
    pub url: String,
    /// The session's ttl; `None` where holds have none.
    pub ttl: Option<Duration>,
    /// How long the lock stays closed after a holder that vanished.
    pub lock_delay: Option<Duration>,
    /// The limit of a hold; `None` if a hold lasts as long as its holder lives.
    pub max_hold: Option<Duration>,
    /// A note about the service.
    pub note: String,
    /// The property that the advice requires and the service does not have, if there is one.
    pub lacks: Option<String>,
    /// The service's page in the documentation.
    page: String,
}

/// The flags of the questions about a lock.
const SERVICE: &str = "service";
const TAKES: &str = "takes";
const RUNTIME: &str = "runtime";
/// Ttls below this make a short outage of the service a loss of locks.
const TTL_MIN: Duration = Duration::from_secs(10);
const TTL_MAX: Duration = Duration::from_secs(3600);
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// A hold that lasts this many times longer than usual counts as hung.
const MAX_HOLD_TIMES: u32 = 10;
const MAX_HOLD_MIN: Duration = Duration::from_secs(60);

impl Tree {
    /// The next question, or the advice.
    ///
    /// # Errors
    /// An answer that its question does not have.
    pub fn walk(&self, answers: &Answers) -> Result<Result<Advice, OpenQuestion>, UnknownAnswer> {
        let mut id = self.first.as_str();
        let advice = loop {
            let question = self.question(id);
            let asked = OpenQuestion {
                id: id.to_owned(),
                text: question.text.clone(),
                answers: question.answers.iter().map(|it| (it.key.clone(), it.text.clone())).collect(),
            };
            let Some(value) = answers.get(id) else { return Ok(Err(asked)) };
            asked.check(value)?;
            let answer = question.answers.iter().find(|it| it.key == *value).expect("it is a known answer");
            match (&answer.question, &answer.advice) {
                (Some(next), _) => id = next,
                (None, Some(advice)) => break self.advice(advice),
                (None, None) => unreachable!("a test walks every path"),
            }
        };
        if advice.kind == Kind::None {
            return Ok(Ok(advice.filled(None)));
        }
        let (Some(service), Some(takes), Some(runtime)) =
            (answers.get(SERVICE), answers.get(TAKES), answers.get(RUNTIME))
        else {
            return Ok(Err(self.about_the_lock(answers)));
        };
        self.services().check(service)?;
        self.runtimes().check(runtime)?;
        takes_asked().check(takes)?;
        let service = self.service.iter().find(|it| it.key == *service).expect("it is a known answer");
        let runtime = self.runtime.iter().find(|it| it.key == *runtime).expect("it is a known answer");
        let takes = humantime::parse_duration(takes).expect("it is a known answer");
        Ok(Ok(advice.filled(Some(self.lock(advice, service, runtime, takes)))))
    }

    fn about_the_lock(&self, answers: &Answers) -> OpenQuestion {
        let missing = |id: &str| !answers.contains_key(id);
        if missing(SERVICE) {
            self.services()
        } else if missing(TAKES) {
            takes_asked()
        } else {
            self.runtimes()
        }
    }

    /// The settings of a lock. A ttl must outlast the pauses of its holder: with renewals it need not outlast
    /// the operation.
    fn lock(&self, advice: &AdviceText, service: &Service, runtime: &Runtime, takes: Duration) -> LockAdvice {
        let outlasts = Duration::from_secs(runtime.pause_s) * 3;
        let ttl_max = service.ttl_max_s.map_or(TTL_MAX, Duration::from_secs);
        let url = service.fenced_url.as_ref().filter(|_| advice.fenced).unwrap_or(&service.url);
        let ends = advice.start.iter().any(|line| line.contains("{max}"));
        let uses_delay = advice.start.iter().any(|line| line.contains("{delay}"));
        let others = |has: fn(&Service) -> bool| {
            let keys: Vec<&str> =
                self.service.iter().filter(|it| has(it)).map(|it| it.key.as_str()).collect();
            keys.join(", ")
        };
        let lacks = if advice.fenced && !service.tokens {
            let others = others(|it| it.tokens);
            Some(format!(
                "it has no tokens, so nothing can refuse a holder that stalls. These have: {others}"
            ))
        } else if uses_delay && !service.lock_delay {
            let others = others(|it| it.lock_delay);
            Some(format!(
                "it has no lock-delay, so a holder that stalls meets the next one. These have: {others}"
            ))
        } else {
            None
        };
        LockAdvice {
            url: url.clone(),
            ttl: service.leased.then(|| outlasts.clamp(TTL_MIN, ttl_max)),
            lock_delay: (uses_delay && service.lock_delay).then(|| outlasts.min(DELAY_MAX)),
            max_hold: ends.then(|| takes.saturating_mul(MAX_HOLD_TIMES).max(MAX_HOLD_MIN)),
            note: service.note.clone(),
            lacks,
            page: service.page.clone(),
        }
    }

    fn services(&self) -> OpenQuestion {
        let answers = self.service.iter().map(|it| (it.key.clone(), it.text.clone())).collect();
        OpenQuestion { id: SERVICE.to_owned(), text: "What do you run already?".to_owned(), answers }
    }

    fn runtimes(&self) -> OpenQuestion {
        let answers = self.runtime.iter().map(|it| (it.key.clone(), it.text.clone())).collect();
        OpenQuestion { id: RUNTIME.to_owned(), text: "Where does it run?".to_owned(), answers }
    }

    fn question(&self, id: &str) -> &Question {
        self.question.iter().find(|it| it.id == id).expect("a test walks every path")
    }

    fn advice(&self, id: &str) -> &AdviceText {
        self.advice.iter().find(|it| it.id == id).expect("a test walks every path")
    }
}

fn takes_asked() -> OpenQuestion {
    let text =
        "How long does one operation take, at most, as a rule? A duration, as in 500ms, 5s, 10m".to_owned();
    OpenQuestion { id: TAKES.to_owned(), text, answers: Vec::new() }
}

impl OpenQuestion {
    /// Checks that the question has this answer.
    ///
    /// # Errors
    /// The question does not have it; the error lists the valid answers.
    pub fn check(&self, value: &str) -> Result<(), UnknownAnswer> {
        let (is_known, known) = if self.answers.is_empty() {
            let is_duration = humantime::parse_duration(value).is_ok();
            (is_duration, "write a duration, as in 500ms, 5s, 10m".to_owned())
        } else {
            let is_listed = self.answers.iter().any(|(key, _)| key == value);
            (is_listed, format!("known are {}", self.keys()))
        };
        let unknown = || UnknownAnswer { id: self.id.clone(), value: value.to_owned(), known };
        if is_known { Ok(()) } else { Err(unknown()) }
    }

    /// The values of the answers, as a list.
    #[must_use]
    pub fn keys(&self) -> String {
        let keys: Vec<&str> = self.answers.iter().map(|(key, _)| key.as_str()).collect();
        keys.join(", ")
    }
}

impl AdviceText {
    fn filled(&self, lock: Option<LockAdvice>) -> Advice {
        let flag = |name: &str, duration: Option<Duration>| {
            duration.map(|it| format!(" --{name} {}", flag_value(it))).unwrap_or_default()
        };
        let fill = |line: &String| match &lock {
            None => line.clone(),
            Some(lock) => line
                .replace("{locks}", &quoted(&lock.url))
                .replace("{ttl}", &flag("ttl", lock.ttl))
                .replace("{delay}", &flag("lock-delay", lock.lock_delay))
                .replace("{max}", &flag("max-hold", lock.max_hold)),
        };
        Advice {
            id: self.id.clone(),
            kind: self.kind,
            title: self.title.clone(),
            why: self.why.clone(),
            start: self.start.iter().map(fill).collect(),
            read: self
                .read
                .iter()
                .chain(lock.iter().map(|it| &it.page))
                .map(|page| format!("docs/{page}"))
                .collect(),
            lock,
        }
    }
}

/// A duration without spaces: `1h30m`.
fn flag_value(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// A URL as a shell takes it.
fn quoted(url: &str) -> String {
    if url.contains('?') { format!("'{url}'") } else { url.to_owned() }
}

#[cfg(test)]
mod tests;
