//! How a request is visible in the server's own views: by a comment before its statements, and by its
//! connection's `application_name`. `pg_locks` shows only keys and processes, and there is no table, so
//! `inspect` has no other source for names and owners.

use lockkeeper_backend::{BackendError, hex, random_bytes};
use postgres_protocol::escape::escape_literal;
use serde::{Deserialize, Serialize};

/// Prefix of every comment.
const MARK: &str = "/*lockkeeper:";
/// Prefix of the `application_name` of a connection that holds or waits.
const BADGE: &str = "lockkeeper ";
/// The `application_name` of an idle connection.
pub(super) const IDLE: &str = "lockkeeper";
/// Bytes of `track_activity_query_size` that are reserved for the statement after the comment.
const COMMENT_BYTES: usize = 32;

/// The content of the comment. If it exceeds the server's limit, the metadata is left out first, then the
/// owner, then the name and the revocation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Note {
    /// How a break reaches the client. Never left out.
    #[serde(flatten)]
    pub(super) contact: Contact,
    /// The lock's name, which can't be derived from the advisory lock key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) owner: String,
    /// `key=value` lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) meta: String,
    /// An operator's break, once the holder has received it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<Revocation>,
}

/// How a break reaches a client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Contact {
    /// 48 random bits that name the channel on which the client listens, and its query connection.
    #[serde(default)]
    pub(super) client: String,
    /// 48 random bits that a break must present. Any client can send a notification, and names of connections
    /// are public, but a note is visible only to its own role and to roles that may read everything.
    #[serde(default)]
    pub(super) key: String,
}

impl Contact {
    pub(super) fn new() -> Result<Self, BackendError> {
        Ok(Self { client: random()?, key: random()? })
    }

    /// The notification channel of the client's breaks.
    pub(super) fn channel(&self) -> String {
        format!("lockkeeper_{}", self.client)
    }

    /// The `application_name` of a query connection that listens.
    pub(super) fn monitor(&self) -> String {
        format!("{BADGE}monitor {}", self.client)
    }

    /// The statement that begins to listen.
    pub(super) fn listen(&self) -> String {
        format!("listen {}", self.channel())
    }

    /// The statement that shows that the connection listens, and turns off the limit for idle connections
    /// (PostgreSQL 14 and newer have one).
    pub(super) fn show(&self) -> String {
        format!(
            "select pg_catalog.set_config('application_name', '{}', false), (select pg_catalog.set_config(name, '0', \
             false) from pg_catalog.pg_settings where name = 'idle_session_timeout')",
            self.monitor()
        )
    }
}

/// Payload of the notification that breaks a hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Letter {
    /// [`Contact::key`] of the holder's note.
    pub(super) key: String,
    #[serde(flatten)]
    pub(super) revocation: Revocation,
}

/// An operator's break of a hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Revocation {
    pub(super) token: u64,
    pub(super) reason: String,
    pub(super) by: String,
}

impl Note {
    /// The comment, in ASCII for any name, as the database's encoding may lack other characters. Its content
    /// includes neither `/*` nor `*/`.
    pub(super) fn comment(&self, shown_bytes: usize) -> String {
        let most = shown_bytes.saturating_sub(COMMENT_BYTES);
        let meta_less = || Self { meta: String::new(), ..self.clone() };
        let owner_less = || Self { owner: String::new(), ..meta_less() };
        let name_less = || Self { name: String::new(), ..owner_less() };
        let fits = |note: Self| Some(note.encode()).filter(|comment| comment.len() <= most);
        fits(self.clone())
            .or_else(|| fits(meta_less()))
            .or_else(|| fits(owner_less()))
            .unwrap_or_else(|| Self { revoked: None, ..name_less() }.encode())
    }

    fn encode(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        let mut comment = String::with_capacity(MARK.len() + json.len() + 3);
        comment.push_str(MARK);
        for letter in json.chars() {
            match letter {
                // In JSON, `*` occurs only within strings, where the escape has the same meaning.
                '*' => comment.push_str("\\u002a"),
                ' '..='~' => comment.push(letter),
                _ => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        comment.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        comment.push_str("*/ ");
        comment
    }

    /// Parses the note before a statement; `None` if it is missing, foreign or truncated.
    pub(super) fn read(statement: &str) -> Option<Self> {
        let (json, _) = statement.trim_start().strip_prefix(MARK)?.split_once("*/")?;
        serde_json::from_str(json).ok()
    }
}

/// The `application_name` of a connection with a request: `lockkeeper TOKEN ID SINCE LABEL` for a holder (`-`
/// for no token; SINCE in seconds of the Unix epoch by the server's clock), and `lockkeeper ? ID LABEL`
/// before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Badge {
    /// Id of the connection.
    id: String,
    label: String,
}

/// The variable parts of a badge, as SQL expressions.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    pub(super) id: &'a str,
    pub(super) label: &'a str,
}

impl Words<'_> {
    /// The badge of a connection without a lock.
    pub(super) fn waiting(self) -> String {
        format!("'{BADGE}? ' || {} || ' ' || {}", self.id, self.label)
    }

    /// The badge of a holder. `token` and `since` (a timestamp) are SQL expressions too.
    pub(super) fn held(self, token: &str, since: &str) -> String {
        format!(
            "pg_catalog.format('{BADGE}%s %s %s %s', coalesce(({token})::text, '-'), {}, \
             pg_catalog.date_part('epoch', {since})::bigint, {})",
            self.id, self.label
        )
    }
}

/// A parsed holder's badge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) token: Option<u64>,
    pub(super) since: u64,
}

/// 48 random bits, in hexadecimal digits.
pub(super) fn random() -> Result<String, BackendError> {
    Ok(hex(&random_bytes::<6>()?))
}

/// The label in printable ASCII, which every encoding of a database has. Other characters, and zero bytes,
/// which no text may contain, become `?`. The note has the full label.
fn shown(label: &str) -> String {
    label.chars().map(|letter| if matches!(letter, ' '..='~') { letter } else { '?' }).collect()
}

impl Badge {
    pub(super) fn new(id: &str, label: &str) -> Self {
        Self { id: id.to_owned(), label: shown(label) }
    }

    /// The variable parts of the badge, as SQL literals.
    pub(super) fn words(&self) -> (String, String) {
        (escape_literal(&self.id), escape_literal(&self.label))
    }
}

/// Condition on `application_name`: the badge of the connection with this id.
pub(super) fn is_worn(id: &str) -> String {
    // The pattern needs no escapes: it has hex digits and blanks only.
    format!("application_name like '{BADGE}% {id}%'")
}

impl Held {
    /// Condition on `application_name`: a holder's badge with this token.
    pub(super) fn is_worn(token: u64) -> String {
        format!("application_name like '{BADGE}{token} %'")
    }

    /// Parses the badge in an `application_name`; `None` unless it is a holder's.
    pub(super) fn read(application_name: &str) -> Option<Self> {
        let mut words = application_name.strip_prefix(BADGE)?.split(' ');
        let token = match words.next()? {
            "-" => None,
            token => Some(token.parse().ok()?),
        };
        let _id = words.next()?;
        Some(Self { token, since: words.next()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Note {
            contact: Contact { client: "5f4e3d2c1b0a".into(), key: "0a1b2c3d4e5f".into() },
            name: "orders/42/* evil */".into(),
            owner: "büro@host 😀".into(),
            meta: "job=re\"index\nx=*/ select 1".into(),
            revoked: None,
        }
    }

    #[test]
    fn notes_round_trip_and_never_end_their_comment() {
        let comment = note().comment(1024);
        assert!(comment.is_ascii() && !comment[2..].contains("/*"), "{comment}");
        assert_eq!(comment.matches("*/").count(), 1, "{comment}");
        assert_eq!(Note::read(&format!("{comment}select 1")), Some(note()));
        assert_eq!(Note::read("select 1"), None);
        assert_eq!(Note::read(&comment[..40]), None, "what was cut is not read as something else");
    }

    #[test]
    fn oversized_notes_omit_metadata_then_owner_then_name() {
        let whole = note().encode().len() + COMMENT_BYTES;
        let read = |bytes| Note::read(&note().comment(bytes)).unwrap();
        assert_eq!(read(whole), note());
        assert_eq!(read(whole - 1), Note { meta: String::new(), ..note() });
        assert_eq!(read(166), Note { meta: String::new(), owner: String::new(), ..note() });
        assert_eq!(read(80), Note { contact: note().contact, ..Note::default() });
    }

    #[test]
    fn badge_labels_are_reduced_to_ascii() {
        let badge = Badge::new("0a1b2c3d4e5f", "b\u{fc}ro \0\n 😀 it's");
        let (id, label) = badge.words();
        assert_eq!(label, "'b?ro ?? ? it''s'");
        assert_eq!(id, "'0a1b2c3d4e5f'");
    }

    #[test]
    fn badges_contain_token_and_start_of_the_hold() {
        assert_eq!(
            Held::read("lockkeeper 28123456789012 0a1b2c3d4e5f 1795301234 me"),
            Some(Held { token: Some(28_123_456_789_012), since: 1_795_301_234 })
        );
        assert_eq!(
            Held::read("lockkeeper - 0a1b2c3d4e5f 1795301234 "),
            Some(Held { token: None, since: 1_795_301_234 })
        );
        for other in [
            "lockkeeper",
            "lockkeeper ? 0a1b2c3d4e5f me",
            "lockkeeper monitor 0a1b2c3d4e5f",
            "psql",
            "lockkeeper me too",
        ] {
            assert_eq!(Held::read(other), None, "{other}");
        }
    }
}
