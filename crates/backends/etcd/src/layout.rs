//! Keys and values, in the layout of etcd's own locks (`concurrency.Mutex`, `etcdctl lock`, the lock
//! service): below `LOCK/`, each client that holds or waits has the key `LOCK/LEASE`, with the id of its
//! lease in hexadecimal. The key that was created first holds the lock. The key of a shared request is
//! `LOCK/~LEASE`, so that it is behind all keys of exclusive ones: it holds if no exclusive one was created
//! before it. Other clients of etcd wait for it as for any other.
//!
//! etcd's `LOCK/` is a prefix: in its own layout, which `?layout=plain` selects, the keys of lock `a/b` are
//! among those of lock `a`, which thus waits for it. Without that parameter a `/` in a name is encoded.

use lockkeeper_core::{LockName, Mode, ModeKind};

/// The default prefix of encoded names.
const PREFIX: &str = "lockkeeper/";
/// Begins the keys that wake a client; not below [`PREFIX`].
const WAKE: &str = "lockkeeper!wake/";

/// Begins the last part of a shared request's key. Sorts after all hexadecimal digits and [`PERMIT`].
const SHARED: &str = "~";
/// Begins the last part of the key of a request for a permit.
const PERMIT: &str = "permit-";

/// The mapping of lock names to keys.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    prefix: String,
    is_plain: bool,
}

impl Layout {
    pub(super) fn encoded(prefix: Option<&str>) -> Self {
        Self { prefix: prefix.unwrap_or(PREFIX).to_owned(), is_plain: false }
    }

    pub(super) fn plain(prefix: Option<&str>) -> Self {
        Self { prefix: prefix.unwrap_or_default().to_owned(), is_plain: true }
    }

    /// The prefix of all keys of a lock.
    pub(super) fn folder(&self, name: &LockName) -> String {
        let name = name.as_str();
        let name = if self.is_plain { name.to_owned() } else { encoded(name) };
        format!("{}{name}/", self.prefix)
    }

    /// The key range of all locks: its first key, and the first key after it.
    pub(super) fn all(&self) -> (Vec<u8>, Vec<u8>) {
        let start = self.prefix.clone().into_bytes();
        match start.is_empty() {
            // All keys of etcd.
            true => (vec![0], vec![0]),
            false => (start.clone(), behind(&start)),
        }
    }

    /// A key range with the locks at and below a name, and perhaps others: its first key, and the first key
    /// after it.
    pub(super) fn below(&self, name: Option<&LockName>) -> (Vec<u8>, Vec<u8>) {
        let Some(name) = name else { return self.all() };
        let folder = self.folder(name).into_bytes();
        // Without the last `/`: in an encoded name below this one, another character follows.
        let begin = folder[..folder.len() - 1].to_vec();
        (begin.clone(), behind(&begin))
    }

    /// The lock to which a key belongs; `None` if it is not the key of a request.
    pub(super) fn name_of(&self, key: &[u8]) -> Option<LockName> {
        let key = std::str::from_utf8(key).ok().filter(|key| !key.starts_with(WAKE))?;
        let key = key.strip_prefix(&self.prefix)?;
        let (name, lease) = key.rsplit_once('/')?;
        let lease = lease.strip_prefix(SHARED).or(lease.strip_prefix(PERMIT)).unwrap_or(lease);
        let is_lease =
            !lease.is_empty() && lease.len() <= 16 && lease.bytes().all(|it| it.is_ascii_hexdigit());
        let name = if self.is_plain { name.to_owned() } else { decoded(name)? };
        LockName::parse(&name).ok().filter(|_| is_lease)
    }
}

/// The key that wakes a client. `client` is unique.
pub(super) fn wake_key(client: &str) -> Vec<u8> {
    format!("{WAKE}{client}").into_bytes()
}

/// The key of a lease below a lock's prefix.
pub(super) fn key(folder: &str, mode: Mode, lease: i64) -> Vec<u8> {
    let kind = match mode {
        Mode::Exclusive => "",
        Mode::Shared => SHARED,
        Mode::Permit { .. } => PERMIT,
    };
    format!("{folder}{kind}{lease:x}").into_bytes()
}

/// The kind of request that a key below a lock's prefix belongs to.
pub(super) fn kind(folder: &str, key: &[u8]) -> ModeKind {
    let lease = key.strip_prefix(folder.as_bytes()).unwrap_or_default();
    match lease {
        lease if lease.starts_with(SHARED.as_bytes()) => ModeKind::Shared,
        lease if lease.starts_with(PERMIT.as_bytes()) => ModeKind::Permit,
        _ => ModeKind::Exclusive,
    }
}

/// The range of the keys of permit requests: its first key, and the first key after it.
pub(super) fn permits(folder: &str) -> (Vec<u8>, Vec<u8>) {
    let begin = format!("{folder}{PERMIT}").into_bytes();
    (begin.clone(), behind(&begin))
}

/// The range of the keys that a request of this mode waits for: its first key, and the first key after it.
pub(super) fn obstacles(folder: &str, mode: Mode) -> (Vec<u8>, Vec<u8>) {
    let end = match mode {
        Mode::Shared => format!("{folder}{SHARED}").into_bytes(),
        _ => behind(folder.as_bytes()),
    };
    (folder.as_bytes().to_vec(), end)
}

/// The first key after all keys that begin with `prefix`.
pub(super) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No such key exists: the range extends to the end of the key space.
    vec![0]
}

fn encoded(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

/// `None` for a name that [`encoded`] does not write: two keys would map to one lock.
fn decoded(name: &str) -> Option<String> {
    if name.contains('/') {
        return None;
    }
    let mut decoded = String::new();
    let mut parts = name.split('%');
    decoded.push_str(parts.next()?);
    for part in parts {
        decoded.push(match part.get(..2)? {
            "25" => '%',
            "2F" => '/',
            _ => return None,
        });
        decoded.push_str(&part[2..]);
    }
    Some(decoded)
}

/// Decodes any bytes, for the fuzzer.
pub fn fuzz(bytes: &[u8]) {
    for layout in [Layout::encoded(None), Layout::plain(None), Layout::encoded(Some("locks/"))] {
        let Some(name) = layout.name_of(bytes) else { continue };
        let folder = layout.folder(&name);
        assert!(bytes.starts_with(folder.as_bytes()), "`{name}` is not below `{folder}`");
        let _ = kind(&folder, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_etcds_own_locks() {
        let name = LockName::parse("orders/42").unwrap();
        assert_eq!(Layout::plain(None).folder(&name), "orders/42/");
        assert_eq!(key("orders/42/", Mode::Exclusive, 0x694d_7485_ac41_d405), b"orders/42/694d7485ac41d405");
        assert_eq!(key("orders/42/", Mode::Shared, 0x1f), b"orders/42/~1f");
        assert_eq!(Layout::encoded(None).folder(&name), "lockkeeper/orders%2F42/");
    }

    #[test]
    fn every_name_comes_back_from_its_key_and_other_keys_are_nobodys() {
        for layout in [Layout::encoded(None), Layout::encoded(Some("")), Layout::plain(None)] {
            for name in ["a", "a/b", "100%/x", "!wake/1f", "%2F"] {
                let name = LockName::parse(name).unwrap();
                for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { of: Some(3) }] {
                    assert_eq!(layout.name_of(&key(&layout.folder(&name), mode, 0x1f)), Some(name.clone()));
                }
            }
            assert_eq!(layout.name_of(b"lockkeeper"), None);
            assert_eq!(layout.name_of(b"lockkeeper/a/not-a-lease"), None);
        }
        assert_eq!(Layout::plain(None).name_of(&wake_key("1f")), None);
    }

    #[test]
    fn shared_requests_wait_for_all_but_shared_ones() {
        let (begin, end) = obstacles("x/", Mode::Shared);
        let is_obstacle = |key: &[u8]| begin.as_slice() <= key && key < end.as_slice();
        assert!(
            is_obstacle(&key("x/", Mode::Exclusive, i64::MAX)) && is_obstacle(&key("x/", Mode::Exclusive, 1))
        );
        let permit = Mode::Permit { of: Some(3) };
        assert!(is_obstacle(&key("x/", permit, i64::MAX)));
        assert!(!is_obstacle(&key("x/", Mode::Shared, 1)) && !is_obstacle(b"y/1"));
        let (begin, end) = permits("x/");
        let own = key("x/", permit, 7);
        assert!(begin <= own && own < end);
        for mode in [Mode::Exclusive, Mode::Shared, permit] {
            assert_eq!(kind("x/", &key("x/", mode, 1)), mode.kind());
        }
    }

    #[test]
    fn range_of_a_prefix_ends_behind_its_last_key() {
        assert_eq!(behind(b"a/"), b"a0");
        assert_eq!(behind(b"a\xff"), b"b");
        assert_eq!(behind(b"\xff"), [0]);
    }
}
