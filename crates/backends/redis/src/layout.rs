//! Layout of the keys and values in Redis.
//!
//! The lock itself is a plain string key, as other Redis lock clients set it, so that they and this library
//! exclude each other. All other keys of a name are beside it, in the same hash slot. Values are readable
//! text:
//!
//! ```text
//! lockkeeper:<id>:1:<state>:<token>:<since>:<extra>:<client>
//! <owner>
//! <why it was revoked>
//! <who revoked it>
//! <meta: key=value lines>
//! ```
//!
//! `1` is the version of the layout. `state`: `held`, `revoked` or `closed`. `token`: 0 for none. `since`: µs
//! of the server's clock, or, from a plain `SET` to the first renewal, `+` and the ms for which the key was
//! set. `extra`: ms by which the key outlives the hold, to keep the lock closed. `client`: its channel wakes
//! the entry's owner. A waiter's record is `<expiry of the waiter, Unix ms>:<mode>` and the rest from
//! `:<extra>` on. `lockkeeper:reserved:1` reserves a free lock for its waiters.

use std::borrow::Cow;
use std::time::Duration;

use lockkeeper_backend::leased::{Attempt, EntryId};
use lockkeeper_backend::{HolderInfo, HolderState, WaiterInfo, decode_meta};
use lockkeeper_core::{LockName, ModeKind, Slot, Token};

/// Prefix of the values that this library writes.
pub(super) const OURS: &str = "lockkeeper:";
/// Prefix of the marker that the lock's key has while permits of the name are held.
const MARKER: &str = "lockkeeper:permits:1:";
/// Length to which another client's value is cut for display, in characters.
const FOREIGN_SHOWN: usize = 64;

/// Suffixes of the keys beside a lock, in the order in which the scripts take them (scripts/parts/keys.lua),
/// after the lock's own key. An entry's id follows `gone:`.
const SUFFIXES: [&str; 7] = ["queue", "gone:", "token", "waiters", "permits", "slots", "until"];

/// How many keys of a name a script is given. A script must be given every key that it touches: in a cluster,
/// keys migrate one by one, and a key that has migrated must not count as missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeySet {
    LockOnly = 1,
    WithoutPermits = 5,
    All = 8,
}

/// The keys of one name.
pub(super) struct Keys {
    lock: String,
    tagged: bool,
}

impl Keys {
    pub(super) fn of(prefix: &str, name: &LockName) -> Self {
        let lock = [prefix, name.as_str()].concat();
        // A key that has a hash tag keeps it; any other becomes the tag as a whole. The suffix `tagged` keeps
        // the keys of `{x}` and `x` apart.
        let tagged = has_tag(&lock);
        Self { lock, tagged }
    }

    /// The lock's own key.
    pub(super) fn lock(&self) -> &str {
        &self.lock
    }

    /// Whether all keys of the name are in one slot of a cluster.
    pub(super) fn share_a_slot(&self) -> bool {
        self.tagged || !self.lock.contains('}')
    }

    /// Whether this lock's key looks like a key beside another lock.
    pub(super) fn looks_like_one_beside(&self) -> bool {
        self.lock.contains(BESIDE)
    }

    /// The keys of this name that a script gets for the entry `id`.
    pub(super) fn list(&self, set: KeySet, id: &EntryId) -> Vec<String> {
        let (open, close) = if self.tagged { ("", TAGGED) } else { ("{", CLOSE_AND_BESIDE) };
        let beside = SUFFIXES.iter().map(|suffix| {
            let id = if *suffix == "gone:" { id.0.as_str() } else { "" };
            [open, &self.lock, close, suffix, id].concat()
        });
        std::iter::once(self.lock.clone()).chain(beside).take(set as usize).collect()
    }
}

/// Separates the lock's name from the suffix of a key beside it. No lock's own key contains it.
pub(super) const BESIDE: &str = ":lockkeeper:";
const CLOSE_AND_BESIDE: &str = "}:lockkeeper:";
const TAGGED: &str = ":lockkeeper:tagged:";

/// Whether a key has a hash tag.
fn has_tag(key: &str) -> bool {
    key.split_once('{').and_then(|(_, rest)| rest.find('}')).is_some_and(|length| length > 0)
}

/// The `SCAN` patterns that find every name in use, by its lock key or its queue.
pub(super) fn patterns(prefix: &str, below: Option<&LockName>) -> [String; 3] {
    let start = escape_pattern(&[prefix, below.map_or("", LockName::as_str)].concat());
    [format!("{start}*"), format!("{{{start}*}}{BESIDE}queue"), format!("{start}*{TAGGED}queue")]
}

fn escape_pattern(text: &str) -> String {
    let special = |c: &char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(&c).then_some('\\').into_iter().chain([c])).collect()
}

/// The lock's key, if `key` is that of a queue.
pub(super) fn lock_of_queue(key: &str) -> Option<&str> {
    let stem = key.strip_suffix("queue")?;
    let plain =
        || stem.strip_suffix(BESIDE)?.strip_prefix('{')?.strip_suffix('}').filter(|lock| !has_tag(lock));
    stem.strip_suffix(TAGGED).filter(|lock| has_tag(lock)).or_else(plain)
}

/// The pub/sub channel of a client's wake-ups.
pub(super) fn channel(client: &str) -> String {
    format!("lockkeeper:wake:{client}")
}

/// The beginning of the value of an entry's hold, up to its token.
pub(super) fn held(id: &EntryId) -> String {
    [OURS, &id.0, ":1:held:"].concat()
}

/// The part of an entry's value after `since`: `extra`, the client, and the texts for display.
pub(super) fn tail(attempt: &Attempt, client: &str) -> Vec<u8> {
    let extra = attempt.entry.closed_after_expiry().as_millis().to_string();
    let texts = [":", &extra, ":", client, "\n", &one_line(&attempt.label), "\n\n\n"].concat();
    [texts.as_bytes(), &attempt.meta].concat()
}

/// The value of a hold that is made without a script: without a token, and with the key's expiry as its only
/// time.
pub(super) fn plain_value(attempt: &Attempt, client: &str, lives_ms: u64) -> Vec<u8> {
    let start = [&held(&attempt.entry.id), "0:+", &lives_ms.to_string()].concat();
    [start.as_bytes(), &tail(attempt, client)].concat()
}

/// Escapes line breaks and backslashes.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '\n']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('\n', "\\n"))
}

fn many_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                other => out.extend(other),
            },
            other => out.push(other),
        }
    }
    out
}

/// A decoded value of a lock's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// A hold of this library.
    Ours(Hold),
    /// Permits are held: their limit, and the owner who took one last.
    Permits { limit: u32, owner: String },
    /// Another client's lock, shortened for display.
    Foreign(String),
}

/// A decoded hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hold {
    pub(super) id: EntryId,
    pub(super) state: State,
    pub(super) token: Option<Token>,
    since: Since,
    extra: Duration,
    owner: String,
    reason: String,
    by: String,
    meta: Vec<u8>,
}

/// Start of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Since {
    /// µs of the server's clock.
    At(u64),
    /// The time for which a plain `SET` has set the key, which was not renewed yet.
    SetFor(Duration),
}

impl Since {
    fn decode(text: &str) -> Option<Self> {
        Some(match text.strip_prefix('+') {
            Some(ms) => Self::SetFor(Duration::from_millis(ms.parse().ok()?)),
            None => Self::At(text.parse().ok()?),
        })
    }

    /// The age of the hold. `left`: the key's remaining time; `now`: µs of the server's clock.
    fn ago(self, left: Duration, now: u64) -> Duration {
        match self {
            Self::At(since) => Duration::from_micros(now.saturating_sub(since)),
            Self::SetFor(lives) => lives.saturating_sub(left),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Held,
    Revoked,
    Closed,
}

impl Value {
    pub(super) fn decode(bytes: &[u8]) -> Self {
        Hold::decode(bytes).map(Self::Ours).or_else(|| Self::marker(bytes)).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(bytes);
            let shown: String = text.chars().take(FOREIGN_SHOWN).flat_map(char::escape_debug).collect();
            let cut = if text.chars().nth(FOREIGN_SHOWN).is_some() { "…" } else { "" };
            Self::Foreign(format!("{shown}{cut}"))
        })
    }

    fn marker(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (limit, owner) = text.strip_prefix(MARKER)?.split_once('\n')?;
        Some(Self::Permits { limit: limit.parse().ok()?, owner: many_lines(owner) })
    }

    /// The owner that holds the lock, for display; `None` if a closed hold keeps it shut.
    pub(super) fn owner(self) -> Option<String> {
        match self {
            Self::Ours(Hold { state: State::Closed, .. }) => None,
            Self::Ours(hold) => Some(hold.owner),
            Self::Permits { owner, .. } => Some(owner),
            Self::Foreign(shown) => Some(format!("another client (`{shown}`)")),
        }
    }
}

/// Removes and returns the first line.
fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    let (line, more) = rest.split_at(end);
    *rest = &more[1..];
    std::str::from_utf8(line).ok()
}

impl Hold {
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let header = line(&mut rest)?.strip_prefix(OURS)?;
        let fields: Vec<&str> = header.split(':').collect();
        let [id, "1", state, token, since, extra, _client] = fields[..] else { return None };
        let state = match state {
            "held" => State::Held,
            "revoked" => State::Revoked,
            "closed" => State::Closed,
            _ => return None,
        };
        Some(Self {
            id: EntryId(id.to_owned()),
            state,
            token: Token::new(token.parse().ok()?),
            since: Since::decode(since)?,
            extra: Duration::from_millis(extra.parse().ok()?),
            owner: many_lines(line(&mut rest)?),
            reason: many_lines(line(&mut rest)?),
            by: many_lines(line(&mut rest)?),
            meta: rest.to_vec(),
        })
    }

    /// Whether the hold has ended and only keeps the lock closed. `left`: the key's remaining time.
    pub(super) fn is_over(&self, left: Duration) -> bool {
        self.state == State::Closed || left <= self.extra
    }

    /// The hold for display. `now`: µs of the server's clock.
    pub(super) fn shown(&self, slot: Option<Slot>, left: Duration, now: u64) -> HolderInfo {
        let over = self.is_over(left);
        HolderInfo {
            token: self.token,
            mode: if slot.is_some() { ModeKind::Permit } else { ModeKind::Exclusive },
            slot,
            held_for: Some(self.since.ago(left, now)),
            state: match self.state {
                _ if over => HolderState::Closed { left },
                State::Revoked => HolderState::Revoked { reason: self.reason.clone(), by: self.by.clone() },
                _ => HolderState::Held,
            },
            meta: decode_meta(&self.meta),
            ..HolderInfo::exclusive(if over { String::new() } else { self.owner.clone() })
        }
    }
}

/// Another client's lock, for display.
pub(super) fn foreign_holder(shown: String) -> HolderInfo {
    HolderInfo::exclusive(shown)
}

/// A waiter, for display.
pub(super) fn waiter(record: &[u8]) -> Option<WaiterInfo> {
    let mut rest = record;
    let mode = line(&mut rest)?.split(':').nth(1)?;
    let owner = many_lines(line(&mut rest)?);
    line(&mut rest)?;
    line(&mut rest)?;
    let mode = if mode == "exclusive" { ModeKind::Exclusive } else { ModeKind::Permit };
    Some(WaiterInfo::new(owner, mode, decode_meta(rest)))
}

/// Decodes any bytes, for the fuzzer.
pub fn fuzz(bytes: &[u8]) {
    let shown = Value::decode(bytes).owner();
    assert!(shown.is_none_or(|shown| shown.len() <= 16 * bytes.len() + 64));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkeeper_core::Mode;

    use super::*;
    use lockkeeper_backend::BootInstant;
    use lockkeeper_backend::leased::Entry;

    fn keys(name: &str) -> Vec<String> {
        Keys::of("app:", &name.parse().unwrap()).list(KeySet::All, &EntryId("7-1".into()))
    }

    #[test]
    fn all_keys_of_a_name_have_its_hash_tag() {
        assert_eq!(
            keys("orders/42")[..3],
            ["app:orders/42", "{app:orders/42}:lockkeeper:queue", "{app:orders/42}:lockkeeper:gone:7-1"]
        );
        assert_eq!(keys("a{b}c")[1], "app:a{b}c:lockkeeper:tagged:queue");
        for (name, shares) in [("x", true), ("{x}", true), ("{}x", false), ("x}", false), ("x{y", true)] {
            assert_eq!(Keys::of("", &name.parse().unwrap()).share_a_slot(), shares, "{name}");
        }
    }

    #[test]
    fn no_two_names_share_a_key() {
        let names =
            ["x", "{x}", "{x}:lockkeeper", "{x}:lockkeeper:tagged", "x:lockkeeper:tagged", "x}", "{x", "{}"];
        let mut all: Vec<String> = names.iter().flat_map(|name| keys(name)).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_name_is_found_by_the_key_of_its_queue() {
        for name in ["x", "a{b}c", "{}", "x}y", "a/b"] {
            let keys = keys(name);
            assert_eq!(lock_of_queue(&keys[1]), Some(keys[0].as_str()), "{name}");
            assert_eq!(lock_of_queue(&keys[4]), None);
        }
        assert_eq!(lock_of_queue("{x:lockkeeper:queue"), None);
        assert_eq!(patterns("a*", None)[0], "a\\**");
    }

    fn attempt(label: &str, meta: &[u8]) -> Attempt {
        let entry = Entry {
            id: EntryId("0123-7".into()),
            name: "x".parse().unwrap(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            keep_closed: Duration::from_secs(1),
            lock_delay: Duration::from_secs(2),
        };
        Attempt {
            entry: Arc::new(entry),
            first: true,
            wait: false,
            ttl_from: BootInstant::now(),
            label: label.into(),
            value: Box::default(),
            meta: meta.into(),
        }
    }

    #[test]
    fn a_value_is_decoded_as_it_was_encoded() {
        for label in ["host:1234", "two\nlines \\n", "", "ü:%"] {
            let attempt = attempt(label, b"job=reindex\nwhy=a:b");
            let value = [held(&attempt.entry.id).as_bytes(), b"17:1000", &tail(&attempt, "c0ffee")].concat();
            let Value::Ours(hold) = Value::decode(&value) else { panic!("not ours: {value:?}") };
            let shown = hold.shown(None, Duration::from_secs(30), 2_001_000);
            assert_eq!(
                (hold.id.0.as_str(), shown.token, shown.label.as_str()),
                ("0123-7", Token::new(17), label)
            );
            assert_eq!((shown.held_for, shown.state), (Some(Duration::from_secs(2)), HolderState::Held));
            assert_eq!(shown.meta, [("job".into(), "reindex".into()), ("why".into(), "a:b".into())]);
            let shut = hold.shown(None, Duration::from_secs(2), 0);
            assert_eq!(shut.state, HolderState::Closed { left: Duration::from_secs(2) });
        }
    }

    #[test]
    fn the_age_of_a_plain_set_follows_from_its_keys_remaining_time() {
        let value = plain_value(&attempt("alice", b""), "c0ffee", 32_000);
        let Value::Ours(hold) = Value::decode(&value) else { panic!("not ours: {value:?}") };
        let shown = hold.shown(None, Duration::from_secs(29), 1_800_000_000_000_000);
        assert_eq!((shown.held_for, shown.state), (Some(Duration::from_secs(3)), HolderState::Held));
        assert_eq!((shown.token, shown.label.as_str()), (None, "alice"));
    }

    #[test]
    fn a_waiter_record_shows_owner_mode_and_meta() {
        let record = [b"1800000000000:permit-4", &*tail(&attempt("alice", b"k=v"), "c0ffee")].concat();
        let shown = waiter(&record).unwrap();
        assert_eq!((shown.label.as_str(), shown.mode), ("alice", ModeKind::Permit));
        assert_eq!(shown.meta, [("k".into(), "v".into())]);
    }

    #[test]
    fn values_of_other_clients_are_escaped_and_cut() {
        let foreign = |bytes: &[u8]| Value::decode(bytes).owner().unwrap();
        assert_eq!(foreign(b"3c2c6c06"), "another client (`3c2c6c06`)");
        assert_eq!(foreign(b"\x1b[2J"), "another client (`\\u{1b}[2J`)");
        assert!(foreign(&[b'x'; 500]).ends_with("…`)") && foreign(&[0xff; 20]).len() < 400);
        for broken in
            ["lockkeeper:", "lockkeeper:a:1:held:x:0:0:c\n\n\n\n", "lockkeeper:a:2:held:0:0:0:c\n\n\n\n"]
        {
            assert!(matches!(Value::decode(broken.as_bytes()), Value::Foreign(_)), "{broken}");
        }
        assert_eq!(Value::decode(b"lockkeeper:permits:1:4\nbob").owner().as_deref(), Some("bob"));
    }
}
