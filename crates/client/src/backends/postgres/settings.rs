//! Parses a `postgres://` address: kind of lock, servers, user, and transport security.
//!
//! Does no I/O. Parameters of only one kind of lock are parsed by that kind.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::error::{ConnectError, Unsupported};
use crate::url::Url;

/// The mechanism that holds a lock (`?lock=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockKind {
    Session,
    Row,
}

/// Ends the error message for an address without a valid `lock=`. There is no default: the kinds differ in what ends a
/// hold, so users must choose one explicitly.
const KINDS: &str = "`lock=session` or `lock=row`:\n  \
    lock=session  an advisory lock on a connection of its own; nothing to set up; no transaction pooler between\n  \
    lock=row      a row with an expiry; fair, permits and the rest; needs the schema of `lockkeeper postgres init`\n";

/// Ends the error message for `lock=transaction`. A transaction that stays open for as long as a lock is held stops
/// vacuum from removing dead rows, and is ended by `idle_in_transaction_session_timeout`.
const NOT_IN_TRANSACTION: &str = "a kind of lock for an address: to lock in a transaction of your own, call \
    `lock_in_transaction` there; where a lock must last longer, use `lock=session`, or `lock=row` behind a transaction pooler";

/// Parameters common to all kinds of lock.
const COMMON: &[&str] = &["lock", "socket", "sslmode", "timeout", "tls-ca"];

const PORT: u16 = 5432;
/// Default of `timeout=`.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// Idle time before the first TCP keep-alive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;

/// Transport security (`?sslmode=`), with libpq's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TlsMode {
    Disable,
    /// Encrypts if the server offers TLS. Protects against passive eavesdroppers only, not against active attackers.
    Prefer,
    /// Encrypts without authenticating the server.
    Require,
    /// Encrypts and verifies the server's certificate and host name.
    VerifyFull,
}

/// Connection settings of the database.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// One per host, in the order of the address.
    pub(super) servers: Vec<Server>,
    pub(super) tls: TlsMode,
    /// PEM file with trusted certificates, instead of the system's store.
    #[cfg_attr(not(feature = "postgres-tls"), allow(dead_code, reason = "read, and of no use without TLS"))]
    pub(super) tls_ca: Option<PathBuf>,
    /// `timeout=`: limit for opening a connection and for most statements. Others wait for a lock, or have a limit of
    /// their own.
    pub(super) timeout: Duration,
}

/// One host.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) config: Config,
    /// `host:port`, as shown to users.
    pub(super) shown: String,
}

impl LockKind {
    /// # Errors
    /// `lock=` is missing or names no kind; the error lists the kinds.
    pub(super) fn of(url: &Url) -> Result<Self, ConnectError> {
        let given: Option<String> = url.parameter("lock", KINDS)?;
        match given.as_deref() {
            Some("session") => Ok(Self::Session),
            Some("row") => Ok(Self::Row),
            Some("transaction") => Err(url.bad_part("lock=transaction", NOT_IN_TRANSACTION).into()),
            Some(other) => Err(url.bad_part(format!("lock={other}"), KINDS).into()),
            None => Err(url.bad_part("lock=", KINDS).into()),
        }
    }
}

impl Settings {
    /// `own`: parameters of this kind of lock, in addition to the common ones.
    ///
    /// # Errors
    /// An unknown or unreadable parameter, no host, or TLS where it isn't compiled in.
    pub(super) fn of(url: &Url, own: &[&str]) -> Result<Self, ConnectError> {
        let mut known = [COMMON, own].concat();
        known.sort_unstable();
        url.only_parameters(&known)?;
        Self::of_any(url)
    }

    /// Like [`Self::of`], but accepts any other parameters.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) fn of_any(url: &Url) -> Result<Self, ConnectError> {
        let timeout = duration(url, "timeout", TIMEOUT, TIMEOUTS, "a time from `100ms` to `60s`")?;
        let (tls, tls_ca) = tls_of(url)?;
        let socket: Option<PathBuf> = url.parameter("socket", "the directory of the server's socket")?;
        let mut base = Config::new();
        base.connect_timeout(timeout)
            .tcp_user_timeout(timeout)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            // A standby has its own lock table, so its locks exclude no client of the primary.
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .ssl_mode(match tls {
                TlsMode::Disable => SslMode::Disable,
                TlsMode::Prefer => SslMode::Prefer,
                TlsMode::Require | TlsMode::VerifyFull => SslMode::Require,
            });
        if let Some(user) = &url.user {
            base.user(user);
        }
        if let Some(password) = &url.password {
            base.password(password.reveal());
        }
        match url.path.strip_prefix('/') {
            None | Some("") => {}
            Some(database) => drop(base.dbname(database)),
        }
        let mut servers = Vec::new();
        for host in &url.hosts {
            let mut config = base.clone();
            config.host(&host.name).port(host.port.unwrap_or(PORT));
            servers.push(Server { config, shown: host.address(PORT) });
        }
        if let Some(directory) = socket {
            if !url.hosts.is_empty() {
                let wanted = "given together with hosts: leave one of the two out";
                return Err(url.bad_part("socket", wanted).into());
            }
            let mut config = base.clone();
            config.host_path(&directory).port(PORT);
            servers.push(Server { config, shown: format!("{}/.s.PGSQL.{PORT}", directory.display()) });
        }
        if servers.is_empty() {
            let wanted = "a host: write `postgres://user@host/database`, or `?socket=/var/run/postgresql`";
            return Err(url.bad_part("//", wanted).into());
        }
        Ok(Self { servers, tls, tls_ca, timeout })
    }

    /// The database, as shown to users.
    pub(super) fn database(&self) -> String {
        let config = self.servers.first().map(|server| &server.config);
        let name = config.and_then(|config| config.get_dbname().or(config.get_user()));
        name.map_or_else(|| "the user's default".to_owned(), |name| format!("`{name}`"))
    }

    /// The user, as shown to users.
    pub(super) fn user(&self) -> String {
        let user = self.servers.first().and_then(|server| server.config.get_user());
        user.map_or_else(|| "named like this process' user".to_owned(), |user| format!("`{user}`"))
    }
}

/// Parses a duration parameter within bounds.
pub(super) fn duration(
    url: &Url,
    key: &str,
    default: Duration,
    (least, most): (Duration, Duration),
    wanted: &'static str,
) -> Result<Duration, ConnectError> {
    match url.parameter::<humantime::Duration>(key, wanted)? {
        None => Ok(default),
        Some(given) if (least..=most).contains(&*given) => Ok(*given),
        Some(given) => Err(url.bad_part(format!("{key}={given}"), wanted).into()),
    }
}

fn tls_of(url: &Url) -> Result<(TlsMode, Option<PathBuf>), ConnectError> {
    const WANTED: &str =
        "`sslmode=disable`, `prefer`, `require` (encrypts, checks no certificate) or `verify-full`";
    let ca: Option<PathBuf> = url.parameter("tls-ca", "a file of PEM certificates")?;
    let given: Option<String> = url.parameter("sslmode", WANTED)?;
    let mode = match given.as_deref() {
        None if ca.is_some() => TlsMode::VerifyFull,
        None | Some("prefer") => TlsMode::Prefer,
        Some("disable") => TlsMode::Disable,
        Some("require") => TlsMode::Require,
        Some("verify-full") => TlsMode::VerifyFull,
        Some(other) => return Err(url.bad_part(format!("sslmode={other}"), WANTED).into()),
    };
    if ca.is_some() && mode != TlsMode::VerifyFull {
        let wanted = "of use: only `sslmode=verify-full` checks certificates";
        return Err(url.bad_part("tls-ca", wanted).into());
    }
    if cfg!(not(feature = "postgres-tls")) && matches!(mode, TlsMode::Require | TlsMode::VerifyFull) {
        return Err(Unsupported {
            backend: "postgres",
            what: "encrypt its connections",
            why: "this program is built without the feature `postgres-tls`",
            instead: "build with it: `cargo add lockkeeper --features postgres-tls`, or `cargo install \
                      lockkeeper-cli --features postgres-tls`",
        }
        .into());
    }
    Ok((mode, ca))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, String> {
        let url: Url = text.parse().unwrap();
        Settings::of(&url, &["key"]).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_kind_of_lock_is_an_error_that_lists_the_kinds() {
        for text in ["postgres://h/db", "postgres://h/db?lock=rows"] {
            let error = LockKind::of(&text.parse().unwrap()).unwrap_err().to_string();
            for kind in ["lock=session ", "lock=row "] {
                assert!(error.contains(kind), "{error}");
            }
        }
        assert_eq!(LockKind::of(&"postgres://h/db?lock=row".parse().unwrap()).unwrap(), LockKind::Row);
    }

    #[test]
    fn lock_in_a_transaction_is_not_a_kind_and_the_error_names_the_function() {
        let error =
            LockKind::of(&"postgres://h/db?lock=transaction".parse().unwrap()).unwrap_err().to_string();
        for part in ["`lock=transaction`", "`lock_in_transaction`", "`lock=row` behind a transaction pooler"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn each_host_has_a_config_that_requires_a_primary() {
        let found = settings("postgres://me:secret@a,[::1]:7/shop?lock=row").unwrap();
        let shown: Vec<&str> = found.servers.iter().map(|server| server.shown.as_str()).collect();
        assert_eq!(shown, ["a:5432", "[::1]:7"]);
        for Server { config, .. } in &found.servers {
            assert_eq!(config.get_hosts().len(), 1);
            assert_eq!((config.get_user(), config.get_dbname()), (Some("me"), Some("shop")));
            assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
        assert_eq!((found.database(), found.tls), ("`shop`".to_owned(), TlsMode::Prefer));
        assert!(!format!("{found:?}").contains("secret"));
    }

    #[test]
    fn invalid_parameters_are_refused_and_quoted() {
        for (text, quoted) in [
            ("postgres:///db", "a host"),
            ("postgres://h/db?timeout=1h", "timeout=1h"),
            ("postgres://h/db?timeout=soon", "timeout=soon"),
            ("postgres://h/db?sslmode=verify-ca", "sslmode=verify-ca"),
            ("postgres://h/db?sslmode=prefer&tls-ca=/x", "tls-ca"),
            ("postgres://h/db?socket=/run", "socket"),
            ("postgres://h/db?kei=raw", "did you mean `key`"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(quoted), "{text}: {error}");
        }
        assert_eq!(settings("postgres:///db?socket=/run").unwrap().servers[0].shown, "/run/.s.PGSQL.5432");
    }

    #[test]
    fn tls_that_is_not_compiled_in_is_an_error() {
        let found = settings("postgres://h/db?tls-ca=/x");
        if cfg!(feature = "postgres-tls") {
            assert_eq!(found.unwrap().tls, TlsMode::VerifyFull);
        } else {
            assert!(found.unwrap_err().contains("postgres-tls"));
        }
    }
}
