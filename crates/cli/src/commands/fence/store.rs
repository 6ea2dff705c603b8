//! Where a fence stores its marks: a file, or a server given by its address.

use std::path::PathBuf;

use lockkeeper::Token;
use lockkeeper::url::Url;
use lockkeeper_fence::{FileFence, Marks};

use super::failed;
use crate::args::FenceTarget;
use crate::exit::{Failure, USAGE, chain};

/// The fence of one resource.
pub(in crate::commands) enum FenceStore {
    File(FileFence),
    #[cfg(feature = "postgres")]
    Postgres(tokio_postgres::Client, String),
    #[cfg(feature = "redis")]
    Redis(redis::Fence, String),
}

impl FenceStore {
    /// # Errors
    /// The target is not a fence or is unreachable; or the resource name is missing, or not applicable.
    pub(in crate::commands) async fn open(which: &FenceTarget) -> Result<Self, Failure> {
        let target = which.target.to_string_lossy();
        if !target.contains("://") {
            return Self::file(which.target.clone(), which.resource.as_deref());
        }
        let url: Url = target.parse().map_err(|error| Failure::new(USAGE, chain(&error)))?;
        match url.scheme.as_str() {
            "file" if !url.hosts.is_empty() => Err(Failure::new(
                USAGE,
                format!("`{url}` names no file of this host; write `file:///path`, or the path alone"),
            )),
            "file" => Self::file(url.path.into(), which.resource.as_deref()),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let resource = named(which.resource.as_deref(), &url)?;
                Ok(Self::Postgres(postgres::connect(&target).await?, resource))
            }
            #[cfg(feature = "redis")]
            "redis" => {
                let resource = named(which.resource.as_deref(), &url)?;
                let (_, fence) = redis::connect(&url).await?;
                Ok(Self::Redis(fence, resource))
            }
            _ => Err(Failure::new(
                USAGE,
                format!("`{url}` is no fence that this command knows; known: {}", KNOWN.join(", ")),
            )),
        }
    }

    fn file(path: PathBuf, resource: Option<&str>) -> Result<Self, Failure> {
        if let Some(resource) = resource {
            let why = format!(
                "`{resource}` is one name too many: `{}` is a file, which has one fence",
                path.display()
            );
            return Err(Failure::new(USAGE, why));
        }
        FileFence::new(path).map(Self::File).map_err(|error| Failure::new(USAGE, chain(&error)))
    }

    /// # Errors
    /// The marks can't be read.
    pub(in crate::commands) async fn marks(&self) -> Result<Marks, Failure> {
        match self {
            Self::File(fence) => fence.marks().map_err(|error| failed(&error)),
            #[cfg(feature = "postgres")]
            Self::Postgres(client, resource) => {
                postgres::answered(postgres::fence::marks(client, resource)).await
            }
            #[cfg(feature = "redis")]
            Self::Redis(fence, resource) => {
                fence.marks(resource).await.map_err(|error| redis::failed(&error))
            }
        }
    }

    /// # Errors
    /// The marks are unchanged, or it is unknown whether they were changed.
    pub(super) async fn reset(&self, to: Token) -> Result<(), Failure> {
        match self {
            Self::File(fence) => fence.reset(to).map_err(|error| failed(&error)),
            #[cfg(feature = "postgres")]
            Self::Postgres(client, resource) => {
                postgres::answered(postgres::fence::reset(client, resource, to)).await
            }
            #[cfg(feature = "redis")]
            Self::Redis(fence, resource) => {
                fence.reset(resource, to).await.map_err(|error| redis::failed(&error))
            }
        }
    }
}

/// The valid forms of a fence's target.
const KNOWN: &[&str] = &[
    "a file's path",
    #[cfg(feature = "postgres")]
    "postgres://host:port/database",
    #[cfg(feature = "redis")]
    "redis://host:port/database",
];

/// The timeout for a connection, and for each reply.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(in crate::commands) const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

#[cfg(any(feature = "postgres", feature = "redis"))]
fn named(resource: Option<&str>, url: &Url) -> Result<String, Failure> {
    let missing = || format!("`{url}` has the marks of many resources: give the resource's name behind it");
    resource.map(str::to_owned).ok_or_else(|| Failure::new(USAGE, missing()))
}

#[cfg(feature = "redis")]
pub(in crate::commands) mod redis {
    //! The Redis fence at a URL.

    use lockkeeper::backends::RedisConnection;
    use lockkeeper::url::Url;
    use lockkeeper_fence::redis::{RedisFence, RedisFenceError};

    use super::LIMIT;
    use crate::exit::{Failure, IO, STALE, UNAVAILABLE, USAGE, chain};

    /// A fence whose connection is shared with its creator.
    pub(in crate::commands) type Fence = RedisFence<RedisConnection>;

    /// # Errors
    /// The server is unreachable, or can't store marks.
    pub(in crate::commands) async fn connect(url: &Url) -> Result<(RedisConnection, Fence), Failure> {
        let connection = RedisConnection::connect(url, LIMIT).await?;
        let fence = RedisFence::connect(connection.clone()).await.map_err(|error| failed(&error))?;
        Ok((connection, fence))
    }

    pub(in crate::commands) fn failed(error: &RedisFenceError) -> Failure {
        use RedisFenceError as Error;
        let code = match error {
            Error::Refused(_) => STALE,
            Error::Resource(_) | Error::Evicts { .. } | Error::EvictionUnknown { .. } | Error::Replica => {
                USAGE
            }
            Error::Unknown { .. } => UNAVAILABLE,
            _ => IO,
        };
        Failure::new(code, chain(error))
    }
}

#[cfg(feature = "postgres")]
pub(in crate::commands) mod postgres {
    //! The PostgreSQL fence at a URL. Without TLS.

    use lockkeeper_fence::postgres::PostgresError;
    pub(in crate::commands) use lockkeeper_fence::postgres::tokio_postgres as fence;
    use tokio_postgres::{Client, Config, NoTls};

    use super::LIMIT;
    use crate::exit::{Failure, IO, STALE, UNAVAILABLE, USAGE, chain};
    use crate::settings;

    /// # Errors
    /// The server is unreachable, or refuses the login.
    pub(in crate::commands) async fn connect(url: &str) -> Result<Client, Failure> {
        let said = |code, error: &tokio_postgres::Error| {
            Failure::new(code, format!("{}: {}", settings::shown(url), chain(error)))
        };
        let mut config: Config = url.parse().map_err(|error| said(USAGE, &error))?;
        config.connect_timeout(LIMIT).application_name("lockkeeper");
        let (client, connection) = config.connect(NoTls).await.map_err(|error| said(UNAVAILABLE, &error))?;
        // The task ends with the client; errors of the connection are returned by the client's calls.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Awaits the reply; an error after the timeout.
    pub(super) async fn answered<T>(
        call: impl Future<Output = Result<T, PostgresError>>,
    ) -> Result<T, Failure> {
        let silent =
            || format!("the database has not answered for {LIMIT:?}; look again, and repeat it if need be");
        match tokio::time::timeout(LIMIT, call).await {
            Ok(answer) => answer.map_err(|error| failed(&error)),
            Err(_) => Err(Failure::new(UNAVAILABLE, silent())),
        }
    }

    pub(in crate::commands) fn failed(error: &PostgresError) -> Failure {
        use PostgresError as Error;
        let code = match error {
            Error::Refused(_) => STALE,
            Error::Resource(_) | Error::NotInstalled(_) | Error::OtherVersion { .. } | Error::Replica => {
                USAGE
            }
            _ => IO,
        };
        Failure::new(code, chain(error))
    }
}
