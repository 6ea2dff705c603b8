//! Maps a lock name to the advisory lock key in PostgreSQL: our own rule, and the rules of other widely used
//! libraries.
//!
//! Two clients exclude each other if they apply the same rule to the same name in the same database. Test
//! vectors pin every rule: a changed rule would silently split one lock into two.

use std::fmt;
use std::str::FromStr;

use hmac_sha256::{HKDF, Hash as Sha256};
use md5::Md5;
use sha1::{Digest, Sha1};

/// Hash prefix of our own rule. A later rule gets another number, and another name in the address.
const OURS: &[u8] = b"lockkeeper/1\0";
/// HKDF domain string of sqlx (`PgAdvisoryLock`).
const SQLX: &[u8] = b"SQLx (Rust) Postgres advisory lock";

/// How a name becomes an advisory key (`?key=`).
///
/// A key has at most 64 bits, so two names may share one. Such names exclude each other needlessly, which is
/// safe but slow. With the default rule, fewer than one in a billion programs with 100,000 names has a
/// collision. With rules of fewer bits, collisions are more frequent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PgKey {
    /// `lockkeeper`: the first eight bytes of SHA-256 over `lockkeeper/1`, a zero byte and the name,
    /// big-endian.
    #[default]
    Lockkeeper,
    /// `sqlx`: `PgAdvisoryLock::new` of sqlx (Rust): HKDF-SHA256, little-endian.
    Sqlx,
    /// `madelson`: `PostgresAdvisoryLockKey(name, allowHashing: true)` of DistributedLock (.NET): up to nine
    /// ASCII characters packed into a pair, 16 hex digits as a number, `8hex,8hex` as a pair, else SHA-1,
    /// little-endian.
    Madelson,
    /// `ruby`, `ruby:PREFIX`: the gem `with_advisory_lock`: a pair of CRC-32 without its highest bit (31
    /// bits) and the integer prefix that the gem can be configured with (0 by default).
    RubyCrc32 {
        /// The second number of the pair.
        prefix: i32,
    },
    /// `tooz`: OpenStack's tooz (Python): the first two bytes of MD5 as a pair. 16 bits: collisions are
    /// frequent.
    ToozMd5,
    /// `crc32`: CRC-32 as a number. 32 bits.
    Crc32,
    /// `sha256be`: the first eight bytes of SHA-256, big-endian.
    Sha256Be,
    /// `message-db`: `hash_64` of message-db: the first eight bytes of MD5, big-endian.
    MessageDb,
    /// `hashtext`: the server's own `hashtext(name)`. 32 bits; may change with the server's major version.
    Hashtext,
    /// `hashtextextended`: the server's own `hashtextextended(name, 0)`. May change with the server's major
    /// version.
    Hashtextextended,
    /// `raw`: the name is the key: `42`, or `1,2` for a pair.
    Raw,
    /// `sqlx-migrations`: the key that sqlx locks to migrate the database; the lock name is the database
    /// name.
    SqlxMigrations,
    /// `rails-migrations`: the key that Rails locks to migrate the database; the lock name is the database
    /// name.
    RailsMigrations,
    /// `golang-migrate`: the key that golang-migrate locks to migrate a database. The lock name is
    /// `SCHEMA/TABLE/DATABASE`, where the table is the one of its versions: `public/schema_migrations/mydb`.
    /// That library hashes the three names with zero bytes in between; its old versions hash the database
    /// name alone.
    GolangMigrate,
}

/// An advisory lock key. A number and a pair never conflict, even if their bits are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum AdvisoryKey {
    /// `pg_advisory_lock(bigint)`.
    Number(i64),
    /// `pg_advisory_lock(int, int)`.
    Pair(i32, i32),
}

/// The rule has no key for this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// [`PgKey::Raw`] with a name in neither of its two forms.
    #[error(
        "with `key=raw` a lock's name is its key, a 64-bit number or two 32-bit ones as in `1,2`; `{name}` is neither"
    )]
    NotANumber {
        /// The name.
        name: String,
    },
    /// Only the server can compute the key by this rule.
    #[error("only the server knows the key of `{name}` by the rule `{rule}`: ask it `select {rule}(…)`")]
    OnlyTheServer {
        /// The name.
        name: String,
        /// The rule.
        rule: PgKey,
    },
}

impl PgKey {
    /// Computes the key of a name.
    ///
    /// ```
    /// use lockkeeper::backends::postgres::{AdvisoryKey, PgKey};
    /// let key = PgKey::Sqlx.key("orders:42:checkout").unwrap();
    /// assert_eq!(key, AdvisoryKey::Number(4162161070278803260));
    /// ```
    ///
    /// # Errors
    /// [`KeyError`]: a raw key that is not a number, or a rule that only the server can compute.
    pub fn key(self, name: &str) -> Result<AdvisoryKey, KeyError> {
        let bytes = name.as_bytes();
        let crc = || crc32fast::hash(bytes);
        Ok(match self {
            Self::Lockkeeper => {
                AdvisoryKey::Number(i64::from_be_bytes(first(&Sha256::hash(&[OURS, bytes].concat()))))
            }
            Self::Sqlx => {
                let mut key = [0; 8];
                HKDF::expand(&mut key, HKDF::extract([], bytes), SQLX);
                AdvisoryKey::Number(i64::from_le_bytes(key))
            }
            Self::Madelson => madelson(name),
            Self::RubyCrc32 { prefix } => AdvisoryKey::Pair((crc() & 0x7fff_ffff).cast_signed(), prefix),
            Self::ToozMd5 => {
                let [a, b, ..] = first(&Md5::digest(bytes));
                AdvisoryKey::Pair(a.into(), b.into())
            }
            Self::Crc32 => AdvisoryKey::Number(crc().into()),
            Self::Sha256Be => AdvisoryKey::Number(i64::from_be_bytes(first(&Sha256::hash(bytes)))),
            Self::MessageDb => AdvisoryKey::Number(i64::from_be_bytes(first(&Md5::digest(bytes)))),
            Self::Hashtext | Self::Hashtextextended => {
                return Err(KeyError::OnlyTheServer { name: name.to_owned(), rule: self });
            }
            Self::Raw => raw(name).ok_or_else(|| KeyError::NotANumber { name: name.to_owned() })?,
            Self::SqlxMigrations => AdvisoryKey::Number(0x3d32_ad9e * i64::from(crc())),
            Self::RailsMigrations => AdvisoryKey::Number(2_053_462_845 * i64::from(crc())),
            Self::GolangMigrate => {
                let crc = crc32fast::hash(name.replace('/', "\0").as_bytes());
                AdvisoryKey::Number(crc.wrapping_mul(1_486_364_155).into())
            }
        })
    }

    /// The SQL expression that computes the key on the server; `None` if the client can compute it.
    pub(super) fn server_side(self, name: &str) -> Option<String> {
        let name = || postgres_protocol::escape::escape_literal(name);
        match self {
            Self::Hashtext => Some(format!("pg_catalog.hashtext({})::bigint", name())),
            Self::Hashtextextended => Some(format!("pg_catalog.hashtextextended({}, 0)", name())),
            _ => None,
        }
    }
}

/// All rules with their names in an address.
const RULES: &[(&str, PgKey)] = &[
    ("lockkeeper", PgKey::Lockkeeper),
    ("sqlx", PgKey::Sqlx),
    ("madelson", PgKey::Madelson),
    ("ruby", PgKey::RubyCrc32 { prefix: 0 }),
    ("tooz", PgKey::ToozMd5),
    ("crc32", PgKey::Crc32),
    ("sha256be", PgKey::Sha256Be),
    ("message-db", PgKey::MessageDb),
    ("hashtext", PgKey::Hashtext),
    ("hashtextextended", PgKey::Hashtextextended),
    ("raw", PgKey::Raw),
    ("sqlx-migrations", PgKey::SqlxMigrations),
    ("rails-migrations", PgKey::RailsMigrations),
    ("golang-migrate", PgKey::GolangMigrate),
];

/// Ends the error message for an invalid rule (`key=`).
pub(super) const WANTED: &str = "a rule for keys: `lockkeeper`, `sqlx`, `madelson`, `ruby`, `ruby:PREFIX`, \
    `tooz`, `crc32`, `sha256be`, `message-db`, `hashtext`, `hashtextextended`, `raw`, `sqlx-migrations`, \
    `rails-migrations` or `golang-migrate`";

/// The text names no rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not {WANTED}")]
pub struct NoSuchKey(String);

impl FromStr for PgKey {
    type Err = NoSuchKey;

    fn from_str(text: &str) -> Result<Self, NoSuchKey> {
        let known = RULES.iter().find(|(name, _)| *name == text).map(|&(_, rule)| rule);
        let prefixed = || Some(Self::RubyCrc32 { prefix: text.strip_prefix("ruby:")?.parse().ok()? });
        known.or_else(prefixed).ok_or_else(|| NoSuchKey(text.to_owned()))
    }
}

impl fmt::Display for PgKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, RULES.iter().find(|(_, rule)| rule == self)) {
            (_, Some((name, _))) => f.write_str(name),
            (Self::RubyCrc32 { prefix }, None) => write!(f, "ruby:{prefix}"),
            (_, None) => Ok(()),
        }
    }
}

impl AdvisoryKey {
    /// The key as the arguments of `pg_advisory_lock(…)`.
    pub(super) fn arguments(self) -> String {
        match self {
            // Quoted, since in `-42::bigint` the minus is an operator, which the server would have to
            // resolve.
            Self::Number(number) => format!("'{number}'::bigint"),
            Self::Pair(a, b) => format!("'{a}'::int, '{b}'::int"),
        }
    }

    /// The key as three SQL arguments: number, null, null; or null and the two numbers of the pair.
    pub(super) fn either(self) -> String {
        match self {
            Self::Number(number) => format!("'{number}', null, null"),
            Self::Pair(a, b) => format!("null, '{a}', '{b}'"),
        }
    }

    /// The key in the columns of `pg_locks`: `classid`, `objid`, `objsubid`.
    pub(super) fn in_pg_locks(self) -> (u32, u32, u8) {
        match self {
            Self::Number(number) => {
                let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
                (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]), 1)
            }
            Self::Pair(a, b) => (a.cast_unsigned(), b.cast_unsigned(), 2),
        }
    }

    /// The reverse of [`Self::in_pg_locks`].
    pub(super) fn from_pg_locks(class: u32, object: u32, sub: u8) -> Self {
        if sub == 1 {
            Self::Number((i64::from(class.cast_signed()) << 32) | i64::from(object))
        } else {
            Self::Pair(class.cast_signed(), object.cast_signed())
        }
    }
}

impl fmt::Display for AdvisoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Pair(a, b) => write!(f, "{a},{b}"),
        }
    }
}

/// The first eight bytes of a longer hash.
fn first(hash: &[u8]) -> [u8; 8] {
    let mut first = [0; 8];
    first.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
    first
}

fn raw(name: &str) -> Option<AdvisoryKey> {
    match name.split_once(',') {
        None => name.parse().ok().map(AdvisoryKey::Number),
        Some((a, b)) => Some(AdvisoryKey::Pair(a.parse().ok()?, b.trim_start().parse().ok()?)),
    }
}

/// A name of up to nine ASCII characters is packed: seven bits per character, a zero bit, then ones up to 64
/// bits. The resulting number is locked as a pair, upper half first.
fn madelson(name: &str) -> AdvisoryKey {
    let pair = |number: u64| {
        let (upper, lower) = ((number >> 32) as u32, (number & 0xffff_ffff) as u32);
        AdvisoryKey::Pair(upper.cast_signed(), lower.cast_signed())
    };
    if name.is_ascii() && name.len() <= 9 {
        let letters = name.bytes().fold(0, |packed, letter| (packed << 7) | u64::from(letter));
        return pair((name.len()..9).fold(letters << 1, |packed, _| (packed << 7) | 0x7f));
    }
    let hex = |digits: &str| {
        let digits = Some(digits).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
    match (name.len(), name.get(..8), name.get(8..9), name.get(9..)) {
        (16, ..) => {
            if let Some(number) = hex(name) {
                return AdvisoryKey::Number(number.cast_signed());
            }
        }
        (17, Some(upper), Some(","), Some(lower)) => {
            if let (Some(upper), Some(lower)) = (hex(upper), hex(lower)) {
                return pair((upper << 32) | lower);
            }
        }
        _ => {}
    }
    AdvisoryKey::Number(i64::from_le_bytes(first(&Sha1::digest(name.as_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "orders:42:checkout";

    #[test]
    fn every_rule_matches_its_library() {
        use AdvisoryKey::{Number, Pair};
        for (rule, name, key) in [
            ("lockkeeper", NAME, Number(3_986_848_714_671_540_524)),
            ("sqlx", NAME, Number(4_162_161_070_278_803_260)),
            ("sqlx", "my first Postgres advisory lock!", Number(-5_560_419_505_042_474_287)),
            ("madelson", NAME, Number(-533_755_646_865_238_680)),
            ("madelson", "00000000000000ff", Number(255)),
            ("madelson", "ffffffffFFFFFFFE", Number(-2)),
            ("madelson", "00000001,ffffffff", Pair(1, -1)),
            ("ruby", NAME, Pair(763_341_982, 0)),
            ("ruby:-7", NAME, Pair(763_341_982, -7)),
            ("tooz", NAME, Pair(179, 90)),
            ("crc32", NAME, Number(763_341_982)),
            ("sha256be", NAME, Number(-2_836_547_012_853_008_270)),
            ("message-db", NAME, Number(-5_522_881_090_123_435_137)),
            ("raw", "-42", Number(-42)),
            ("raw", "1,-2", Pair(1, -2)),
            ("sqlx-migrations", "mydb", Number(293_176_876_009_260_204)),
            ("rails-migrations", "mydb", Number(586_353_752_304_064_290)),
            ("golang-migrate", "mydb", Number(3_799_279_374)),
            ("golang-migrate", "public/schema_migrations/mydb", Number(2_103_762_914)),
        ] {
            assert_eq!(rule.parse::<PgKey>().unwrap().key(name), Ok(key), "{rule} of {name}");
        }
    }

    #[test]
    fn short_names_are_packed_and_locked_as_a_pair() {
        let key = PgKey::Madelson.key("job1").unwrap();
        let (class, object, sub) = key.in_pg_locks();
        assert_eq!(((i64::from(class) << 32) | i64::from(object), sub), (-3_044_693_829_279_023_105, 2));
    }

    #[test]
    fn keys_round_trip_through_pg_locks_columns() {
        for (key, shown) in [
            (AdvisoryKey::Number(-1), (u32::MAX, u32::MAX, 1)),
            (AdvisoryKey::Number(0x1_0000_0002), (1, 2, 1)),
            (AdvisoryKey::Pair(-1, 7), (u32::MAX, 7, 2)),
        ] {
            assert_eq!(key.in_pg_locks(), shown);
            assert_eq!(AdvisoryKey::from_pg_locks(shown.0, shown.1, shown.2), key);
        }
    }

    #[test]
    fn names_without_a_key_are_errors() {
        assert!(matches!(PgKey::Raw.key("orders"), Err(KeyError::NotANumber { .. })));
        assert!(matches!(PgKey::Raw.key("1,2,3"), Err(KeyError::NotANumber { .. })));
        assert!(matches!(PgKey::Hashtext.key("orders"), Err(KeyError::OnlyTheServer { .. })));
        assert!("md5".parse::<PgKey>().unwrap_err().to_string().contains("`md5` is not a rule"));
    }

    #[test]
    fn rule_names_round_trip() {
        for (name, rule) in RULES {
            assert_eq!((rule.to_string().as_str(), name.parse()), (*name, Ok(*rule)));
            assert!(WANTED.contains(&format!("`{name}`")), "{name}");
        }
        assert_eq!("ruby:-7".parse::<PgKey>().unwrap().to_string(), "ruby:-7");
    }
}
