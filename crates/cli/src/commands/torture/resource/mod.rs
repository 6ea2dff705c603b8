//! What the workers write to: a ledger, one line an update, read and written as a whole.
//!
//! Responsible for the three ways of writing that are compared: round the fence, checked, and checked after `enter`.
//! Each kind of resource is reached as its own users reach it. May not know of locks, nor of what is done to workers.

mod file;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use lockkeeper::url::Url;
use lockkeeper_fence::{Refused, Section};

use crate::args::Fenced;
use crate::exit::{Failure, USAGE, chain};

/// What the address of a resource may look like.
const KNOWN: &[&str] = &[
    "file:///dir",
    #[cfg(feature = "postgres")]
    "postgres://host:port/database",
    #[cfg(feature = "redis")]
    "redis://host:port/database",
];

/// A ledger that is open.
pub(super) enum Resource {
    /// A file, guarded by the file fence.
    File(file::Ledger),
    /// A table of a PostgreSQL database, guarded by the fence there.
    #[cfg(feature = "postgres")]
    Postgres(postgres::Ledger),
    /// A key of a Redis, guarded by its fence.
    #[cfg(feature = "redis")]
    Redis(redis::Ledger),
}

/// Why a step at the resource was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The fence refused it: nothing was done.
    Stale {
        /// The token of who asked.
        offered: u64,
        /// The mark that it did not reach.
        highest: u64,
    },
    /// Anything else; it may have been done.
    Failed(String),
}

impl Trouble {
    fn failed(error: &dyn std::error::Error) -> Self {
        Self::Failed(chain(error))
    }
}

impl Trouble {
    /// In words.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Stale { offered, highest } => format!("token {offered} is below {highest}"),
            Self::Failed(why) => why.clone(),
        }
    }
}

impl From<Refused> for Trouble {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Stale { offered, highest } => {
                Self::Stale { offered: offered.get(), highest: highest.get() }
            }
            other => Self::failed(&other),
        }
    }
}

impl Resource {
    /// The ledger called `name` at this address, for workers who use its fence so.
    ///
    /// # Errors
    /// The address is none of a resource, or it can't be used.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(unused_variables, reason = "only a database can lack its fence")
    )]
    pub(super) async fn open(url: &str, name: &str, fence: Fenced) -> Result<Self, Failure> {
        let parsed: Url =
            url.parse().map_err(|error| Failure::new(USAGE, format!("--resource: {}", chain(&error))))?;
        match parsed.scheme.as_str() {
            "file" => file::Ledger::open(&parsed, name).map(Self::File),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                postgres::Ledger::open(url, name, fence != Fenced::None).await.map(Self::Postgres)
            }
            #[cfg(feature = "redis")]
            "redis" => redis::Ledger::open(url, name).await.map(Self::Redis),
            scheme => Err(Failure::new(
                USAGE,
                format!("`{scheme}:` is no resource of torture; known: {}", KNOWN.join(", ")),
            )),
        }
    }

    /// Makes the empty ledger.
    ///
    /// # Errors
    /// It can't be made.
    pub(super) async fn create(&mut self) -> Result<(), Failure> {
        match self {
            Self::File(file) => file.create(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.create().await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.create().await,
        }
    }

    /// Raises the marks.
    pub(super) async fn enter(&mut self, section: Section) -> Result<(), Trouble> {
        match self {
            Self::File(file) => file.enter(section),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.enter(section).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.enter(section).await,
        }
    }

    /// The whole ledger.
    pub(super) async fn read(&mut self) -> Result<String, Trouble> {
        match self {
            Self::File(file) => file.read(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.read().await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.read().await,
        }
    }

    /// Replaces the whole ledger: checked by the section's token, or round the fence without one.
    pub(super) async fn write(&mut self, section: Option<Section>, ledger: &str) -> Result<(), Trouble> {
        match self {
            Self::File(file) => file.write(section, ledger),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.write(section, ledger).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.write(section, ledger).await,
        }
    }

    /// Where it is, for people who want to look at it.
    pub(super) fn place(&self) -> String {
        match self {
            Self::File(file) => file.place(),
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.place(),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.place(),
        }
    }

    /// Removes the ledger and its marks.
    ///
    /// # Errors
    /// Something is left, and where.
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
