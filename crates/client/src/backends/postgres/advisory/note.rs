//! What people see of a request in the server's own views: a comment before each of its statements, and the name of its
//! connection. There is no table, so this is all that `inspect` has.

use lockkeeper_core::Token;
use postgres_protocol::escape::escape_literal;
use serde::{Deserialize, Serialize};

/// Begins every comment.
const MARK: &str = "/*lockkeeper:";
/// Begins every name of a connection that holds or waits.
const BADGE: &str = "lockkeeper ";
/// What a connection is called between two holds.
pub(super) const IDLE: &str = "lockkeeper";
/// What the server keeps of a statement (`track_activity_query_size`), less what the comment may share it with.
const COMMENT_BYTES: usize = 32;

/// The comment. What doesn't fit into what the server shows is left out: first the meta data, then the owner, then the
/// name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Note {
    /// 48 random bits of the connection, which a break must know. Other than the badge, a note is shown only to its own role and to those
    /// that may read everything; a notification may be sent by anybody. Never left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) key: String,
    /// The lock's name: the key alone does not tell it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) owner: String,
    /// `key=value` lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) meta: String,
    /// An operator's break, once the holder has heard of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<Revocation>,
}

/// What tells a holder of a break.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Letter {
    /// That of the holder's note.
    pub(super) key: String,
    #[serde(flatten)]
    pub(super) revocation: Revocation,
}

/// What an operator says as he breaks a hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Revocation {
    pub(super) token: u64,
    pub(super) reason: String,
    pub(super) by: String,
}

impl Note {
    /// The comment, in ASCII whatever the name is: a database need not know our letters. Neither `/*` nor `*/` can be
    /// in it.
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
                // Stands within strings only, so that the escape means the same.
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

    /// The note before a statement; `None` if it is none of ours, or was cut.
    pub(super) fn read(statement: &str) -> Option<Self> {
        let (json, _) = statement.trim_start().strip_prefix(MARK)?.split_once("*/")?;
        serde_json::from_str(json).ok()
    }
}

/// What a connection calls itself while it has a request: `lockkeeper TOKEN ID SINCE LABEL` as a holder, with `-` for no
/// token and the seconds of the Unix epoch by the server's clock, and `lockkeeper ? ID LABEL` before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Badge {
    /// Of the connection.
    id: String,
    label: String,
}

/// The words of a badge, as expressions.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    pub(super) id: &'a str,
    pub(super) label: &'a str,
}

impl Words<'_> {
    /// The badge of one that has no lock yet.
    pub(super) fn waiting(self) -> String {
        format!("'{BADGE}? ' || {} || ' ' || {}", self.id, self.label)
    }

    /// The badge of one that has it since then. `token` and `since`, a moment, are expressions too.
    pub(super) fn held(self, token: &str, since: &str) -> String {
        format!(
            "pg_catalog.format('{BADGE}%s %s %s %s', coalesce(({token})::text, '-'), {}, \
             pg_catalog.date_part('epoch', {since})::bigint, {})",
            self.id, self.label
        )
    }
}

/// A holder's badge, as it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) token: Option<u64>,
    pub(super) since: u64,
}

/// 48 bits, in hexadecimal digits.
pub(super) fn random() -> Result<String, getrandom::Error> {
    let mut random = [0; 6];
    getrandom::fill(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A label as any database can write it: in LATIN1 there are letters missing, and a zero byte is in no text. The note has
/// it in full.
fn shown(label: &str) -> String {
    label.chars().map(|letter| if matches!(letter, ' '..='~') { letter } else { '?' }).collect()
}

impl Badge {
    pub(super) fn new(id: &str, label: &str) -> Self {
        Self { id: id.to_owned(), label: shown(label) }
    }

    /// The badge of one that holds with this token, since so many seconds of the Unix epoch, as a literal.
    pub(super) fn held(&self, token: Token, since: i64) -> String {
        escape_literal(&format!("{BADGE}{token} {} {since} {}", self.id, self.label))
    }

    /// Its words, as literals.
    pub(super) fn words(&self) -> (String, String) {
        (escape_literal(&self.id), escape_literal(&self.label))
    }
}

/// A condition on `application_name`: it is that of the connection with this id.
pub(super) fn is_worn(id: &str) -> String {
    // A pattern of ours alone: hex digits and blanks.
    format!("application_name like '{BADGE}% {id}%'")
}

impl Held {
    /// A condition on `application_name`: the connection holds with this token.
    pub(super) fn is_worn(token: u64) -> String {
        format!("application_name like '{BADGE}{token} %'")
    }

    /// The badge in the name of a connection; `None` if it holds nothing of ours.
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
            key: "0a1b2c3d4e5f".into(),
            name: "orders/42/* evil */".into(),
            owner: "büro@host 😀".into(),
            meta: "job=re\"index\nx=*/ select 1".into(),
            revoked: None,
        }
    }

    #[test]
    fn a_note_is_read_back_and_ends_no_comment() {
        let comment = note().comment(1024);
        assert!(comment.is_ascii() && !comment[2..].contains("/*"), "{comment}");
        assert_eq!(comment.matches("*/").count(), 1, "{comment}");
        assert_eq!(Note::read(&format!("{comment}select 1")), Some(note()));
        assert_eq!(Note::read("select 1"), None);
        assert_eq!(Note::read(&comment[..40]), None, "what was cut is not read as something else");
    }

    #[test]
    fn what_does_not_fit_is_left_out_in_order() {
        let whole = note().encode().len() + COMMENT_BYTES;
        let read = |bytes| Note::read(&note().comment(bytes)).unwrap();
        assert_eq!(read(whole), note());
        assert_eq!(read(whole - 1), Note { meta: String::new(), ..note() });
        assert_eq!(read(142), Note { meta: String::new(), owner: String::new(), ..note() });
        assert_eq!(read(60), Note { key: note().key, ..Note::default() });
    }

    #[test]
    fn a_badge_is_plain_whatever_the_label() {
        let badge = Badge::new("0a1b2c3d4e5f", "b\u{fc}ro \0\n 😀 it's");
        let (id, label) = badge.words();
        assert_eq!(label, "'b?ro ?? ? it''s'");
        assert_eq!(id, "'0a1b2c3d4e5f'");
    }

    #[test]
    fn a_badge_tells_the_token_and_since_when() {
        assert_eq!(
            Held::read("lockkeeper 28123456789012 0a1b2c3d4e5f 1795301234 me"),
            Some(Held { token: Some(28_123_456_789_012), since: 1_795_301_234 })
        );
        assert_eq!(
            Held::read("lockkeeper - 0a1b2c3d4e5f 1795301234 "),
            Some(Held { token: None, since: 1_795_301_234 })
        );
        for other in ["lockkeeper", "lockkeeper ? 0a1b2c3d4e5f me", "psql", "lockkeeper me too"] {
            assert_eq!(Held::read(other), None, "{other}");
        }
    }
}
