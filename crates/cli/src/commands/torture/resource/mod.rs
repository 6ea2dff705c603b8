//! The resource that workers write to: a ledger with one line per update, read and written as a whole.
//!
//! Implements the three ways of writing that are compared: without the fence; checked by the fence at the
//! write; and checked at the write, after `enter`. Each kind of resource is accessed as its users would. This
//! module does not depend on locks or faults.

mod file;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use lockkeeper::url::{Url, UrlError};
use lockkeeper_fence::{Refused, Section};

use crate::args::TokenUse;
use crate::exit::{Failure, USAGE, chain};

/// The valid forms of a resource's address.
const KNOWN: &[&str] = &[
    "file:///dir",
    #[cfg(feature = "postgres")]
    "postgres://host:port/database",
    #[cfg(feature = "redis")]
    "redis://host:port/database",
];

/// An open ledger.
pub(super) enum OpenLedger {
    /// A file, guarded by the file fence.
    File(file::FileLedger),
    /// A table of a PostgreSQL database, guarded by the fence in that database.
    #[cfg(feature = "postgres")]
    Postgres(postgres::PostgresLedger),
    /// A Redis key, guarded by the Redis fence.
    #[cfg(feature = "redis")]
    Redis(redis::RedisLedger),
}

/// Why an operation on the resource failed.
#[derive(Debug)]
pub(super) enum LedgerError {
    /// The fence refused the operation: it had no effect.
    Stale {
        /// The token of the refused operation.
        offered: u64,
        /// The mark, which is higher than the token.
        highest: u64,
    },
    /// Any other error; the operation may have taken effect.
    Failed(String),
}

impl LedgerError {
    fn failed(error: &dyn std::error::Error) -> Self {
        Self::Failed(chain(error))
    }
}

impl LedgerError {
    /// The error message.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Stale { offered, highest } => format!("token {offered} is below {highest}"),
            Self::Failed(why) => why.clone(),
        }
    }
}

impl From<Refused> for LedgerError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Stale { offered, highest } => {
                Self::Stale { offered: offered.get(), highest: highest.get() }
            }
            other => Self::failed(&other),
        }
    }
}

impl OpenLedger {
    /// Opens the ledger `name` at this address. `fence`: how the workers use their tokens.
    ///
    /// # Errors
    /// The address is not a resource, or the resource can't be used.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(unused_variables, reason = "only a database can lack its fence")
    )]
    pub(super) async fn open(url: &str, name: &str, fence: TokenUse) -> Result<Self, Failure> {
        let parsed: Url = url.parse().map_err(|error: UrlError| {
            let text = match error {
                UrlError::NoScheme { url, .. } => {
                    format!("`{url}` has no scheme, as in `file://{url}`; known: {}", KNOWN.join(", "))
                }
                error => chain(&error),
            };
            Failure::new(USAGE, format!("--resource: {text}"))
        })?;
        match parsed.scheme.as_str() {
            "file" => file::FileLedger::open(&parsed, name).map(Self::File),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                postgres::PostgresLedger::open(url, name, fence != TokenUse::None).await.map(Self::Postgres)
            }
            #[cfg(feature = "redis")]
            "redis" => redis::RedisLedger::open(&parsed, name).await.map(Self::Redis),
            scheme => Err(Failure::new(
                USAGE,
                format!("`{scheme}:` is no resource of torture; known: {}", KNOWN.join(", ")),
            )),
        }
    }

    /// Creates the empty ledger.
    ///
    /// # Errors
    /// The ledger can't be created.
    pub(super) async fn create(&mut self) -> Result<(), Failure> {
        match self {
            Self::File(file) => file.create(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.create().await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.create().await,
        }
    }

    /// Raises the marks to the section's token.
    pub(super) async fn enter(&mut self, section: Section) -> Result<(), LedgerError> {
        match self {
            Self::File(file) => file.enter(section),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.enter(section).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.enter(section).await,
        }
    }

    /// Returns the whole ledger.
    pub(super) async fn read(&mut self) -> Result<String, LedgerError> {
        match self {
            Self::File(file) => file.read(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.read().await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.read().await,
        }
    }

    /// Replaces the whole ledger. The fence checks the section's token; without a section, the fence is not
    /// used.
    pub(super) async fn write(&mut self, section: Option<Section>, ledger: &str) -> Result<(), LedgerError> {
        match self {
            Self::File(file) => file.write(section, ledger),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.write(section, ledger).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.write(section, ledger).await,
        }
    }

    /// The ledger's location, for display.
    pub(super) fn location(&self) -> String {
        match self {
            Self::File(file) => file.location(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.location(),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.location(),
        }
    }

    /// Removes the ledger and its marks.
    ///
    /// # Errors
    /// An object could not be removed; the message contains its location.
    pub(super) async fn remove(&mut self) -> Result<(), Failure> {
        match self {
            Self::File(file) => file.remove(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.remove().await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.remove().await,
        }
    }
}
