//! Backends: the lock services behind the API, selected by URL scheme. [`BACKENDS`] is the table of all of them.

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod changes;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "file")]
pub(crate) mod file;
#[cfg(any(feature = "etcd", feature = "service"))]
pub(crate) mod grpc_tls;
#[cfg(any(
    feature = "dynamodb",
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
pub(crate) mod leased;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
#[cfg(feature = "service")]
pub(crate) mod service;
#[cfg(any(feature = "etcd", feature = "redis", feature = "service", feature = "zookeeper"))]
pub(crate) mod tls_files;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

#[cfg(feature = "redis")]
pub use redis::RedisConnection;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::ConnectError;
use crate::url::{Url, UrlError, did_you_mean};

/// One kind of lock service, as selected by the scheme of a URL.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BackendEntry {
    /// An example of its URLs, for help texts.
    pub example: &'static str,
    /// Its scope, for help texts.
    pub summary: &'static str,
    /// The URL schemes.
    pub schemes: &'static [Scheme],
    /// The port of a host without one; `None` if its URLs have no hosts.
    pub default_port: Option<u16>,
    /// Other programs that wait for our holds, for help texts.
    pub excludes: &'static str,
    /// Other programs for whose holds ours wait, for help texts.
    pub excluded_by: &'static str,
    /// Its pages in `docs/backends`, without `.md`.
    pub pages: &'static [&'static str],
    /// `None` if it is not compiled in.
    connect: Option<Connect>,
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

/// Boxed, so that the caller's future does not have the size of all connect futures together.
type Connect = for<'a> fn(&'a Url) -> Connecting<'a>;
type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, ConnectError>> + Send + 'a>>;

/// The connect function of a backend's module, if its feature is on.
macro_rules! connect {
    ($feature:literal, $module:ident) => {{
        #[cfg(feature = $feature)]
        let connect: Option<Connect> = Some(|url| Box::pin($module::connect(url)));
        #[cfg(not(feature = $feature))]
        let connect: Option<Connect> = None;
        connect
    }};
}

const fn scheme(name: &'static str, feature: &'static str) -> Scheme {
    Scheme { name, feature: Some(feature) }
}

const fn always(name: &'static str) -> Scheme {
    Scheme { name, feature: None }
}

/// All backends. A URL's scheme selects the entry; error texts, help texts and the tests of pages are derived from it.
pub static BACKENDS: [BackendEntry; 9] = [
    BackendEntry {
        example: "dynamodb://table?region=eu-central-1",
        summary: "a table of Amazon DynamoDB, in the layout of other lock clients of it",
        schemes: &[scheme("dynamodb", "dynamodb")],
        default_port: None,
        excludes: "AWS Labs' lock client (Java) and its ports; with `attributes=python` `python_dynamodb_lock`",
        excluded_by: "AWS Labs' lock client (Java) and its ports; with `attributes=python` `python_dynamodb_lock`",
        pages: &["dynamodb"],
        connect: connect!("dynamodb", dynamodb),
    },
    BackendEntry {
        example: "etcd://a,b,c",
        summary: "etcd, in the layout of its own locks",
        schemes: &[scheme("etcd", "etcd"), scheme("etcds", "etcd-tls")],
        default_port: Some(2379),
        excludes: "with `layout=plain` `etcdctl lock` and Go's `concurrency.Mutex`",
        excluded_by: "with `layout=plain` `etcdctl lock` and Go's `concurrency.Mutex`",
        pages: &["etcd"],
        connect: connect!("etcd", etcd),
    },
    BackendEntry {
        example: "file:///dir",
        summary: "a directory, for the processes of this host",
        schemes: &[scheme("file", "file")],
        default_port: None,
        excludes: "none",
        excluded_by: "none",
        pages: &["file"],
        connect: connect!("file", file),
    },
    BackendEntry {
        example: "memory:",
        summary: "this process only, for tests",
        schemes: &[always("memory")],
        default_port: None,
        excludes: "none",
        excluded_by: "none",
        pages: &["memory"],
        connect: Some(|url| Box::pin(std::future::ready(memory::connect(url)))),
    },
    BackendEntry {
        example: "lockkeeper://a,b,c",
        summary: "Lockkeeper's own service, one node or a cluster",
        schemes: &[scheme("lockkeeper", "service"), scheme("lockkeepers", "service-tls")],
        default_port: Some(5625),
        excludes: "none: every client of the service is ours, also by HTTP",
        excluded_by: "none: every client of the service is ours, also by HTTP",
        pages: &["lockkeeper"],
        connect: connect!("service", service),
    },
    BackendEntry {
        example: "postgres://host/database?lock=row",
        summary: "PostgreSQL: lease rows (`lock=row`) or advisory locks (`lock=session`)",
        schemes: &[scheme("postgres", "postgres"), scheme("postgresql", "postgres")],
        default_port: Some(5432),
        excludes: "`lock=session`: who locks the same advisory key (`key=`); `lock=row`: who calls its functions",
        excluded_by: "`lock=session`: who locks the same advisory key (`key=`); `lock=row`: who calls its functions",
        pages: &["postgres-session", "postgres-row"],
        connect: connect!("postgres", postgres),
    },
    BackendEntry {
        example: "redis://host",
        summary: "Redis: one server, its replicas by sentinels, or a cluster",
        schemes: &[scheme("redis", "redis"), scheme("rediss", "redis-tls"), scheme("redis+unix", "redis")],
        default_port: Some(6379),
        excludes: "clients that use `SET NX PX` on the same key: redis-py, redsync, node-redlock …; Redisson fails",
        excluded_by: "the same; where Redisson holds, our request fails",
        pages: &["redis"],
        connect: connect!("redis", redis),
    },
    BackendEntry {
        example: "redlock://a,b,c,d,e",
        summary: "a majority of independent Redis servers",
        schemes: &[scheme("redlock", "redlock"), scheme("redlocks", "redlock")],
        default_port: Some(6379),
        excludes: "Redlock clients of the same servers and key; a client of one server alone only there",
        excluded_by: "Redlock clients of the same servers and key; a client of one server alone never",
        pages: &["redlock"],
        connect: connect!("redlock", redlock),
    },
    BackendEntry {
        example: "zookeeper://a,b,c",
        summary: "ZooKeeper, in the layout of Curator's locks",
        schemes: &[scheme("zookeeper", "zookeeper"), scheme("zookeepers", "zookeeper-tls")],
        default_port: Some(2181),
        excludes: "with `layout=plain` Curator; kazoo only with `extra_lock_patterns=[\"-lock-\"]`",
        excluded_by: "with `layout=plain` Curator and kazoo",
        pages: &["zookeeper"],
        connect: connect!("zookeeper", zookeeper),
    },
];

impl BackendEntry {
    /// The entry of a scheme.
    #[must_use]
    pub fn of(scheme: &str) -> Option<&'static Self> {
        BACKENDS.iter().find(|entry| entry.schemes.iter().any(|known| known.name == scheme))
    }

    /// Whether the backend is compiled in.
    #[must_use]
    pub fn is_compiled_in(&self) -> bool {
        self.connect.is_some()
    }
}

pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Backend>, ConnectError> {
    let schemes = || BACKENDS.iter().flat_map(|entry| entry.schemes);
    let known: Vec<&str> = schemes().map(|scheme| scheme.name).collect();
    let mut url = Url::parse(url, &known)?;
    url.find_password()?;
    if let Some(connect) = BackendEntry::of(&url.scheme).and_then(|entry| entry.connect) {
        return connect(&url).await;
    }
    let feature = schemes().find(|scheme| scheme.name == url.scheme).and_then(|scheme| scheme.feature);
    Err(match feature {
        Some(feature) => UrlError::NotCompiledIn { scheme: url.scheme, feature },
        None => UrlError::UnknownScheme {
            hint: match url.path.parse::<u16>() {
                // `host:port`, without a scheme.
                Ok(port) => format!(" (did you mean `lockkeeper://{}:{port}`?)", url.scheme),
                Err(_) => did_you_mean(&url.scheme, &known, ":"),
            },
            known: known.join(", "),
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

    #[test]
    fn every_feature_of_a_scheme_exists() {
        let manifest = read("Cargo.toml");
        for feature in BACKENDS.iter().flat_map(|entry| entry.schemes).filter_map(|scheme| scheme.feature) {
            let defined = |line: &str| line.split_once(" = [").is_some_and(|(name, _)| name == feature);
            assert!(manifest.lines().any(defined), "crates/client/Cargo.toml has no feature `{feature}`");
        }
    }

    #[test]
    fn every_page_belongs_to_a_backend_and_is_in_the_readme() {
        let pages: BTreeSet<String> =
            BACKENDS.iter().flat_map(|entry| entry.pages).map(|page| (*page).to_owned()).collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(pages, files, "the pages of the table, and the files in docs/backends");
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
        for entry in &BACKENDS {
            for text in [entry.excludes, entry.excluded_by] {
                assert!(readme.contains(&format!("| {text} |")), "README.md, {}: {text}", entry.example);
            }
        }
    }

    #[test]
    fn the_example_of_a_backend_has_one_of_its_schemes() {
        for entry in &BACKENDS {
            let url: Url = entry.example.parse().unwrap();
            assert!(entry.schemes.iter().any(|scheme| scheme.name == url.scheme), "{}", entry.example);
        }
    }
}
