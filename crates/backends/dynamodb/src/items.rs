//! The two items of a lock: the lock item, in the layout of other lock clients of DynamoDB, and the fence
//! item, with the lock's last token, which only this library uses.
//!
//! The lock item of a shared lock has the fixed owner [`SHARED`] and a map of the holders. Each holder's
//! renewal also changes the item's version, so other clients see one live holder.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lockkeeper_backend::leased::{Attempt, Entry, EntryId, Note, Revocation};
use lockkeeper_backend::{BackendError, BackendErrorKind};
use lockkeeper_core::{LockName, Mode, ModeKind, Token};

/// Suffix of the key of a fence item.
const FENCE: &str = "#fence";
/// The attribute of the token, in both items.
pub(super) const TOKEN: &str = "token";
/// The attribute of this library's note (for display, and an operator's break), in JSON.
const NOTE: &str = "lockkeeper";
pub(super) const BREAK: &str = "lockkeeperBreak";
/// Prefix of the owners of this library's holds.
const OWNER: &str = "lockkeeper/";
/// The owner of a lock that is held shared, and the attribute with its holders by their owners.
pub(super) const SHARED: &str = "lockkeeper/shared";
pub(super) const READERS: &str = "lockkeeperReaders";
/// The attributes of a shared holder; token, note and break are as in a lock's item.
pub(super) const READER_VERSION: &str = "version";
const READER_LEASE: &str = "lease";
/// How long after its ttl DynamoDB may delete an abandoned item, in layouts with an expiry. Longer than any
/// ttl and lock-delay, so that the expiry written by one shared holder is never before the end of another's
/// lease.
const EXPIRY: Duration = Duration::from_secs(3 * 3600);

pub(super) type Item = HashMap<String, AttributeValue>;

/// The names of attributes, and their units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Attributes {
    /// The partition key.
    pub(super) key: String,
    /// The sort key, if the table has one, and its value in all items of locks.
    pub(super) sort: Option<(String, String)>,
    pub(super) owner: &'static str,
    pub(super) lease: &'static str,
    pub(super) version: &'static str,
    /// The attribute that marks a lock as free; `None`: the item is deleted.
    pub(super) released: Option<&'static str>,
    /// The attribute with the time at which DynamoDB may delete the item, in seconds since 1970.
    pub(super) expiry: Option<&'static str>,
}

impl Attributes {
    /// The layout of AWS Labs' Java client and its ports.
    pub(super) fn awslabs() -> Self {
        Self {
            key: "key".to_owned(),
            sort: None,
            owner: "ownerName",
            lease: "leaseDuration",
            version: "recordVersionNumber",
            released: Some("isReleased"),
            expiry: None,
        }
    }

    /// The layout of `python_dynamodb_lock`.
    pub(super) fn python() -> Self {
        Self {
            key: "lock_key".to_owned(),
            sort: Some(("sort_key".to_owned(), "-".to_owned())),
            owner: "owner_name",
            lease: "lease_duration",
            version: "record_version_number",
            released: None,
            expiry: Some("expiry_time"),
        }
    }

    fn key_of(&self, key: String) -> Item {
        let mut item = Item::from([(self.key.clone(), AttributeValue::S(key))]);
        if let Some((name, value)) = &self.sort {
            item.insert(name.clone(), AttributeValue::S(value.clone()));
        }
        item
    }

    /// The key of a lock's item.
    pub(super) fn lock(&self, name: &LockName) -> Item {
        self.key_of(name.as_str().to_owned())
    }

    /// The key of the item with a lock's last token.
    pub(super) fn fence(&self, name: &LockName) -> Item {
        self.key_of(format!("{name}{FENCE}"))
    }

    /// The item of a lock that this library holds, alone or as the first shared holder.
    pub(super) fn held(&self, attempt: &Attempt, version: String, token: u64) -> Item {
        let entry = &*attempt.entry;
        let mut item = self.lock(&entry.name);
        item.insert(self.lease.to_owned(), self.lease_of(observed_lease(entry)));
        if entry.mode == Mode::Shared {
            let reader = reader(attempt, version.clone(), token);
            let readers = HashMap::from([(owner(&entry.id), AttributeValue::M(reader))]);
            item.insert(self.owner.to_owned(), AttributeValue::S(SHARED.to_owned()));
            item.insert(READERS.to_owned(), AttributeValue::M(readers));
        } else {
            item.insert(self.owner.to_owned(), AttributeValue::S(owner(&entry.id)));
            item.insert(TOKEN.to_owned(), AttributeValue::N(token.to_string()));
            item.insert(NOTE.to_owned(), note(attempt));
        }
        if let Some(expiry) = self.expiry {
            item.insert(expiry.to_owned(), expires(entry));
        }
        item.insert(self.version.to_owned(), AttributeValue::S(version));
        item
    }

    /// A lease in the layout's unit: milliseconds as text, or seconds as a number.
    pub(super) fn lease_of(&self, ttl: Duration) -> AttributeValue {
        match self.expiry {
            None => AttributeValue::S(ttl.as_millis().to_string()),
            Some(_) => AttributeValue::N(ttl.as_secs_f64().to_string()),
        }
    }

    /// Decodes a lock item; `None` for any other item.
    pub(super) fn read(&self, item: &Item) -> Option<LockItem> {
        let lease = match (item.get(self.lease)?, self.expiry) {
            (AttributeValue::S(ms), None) => Duration::from_millis(ms.parse().ok()?),
            (AttributeValue::N(seconds), Some(_)) => {
                Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?
            }
            _ => return None,
        };
        let (owner, version) = (text(item, self.owner)?, text(item, self.version)?);
        let mut holders = BTreeMap::new();
        if self.released.is_some_and(|released| item.contains_key(released)) {
            // The lock has no holder.
        } else if owner == SHARED {
            let readers = item.get(READERS)?.as_m().ok()?;
            for (owner, reader) in readers {
                let reader = reader.as_m().ok()?;
                let lease = Duration::from_millis(reader.get(READER_LEASE).and_then(number)?);
                let version = text(reader, READER_VERSION)?;
                holders.insert(owner.clone(), ItemHolder::read(reader, ModeKind::Shared, version, lease));
            }
        } else {
            let holder = ItemHolder::read(item, ModeKind::Exclusive, version.clone(), lease);
            // Another client that takes an item over leaves the previous holder's token in it.
            let is_own = owner.starts_with(OWNER);
            let holder = ItemHolder { token: holder.token.filter(|_| is_own), ..holder };
            holders.insert(owner.clone(), holder);
        }
        Some(LockItem { name: text(item, &self.key)?, owner, version, lease, holds: holders })
    }

    /// The name of the lock of an item with this key; `None` for the item of a token.
    pub(super) fn name_of(key: &str) -> Option<LockName> {
        LockName::parse(key).ok().filter(|_| !key.ends_with(FENCE))
    }
}

/// Refuses a name whose lock item would have the key of another lock's fence item.
pub(super) fn refused_name(name: &LockName) -> Option<BackendError> {
    name.as_str().ends_with(FENCE).then(|| {
        let what =
            format!("`{name}` can't be a lock in DynamoDB: names that end in `{FENCE}` are taken for tokens");
        BackendError::new(BackendErrorKind::Refused, what)
    })
}

/// The owner of a lease-store entry in its item. Identifies the hold: it is unique, while the version changes
/// with every renewal.
pub(super) fn owner(entry: &EntryId) -> String {
    format!("{OWNER}{entry}")
}

/// For how long others observe a hold before they take its lock over: the ttl, and the time for which the
/// lock is to stay closed after an expiry.
pub(super) fn observed_lease(entry: &Entry) -> Duration {
    entry.ttl + entry.lock_delay
}

/// A shared holder of this library.
pub(super) fn reader(attempt: &Attempt, version: String, token: u64) -> Item {
    let lease = observed_lease(&attempt.entry).as_millis().to_string();
    Item::from([
        (READER_VERSION.to_owned(), AttributeValue::S(version)),
        (READER_LEASE.to_owned(), AttributeValue::N(lease)),
        (TOKEN.to_owned(), AttributeValue::N(token.to_string())),
        (NOTE.to_owned(), note(attempt)),
    ])
}

fn note(attempt: &Attempt) -> AttributeValue {
    AttributeValue::S(String::from_utf8(Note::of(attempt).bytes()).unwrap_or_default())
}

/// The time at which DynamoDB may delete the item of an entry that is no longer renewed. By this machine's
/// wall clock, as in AWS Labs' client; the margin is [`EXPIRY`].
pub(super) fn expires(entry: &Entry) -> AttributeValue {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    AttributeValue::N((now + entry.ttl + EXPIRY).as_secs().to_string())
}

/// The token in an item of [`Attributes::fence`].
pub(super) fn last_token(item: &Item) -> Option<u64> {
    item.get(TOKEN).and_then(number)
}

fn number(value: &AttributeValue) -> Option<u64> {
    value.as_n().ok()?.parse().ok()
}

fn text(item: &Item, attribute: &str) -> Option<String> {
    item.get(attribute)?.as_s().ok().cloned()
}

/// A lock's item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LockItem {
    /// Its key.
    pub(super) name: String,
    pub(super) owner: String,
    /// Changes with every acquire and renewal.
    pub(super) version: String,
    /// For how long other clients observe the version.
    pub(super) lease: Duration,
    /// The holders by owner; empty if the lock was released.
    pub(super) holds: BTreeMap<String, ItemHolder>,
}

/// A holder, dead or alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ItemHolder {
    pub(super) mode: ModeKind,
    /// Changes with every acquire and renewal.
    pub(super) version: String,
    /// The holder is dead if the version stays the same for this long.
    pub(super) lease: Duration,
    /// `None` if the holder is another client.
    pub(super) token: Option<Token>,
    pub(super) note: Option<Note>,
    pub(super) revocation: Option<Revocation>,
}

impl ItemHolder {
    fn read(item: &Item, mode: ModeKind, version: String, lease: Duration) -> Self {
        Self {
            mode,
            version,
            lease,
            token: item.get(TOKEN).and_then(number).and_then(Token::new),
            note: text(item, NOTE).and_then(|note| Note::read(note.as_bytes())),
            revocation: text(item, BREAK).and_then(|revocation| serde_json::from_str(&revocation).ok()),
        }
    }
}

impl LockItem {
    /// Whether further shared holders may join.
    pub(super) fn is_shared(&self) -> bool {
        self.owner == SHARED && !self.holds.is_empty()
    }

    /// The first holder's owner, for display.
    pub(super) fn shown_owner(&self) -> Option<String> {
        self.holds.iter().next().map(|(owner, holder)| shown_owner(owner, holder))
    }
}

/// A holder's owner, for display.
pub(super) fn shown_owner(owner: &str, holder: &ItemHolder) -> String {
    match &holder.note {
        Some(note) if owner.starts_with(OWNER) => note.owner.clone(),
        _ => format!("another client (`{owner}`)"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkeeper_core::Mode;

    use super::*;
    use lockkeeper_backend::BootInstant;

    fn attempt(mode: Mode) -> Attempt {
        let entry = Entry {
            id: EntryId("00ff-7".to_owned()),
            name: LockName::parse("orders/42").unwrap(),
            mode,
            ttl: Duration::from_millis(2500),
            keep_closed: Duration::ZERO,
            lock_delay: Duration::ZERO,
        };
        Attempt {
            entry: Arc::new(entry),
            first: true,
            wait: false,
            ttl_from: BootInstant::now(),
            label: "ana".into(),
            value: Box::default(),
            meta: Box::default(),
        }
    }

    fn text(value: &str) -> AttributeValue {
        AttributeValue::S(value.to_owned())
    }

    fn holder_of(item: &LockItem) -> (Duration, Option<Token>, String) {
        let (owner, holder) = item.holds.iter().next().unwrap();
        (holder.lease, holder.token, shown_owner(owner, holder))
    }

    #[test]
    fn items_are_those_of_the_client_in_java() {
        let attributes = Attributes::awslabs();
        let item = attributes.held(&attempt(Mode::Exclusive), "v1".to_owned(), 5);
        assert_eq!(item["key"], text("orders/42"));
        assert_eq!(item["ownerName"], text("lockkeeper/00ff-7"));
        assert_eq!(item["leaseDuration"], text("2500"));
        assert_eq!(item["recordVersionNumber"], text("v1"));
        assert!(!item.contains_key("isReleased"));
        assert_eq!(attributes.fence(&attempt(Mode::Exclusive).entry.name)["key"], text("orders/42#fence"));
        let read = attributes.read(&item).unwrap();
        assert_eq!(holder_of(&read), (Duration::from_millis(2500), Token::new(5), "ana".to_owned()));
        let mut released = item;
        released.insert("isReleased".to_owned(), text("1"));
        assert!(attributes.read(&released).unwrap().holds.is_empty());
    }

    #[test]
    fn items_are_those_of_the_client_in_python() {
        let attributes = Attributes::python();
        let item = attributes.held(&attempt(Mode::Exclusive), "v1".to_owned(), 5);
        assert_eq!((&item["lock_key"], &item["sort_key"]), (&text("orders/42"), &text("-")));
        assert_eq!(item["lease_duration"], AttributeValue::N("2.5".to_owned()));
        assert!(item["expiry_time"].as_n().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
        assert_eq!(attributes.read(&item).unwrap().lease, Duration::from_millis(2500));
    }

    #[test]
    fn shared_holders_are_one_owner_to_other_clients() {
        for attributes in [Attributes::awslabs(), Attributes::python()] {
            let item = attributes.held(&attempt(Mode::Shared), "v1".to_owned(), 5);
            assert_eq!(item[attributes.owner], text("lockkeeper/shared"));
            let read = attributes.read(&item).unwrap();
            assert!(read.is_shared());
            assert_eq!((read.version.as_str(), read.lease), ("v1", Duration::from_millis(2500)));
            assert_eq!(holder_of(&read), (Duration::from_millis(2500), Token::new(5), "ana".to_owned()));
            assert_eq!(read.holds["lockkeeper/00ff-7"].mode, ModeKind::Shared);
        }
    }

    #[test]
    fn another_clients_item_has_no_token_of_its_own() {
        let attributes = Attributes::awslabs();
        let mut item = attributes.held(&attempt(Mode::Exclusive), "v1".to_owned(), 5);
        item.insert("ownerName".to_owned(), text("host-1"));
        let read = attributes.read(&item).unwrap();
        let (_, token, owner) = holder_of(&read);
        assert_eq!((token, owner), (None, "another client (`host-1`)".to_owned()));
        assert_eq!(attributes.read(&attributes.lock(&attempt(Mode::Exclusive).entry.name)), None);
    }
}
