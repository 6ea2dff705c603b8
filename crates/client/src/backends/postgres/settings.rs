//! What a `postgres://` address says: which kind of lock, which servers, who, and how the way there is protected.
//!
//! Responsible for reading only. The kinds of lock read their own parameters.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::error::{ConnectError, Unsupported};
use crate::url::Url;

/// What holds a lock (`?lock=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockKind {
    Session,
    Transaction,
    Row,
}

/// What an address without `lock=` is told. There is no default: the three differ in what ends a hold, and nobody
/// should find out which one it was afterwards.
const KINDS: &str = "`lock=session`, `lock=transaction` or `lock=row`:\n  \
    lock=session      an advisory lock on a connection of its own; nothing to set up; no transaction pooler between\n  \
    lock=transaction  an advisory lock in a transaction that stays open; works through a transaction pooler\n  \
    lock=row          a row with an expiry; fair, permits and the rest; needs the schema of `lockkeeper postgres init`\n";

/// Parameters that every kind of lock has.
const COMMON: &[&str] = &["lock", "socket", "sslmode", "timeout", "tls-ca"];

const PORT: u16 = 5432;
/// How long a connection, or a statement that does not wait, may take.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// Until a silent connection is asked whether it still is one.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;

/// How the way to the server is protected (`?sslmode=`), in libpq's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TlsMode {
    Disable,
    /// If the server offers it; nobody is kept from listening who can also speak.
    Prefer,
    /// Encrypted, with whoever answers.
    Require,
    /// Encrypted, with the server that the certificate names.
    VerifyFull,
}

/// How to reach the database.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// One for each host, in the address' order.
    pub(super) servers: Vec<Server>,
    pub(super) tls: TlsMode,
    /// A file of certificates to trust instead of the system's.
    #[cfg_attr(not(feature = "postgres-tls"), allow(dead_code, reason = "read, and of no use without TLS"))]
    pub(super) tls_ca: Option<PathBuf>,
    /// How long a connection, or a statement that does not wait, may take.
    pub(super) timeout: Duration,
}

/// One host.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) config: Config,
    /// `host:port`, for people.
    pub(super) shown: String,
}

impl LockKind {
    /// # Errors
    /// `lock=` is missing or names no kind: says which there are.
    pub(super) fn of(url: &Url) -> Result<Self, ConnectError> {
        let given: Option<String> = url.parameter("lock", KINDS)?;
        match given.as_deref() {
            Some("session") => Ok(Self::Session),
            Some("transaction") => Ok(Self::Transaction),
            Some("row") => Ok(Self::Row),
            Some(other) => Err(url.bad_part(format!("lock={other}"), KINDS).into()),
            None => Err(url.bad_part("lock=", KINDS).into()),
        }
    }
}

impl Settings {
    /// `own`: the parameters of this kind of lock, beside those that all have.
    ///
    /// # Errors
    /// A parameter that is unknown or can't be read, no host, TLS where it isn't compiled in.
    pub(super) fn of(url: &Url, own: &[&str]) -> Result<Self, ConnectError> {
        let mut known = [COMMON, own].concat();
        known.sort_unstable();
        url.only_parameters(&known)?;
        Self::of_any(url)
    }

    /// As [`Self::of`], whatever other parameters there are.
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
            // A standby has locks of its own, which exclude nobody at the primary.
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
            let port = host.port.unwrap_or(PORT);
            let mut config = base.clone();
            config.host(&host.name).port(port);
            let (open, close) = if host.name.contains(':') { ("[", "]") } else { ("", "") };
            servers.push(Server { config, shown: format!("{open}{}{close}:{port}", host.name) });
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

    /// The database, for people.
    pub(super) fn database(&self) -> String {
        let config = self.servers.first().map(|server| &server.config);
        let name = config.and_then(|config| config.get_dbname().or(config.get_user()));
        name.map_or_else(|| "the user's default".to_owned(), |name| format!("`{name}`"))
    }

    /// The user, for people.
    pub(super) fn user(&self) -> String {
        let user = self.servers.first().and_then(|server| server.config.get_user());
        user.map_or_else(|| "named like this process' user".to_owned(), |user| format!("`{user}`"))
    }
}

/// A parameter that is a time within bounds.
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
    fn an_address_without_a_kind_of_lock_is_told_all_three() {
        for text in ["postgres://h/db", "postgres://h/db?lock=rows"] {
            let error = LockKind::of(&text.parse().unwrap()).unwrap_err().to_string();
            for kind in ["lock=session ", "lock=transaction ", "lock=row "] {
                assert!(error.contains(kind), "{error}");
            }
        }
        assert_eq!(LockKind::of(&"postgres://h/db?lock=row".parse().unwrap()).unwrap(), LockKind::Row);
    }

    #[test]
    fn hosts_are_tried_one_by_one_and_only_a_primary_will_do() {
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
    fn what_can_not_be_is_refused_and_quoted() {
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
    fn encryption_that_is_not_compiled_in_is_an_error_and_not_left_out() {
        let found = settings("postgres://h/db?tls-ca=/x");
        if cfg!(feature = "postgres-tls") {
            assert_eq!(found.unwrap().tls, TlsMode::VerifyFull);
        } else {
            assert!(found.unwrap_err().contains("postgres-tls"));
        }
    }
}
