//! The items of a lock: the lock's own, in the layout of other lock clients of DynamoDB, and one with its last token, which
//! those don't know.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lockkeeper_core::{LockName, Token};

use crate::backends::leased::{Attempt, Entry, EntryId, Note, Revocation};
use crate::error::{BackendError, BackendErrorKind};

/// Ends the key of the item with a lock's last token.
const FENCE: &str = "#fence";
/// The attribute of a token, in both items.
pub(super) const TOKEN: &str = "token";
/// What this library stores for display in the lock's item, and an operator's break; both JSON.
const NOTE: &str = "lockkeeper";
pub(super) const BREAK: &str = "lockkeeperBreak";
/// Begins the owner of each hold of this library.
const OWNER: &str = "lockkeeper/";
/// For how long an item that only a crashed holder would leave exists, where items have an expiry.
const EXPIRY: Duration = Duration::from_secs(3600);

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
    /// The attribute that says that a lock is free; `None`: the item is deleted.
    pub(super) released: Option<&'static str>,
    /// The attribute with the time at which DynamoDB may delete the item, in seconds since 1970.
    pub(super) expiry: Option<&'static str>,
}

impl Attributes {
    /// Of the client in Java by AWS Labs, and its ports.
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

    /// Of `python_dynamodb_lock`.
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

    /// The item of a lock that this library holds.
    pub(super) fn held(&self, attempt: &Attempt, version: String, token: u64) -> Item {
        let entry = &*attempt.entry;
        let note = String::from_utf8(Note::of(attempt).bytes()).unwrap_or_default();
        let mut item = self.lock(&entry.name);
        item.insert(self.owner.to_owned(), owner(&entry.id));
        item.insert(self.lease.to_owned(), self.lease_of(entry.ttl));
        item.insert(self.version.to_owned(), AttributeValue::S(version));
        item.insert(TOKEN.to_owned(), AttributeValue::N(token.to_string()));
        item.insert(NOTE.to_owned(), AttributeValue::S(note));
        if let Some(expiry) = self.expiry {
            item.insert(expiry.to_owned(), expires(entry));
        }
        item
    }

    /// Milliseconds as text, or seconds as a number.
    fn lease_of(&self, ttl: Duration) -> AttributeValue {
        match self.expiry {
            None => AttributeValue::S(ttl.as_millis().to_string()),
            Some(_) => AttributeValue::N(ttl.as_secs_f64().to_string()),
        }
    }

    /// Reads a lock's item; `None` if it is no lock's.
    pub(super) fn read(&self, item: &Item) -> Option<LockItem> {
        let text = |name: &str| item.get(name)?.as_s().ok().cloned();
        let lease = match (item.get(self.lease)?, self.expiry) {
            (AttributeValue::S(ms), None) => Duration::from_millis(ms.parse().ok()?),
            (AttributeValue::N(seconds), Some(_)) => {
                Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?
            }
            _ => return None,
        };
        Some(LockItem {
            name: text(&self.key)?,
            owner: text(self.owner)?,
            version: text(self.version)?,
            lease,
            is_released: self.released.is_some_and(|released| item.contains_key(released)),
            token: item.get(TOKEN).and_then(number),
            note: text(NOTE).and_then(|note| Note::read(note.as_bytes())),
            revocation: text(BREAK).and_then(|revocation| serde_json::from_str(&revocation).ok()),
        })
    }

    /// The name of the lock of an item with this key; `None` for the item of a token.
    pub(super) fn name_of(key: &str) -> Option<LockName> {
        LockName::parse(key).ok().filter(|_| !key.ends_with(FENCE))
    }
}

/// A name whose item would be another lock's item with the last token.
pub(super) fn refused_name(name: &LockName) -> Option<BackendError> {
    name.as_str().ends_with(FENCE).then(|| {
        let what =
            format!("`{name}` can't be a lock in DynamoDB: names that end in `{FENCE}` are taken for tokens");
        BackendError::new(BackendErrorKind::Refused, what)
    })
}

/// The owner that an entry has in its item. It is unique, and so identifies the hold; the version does not, since every
/// renewal changes it.
pub(super) fn owner(entry: &EntryId) -> AttributeValue {
    AttributeValue::S(owner_text(entry))
}

pub(super) fn owner_text(entry: &EntryId) -> String {
    format!("{OWNER}{entry}")
}

/// The time at which DynamoDB may delete the item of an entry that is not renewed any more. By this machine's clock, as in the
/// client whose layout has it: it is an hour later than necessary.
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

/// A lock's item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LockItem {
    /// Its key.
    pub(super) name: String,
    pub(super) owner: String,
    /// Changes with every acquire and renewal.
    pub(super) version: String,
    /// The holder is dead if the version is the same for so long.
    pub(super) lease: Duration,
    pub(super) is_released: bool,
    /// `None` if the holder is another client.
    pub(super) token: Option<u64>,
    pub(super) note: Option<Note>,
    pub(super) revocation: Option<Revocation>,
}

impl LockItem {
    /// The holder's token. Another client that takes over an item in place leaves a token in it that is not its own.
    pub(super) fn held_token(&self) -> Option<Token> {
        self.token.filter(|_| self.owner.starts_with(OWNER)).and_then(Token::new)
    }

    /// The owner, for display.
    pub(super) fn shown_owner(&self) -> String {
        match &self.note {
            Some(note) if self.owner.starts_with(OWNER) => note.owner.clone(),
            _ => format!("another client (`{}`)", self.owner),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkeeper_core::Mode;

    use super::*;

    fn attempt() -> Attempt {
        let entry = Entry {
            id: EntryId("00ff-7".to_owned()),
            name: LockName::parse("orders/42").unwrap(),
            mode: Mode::Exclusive,
            ttl: Duration::from_millis(2500),
            keep_closed: Duration::ZERO,
            lock_delay: Duration::ZERO,
        };
        Attempt {
            entry: Arc::new(entry),
            first: true,
            wait: false,
            label: "ana".into(),
            meta: Box::default(),
        }
    }

    fn text(value: &str) -> AttributeValue {
        AttributeValue::S(value.to_owned())
    }

    #[test]
    fn items_are_those_of_the_client_in_java() {
        let attributes = Attributes::awslabs();
        let item = attributes.held(&attempt(), "v1".to_owned(), 5);
        assert_eq!(item["key"], text("orders/42"));
        assert_eq!(item["ownerName"], text("lockkeeper/00ff-7"));
        assert_eq!(item["leaseDuration"], text("2500"));
        assert_eq!(item["recordVersionNumber"], text("v1"));
        assert!(!item.contains_key("isReleased"));
        assert_eq!(attributes.fence(&attempt().entry.name)["key"], text("orders/42#fence"));
        let read = attributes.read(&item).unwrap();
        assert_eq!(
            (read.lease, read.held_token(), read.shown_owner()),
            (Duration::from_millis(2500), Token::new(5), "ana".to_owned())
        );
    }

    #[test]
    fn items_are_those_of_the_client_in_python() {
        let attributes = Attributes::python();
        let item = attributes.held(&attempt(), "v1".to_owned(), 5);
        assert_eq!((&item["lock_key"], &item["sort_key"]), (&text("orders/42"), &text("-")));
        assert_eq!(item["lease_duration"], AttributeValue::N("2.5".to_owned()));
        assert!(item["expiry_time"].as_n().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
        assert_eq!(attributes.read(&item).unwrap().lease, Duration::from_millis(2500));
    }

    #[test]
    fn another_clients_item_has_no_token_of_its_own() {
        let attributes = Attributes::awslabs();
        let mut item = attributes.held(&attempt(), "v1".to_owned(), 5);
        item.insert("ownerName".to_owned(), text("host-1"));
        let read = attributes.read(&item).unwrap();
        assert_eq!((read.held_token(), read.shown_owner()), (None, "another client (`host-1`)".to_owned()));
        assert_eq!(attributes.read(&attributes.lock(&attempt().entry.name)), None);
    }
}
