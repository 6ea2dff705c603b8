//! Backends: the lock services behind the API, selected by URL scheme. [`BACKENDS`] is the table of all of
//! them.
//!
//! Lock services of other projects are packages in `crates/backends`, each behind a cargo feature. A backend
//! that lacks an ability returns an error before anything is sent; nothing is silently weaker (P11).

pub mod memory;
#[cfg(feature = "service")]
pub(crate) mod service;

/// API specific to DynamoDB.
#[cfg(feature = "dynamodb")]
pub mod dynamodb {
    pub use lockkeeper_dynamodb::init;
}

/// API specific to MySQL and MariaDB.
#[cfg(feature = "mysql")]
pub mod mysql {
    pub use lockkeeper_mysql::{SCHEMA_SQL, SESSION_SCHEMA_SQL};
}

/// API specific to PostgreSQL.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use lockkeeper_postgres::{
        AdvisoryKey, KeyError, NoSuchKey, PgKey, TransactionLock, TransactionLockError, init,
        lock_in_transaction, schema_sql, tokio_postgres, try_lock_in_transaction,
    };
}

#[cfg(feature = "redis")]
pub use lockkeeper_redis::RedisConnection;

use std::sync::Arc;

use lockkeeper_backend::{Backend, BackendInfo, ConnectError, Url, UrlError, did_you_mean};

/// A lock service that the library knows.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KnownBackend {
    /// The schemes of its URLs.
    pub schemes: &'static [Scheme],
    /// The service; `None` if it is not compiled in.
    pub info: Option<&'static BackendInfo>,
}

/// A URL scheme with the cargo feature that enables it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Scheme {
    /// The part of the URL before the colon.
    pub name: &'static str,
    /// `None` if it is always compiled in.
    pub feature: Option<&'static str>,
}

/// The cargo feature of a scheme: the second argument, or else the name of the scheme.
macro_rules! feature_of {
    ($name:literal) => {
        Some($name)
    };
    ($name:literal $feature:literal) => {
        Some($feature)
    };
}

/// A line for each lock service that is a feature: the feature, its module or package, and its schemes, each
/// with the feature that it needs if that has another name.
macro_rules! known_backends {
    ($($feature:literal $package:ident: $($scheme:literal $(by $needs:literal)?),+;)+) => {
        /// All lock services. Error texts, help texts and the tests of pages are derived from them.
        pub static BACKENDS: &[KnownBackend] = &[
            KnownBackend { schemes: &[Scheme { name: "memory", feature: None }], info: Some(&memory::INFO) },
            $(KnownBackend {
                schemes: &[$(Scheme { name: $scheme, feature: feature_of!($scheme $($needs)?) }),+],
                #[cfg(feature = $feature)]
                info: Some(&$package::INFO),
                #[cfg(not(feature = $feature))]
                info: None,
            }),+
        ];
    };
}

known_backends! {
    "dynamodb" lockkeeper_dynamodb: "dynamodb";
    "etcd" lockkeeper_etcd: "etcd", "etcds" by "etcd-tls";
    "file" lockkeeper_file: "file";
    "mysql" lockkeeper_mysql: "mysql", "mariadb" by "mysql";
    "object-store" lockkeeper_object_store: "s3" by "object-store", "gs" by "object-store", "az" by "object-store";
    "postgres" lockkeeper_postgres: "postgres", "postgresql" by "postgres";
    "redis" lockkeeper_redis: "redis", "rediss" by "redis-tls", "redis+unix" by "redis";
    "redlock" lockkeeper_redlock: "redlock", "redlocks" by "redis-tls";
    "service" service: "lockkeeper" by "service", "lockkeepers" by "service-tls";
    "zookeeper" lockkeeper_zookeeper: "zookeeper", "zookeepers" by "zookeeper-tls";
}

impl KnownBackend {
    /// The lock service of a scheme.
    #[must_use]
    pub fn of(scheme: &str) -> Option<&'static Self> {
        BACKENDS.iter().find(|known| known.schemes.iter().any(|of| of.name == scheme))
    }
}

/// A lock service, and what its URL says to the library.
pub(crate) struct Connected {
    pub(crate) backend: Arc<dyn Backend>,
    /// The file of the client's history: `?history=FILE`, for every service.
    pub(crate) history: Option<String>,
}

pub(crate) async fn connect(url: &str) -> Result<Connected, ConnectError> {
    let schemes = || BACKENDS.iter().flat_map(|known| known.schemes);
    let names: Vec<&str> = schemes().map(|scheme| scheme.name).collect();
    let mut url = Url::parse(url, &names)?;
    for warning in url.exposed_files() {
        tracing::warn!("{warning}");
    }
    if let Some(info) = KnownBackend::of(&url.scheme).and_then(|known| known.info) {
        if info.has_password {
            url.find_password()?;
        }
        let history = url.take_parameter("history");
        let backend = (info.connect)(&url).await?;
        return Ok(Connected { backend, history });
    }
    let feature = schemes().find(|scheme| scheme.name == url.scheme).and_then(|scheme| scheme.feature);
    Err(match feature {
        Some(feature) => UrlError::NotCompiledIn { scheme: url.scheme, feature },
        None => UrlError::UnknownScheme {
            hint: match url.path.parse::<u16>() {
                // `host:port`, without a scheme.
                Ok(port) => format!(" (did you mean `lockkeeper://{}:{port}`?)", url.scheme),
                Err(_) => did_you_mean(&url.scheme, &names, ":"),
            },
            known: names.join(", "),
            scheme: url.scheme,
        },
    }
    .into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn read(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn compiled_in() -> impl Iterator<Item = &'static BackendInfo> {
        BACKENDS.iter().filter_map(|known| known.info)
    }

    #[test]
    fn every_feature_of_a_scheme_exists() {
        let manifest = read("Cargo.toml");
        for feature in BACKENDS.iter().flat_map(|known| known.schemes).filter_map(|scheme| scheme.feature) {
            let defined = |line: &str| line.split_once(" = [").is_some_and(|(name, _)| name == feature);
            assert!(manifest.lines().any(defined), "crates/client/Cargo.toml has no feature `{feature}`");
        }
    }

    #[test]
    fn every_page_belongs_to_a_backend_and_is_in_the_readme() {
        let pages: BTreeSet<String> =
            compiled_in().flat_map(|info| info.pages).map(|page| (*page).to_owned()).collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        assert!(pages.is_subset(&files), "{pages:?} are not all in docs/backends: {files:?}");
        if BACKENDS.iter().all(|known| known.info.is_some()) {
            assert_eq!(pages, files, "the pages of the table, and the files in docs/backends");
        }
        let readme = read("../../README.md");
        for page in pages {
            assert!(
                readme.contains(&format!("(docs/backends/{page}.md)")),
                "README.md has no link to {page}.md"
            );
        }
    }

    #[test]
    fn readme_names_whom_each_backend_excludes_and_who_excludes_it() {
        let readme = read("../../README.md");
        for info in compiled_in() {
            for text in [info.excludes, info.excluded_by] {
                assert!(readme.contains(&format!("| {text} |")), "README.md, {}: {text}", info.example);
            }
        }
    }

    #[test]
    fn schemes_and_example_of_a_backend_are_as_in_the_table() {
        for known in BACKENDS {
            let Some(info) = known.info else { continue };
            let schemes: Vec<&str> = known.schemes.iter().map(|scheme| scheme.name).collect();
            assert_eq!(schemes, info.schemes);
            let url: Url = info.example.parse().unwrap();
            assert!(schemes.contains(&&*url.scheme), "{}", info.example);
        }
    }
}
