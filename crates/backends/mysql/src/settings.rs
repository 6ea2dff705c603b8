//! Parses a `mysql://` address: kind of lock, servers, user, and transport security. Does no I/O but reading
//! the files of TLS.

use std::time::Duration;

use lockkeeper_backend::{ConnectError, Host, Password, TLS_PARAMETERS, TlsFiles, Unsupported, Url};
use mysql_async::{Opts, OptsBuilder};

/// The mechanism that holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    /// `lock=row`.
    Row,
    /// `lock=row&layout=shedlock`.
    ShedLock,
    /// `lock=session`.
    Session,
}

/// Ends the error message for an unknown `lock=`.
const KINDS: &str =
    "`lock=row` (the default: a row with an expiry) or `lock=session` (GET_LOCK on a connection of its own)";
const LAYOUTS: &str = "`layout=shedlock`, the table of ShedLock, and only with `lock=row`";

/// Parameters common to all kinds of lock.
const COMMON: &[&str] = &["lock", "socket", "ssl-mode", "timeout"];

pub(crate) const PORT: u16 = 3306;
/// Default of `timeout=`, and its bounds.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUTS: (u64, u64) = (100, 60_000);
/// Idle time before the first TCP keep-alive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// Larger than any statement of ours. Given, so that the driver need not ask the server.
const MAX_PACKET: usize = 16 << 20;

/// Transport security (`?ssl-mode=`), with the names of MySQL's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsMode {
    Disabled,
    /// Encrypts if the server offers TLS. Protects against passive eavesdroppers only.
    Preferred,
    /// Encrypts without authenticating the server.
    Required,
    /// Encrypts and verifies the server's certificate, for whatever host.
    VerifyCa,
    /// Encrypts and verifies the server's certificate and host name.
    VerifyIdentity,
}

/// Connection settings of the database.
#[derive(Clone)]
pub(crate) struct Settings {
    /// In the order of the address.
    hosts: Vec<Host>,
    /// The path of the server's socket, in place of hosts.
    socket: Option<String>,
    user: Option<String>,
    password: Option<Password>,
    pub(crate) database: String,
    pub(crate) tls: TlsMode,
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "read, and of no use without TLS"))]
    pub(crate) tls_files: Option<TlsFiles>,
    /// `timeout=`: limit for opening a connection, and for statements without another limit.
    pub(crate) timeout: Duration,
}

impl LockKind {
    /// # Errors
    /// `lock=` or `layout=` names no kind; the error lists the kinds.
    pub(crate) fn of(url: &Url) -> Result<Self, ConnectError> {
        let lock: Option<String> = url.parameter("lock", KINDS)?;
        let layout: Option<String> = url.parameter("layout", LAYOUTS)?;
        match (lock.as_deref(), layout.as_deref()) {
            (None | Some("row"), None) => Ok(Self::Row),
            (None | Some("row"), Some("shedlock")) => Ok(Self::ShedLock),
            (Some("session"), None) => Ok(Self::Session),
            (None | Some("row" | "session"), Some(layout)) => {
                Err(url.bad_part(format!("layout={layout}"), LAYOUTS).into())
            }
            (Some(lock), _) => Err(url.bad_part(format!("lock={lock}"), KINDS).into()),
        }
    }
}

impl Settings {
    /// `own`: parameters of this kind of lock, in addition to the common ones.
    ///
    /// # Errors
    /// An unknown or unreadable parameter, no host or database, or TLS where it isn't compiled in.
    pub(crate) fn of(url: &Url, own: &[&str]) -> Result<Self, ConnectError> {
        url.only_parameters(&[COMMON, &TLS_PARAMETERS, own].concat())?;
        let database = url.path.strip_prefix('/').filter(|name| !name.is_empty() && !name.contains('/'));
        let Some(database) = database else {
            return Err(url.bad_part("", "a database after the host: `mysql://user@host/database`").into());
        };
        let socket: Option<String> = url.parameter("socket", "the path of the server's socket")?;
        if url.hosts.is_empty() == socket.is_none() {
            return Err(url.bad_part("", "a host, or `socket=PATH`: give one of them").into());
        }
        let (tls, tls_files) = tls_of(url)?;
        Ok(Self {
            hosts: url.hosts.clone(),
            socket,
            user: url.user.clone(),
            password: url.password.clone(),
            database: database.to_owned(),
            tls,
            tls_files,
            timeout: duration(url, "timeout", TIMEOUT, TIMEOUTS, "a time from `100ms` to `60s`")?,
        })
    }

    /// The number of servers.
    pub(crate) fn servers(&self) -> usize {
        self.hosts.len().max(1)
    }

    /// A server, as shown to users.
    pub(crate) fn shown(&self, server: usize) -> String {
        match (&self.socket, self.hosts.get(server)) {
            (Some(socket), _) => socket.clone(),
            (None, host) => host.map(|host| host.address(PORT)).unwrap_or_default(),
        }
    }

    pub(crate) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or("")
    }

    /// The driver's options for a server, without TLS. Reads the password's file again.
    pub(crate) fn options(&self, server: usize) -> OptsBuilder {
        let options = OptsBuilder::from_opts(Opts::default())
            .user(self.user.clone())
            .pass(self.password.as_ref().map(Password::reveal))
            .db_name(Some(self.database.clone()))
            .tcp_keepalive(Some(KEEPALIVE_IDLE))
            .max_allowed_packet(Some(MAX_PACKET))
            // The driver's own pool is not used.
            .wait_timeout(Some(usize::MAX >> 1))
            .prefer_socket(false)
            // The number of matched rows, whether or not they changed.
            .client_found_rows(true);
        match (&self.socket, self.hosts.get(server)) {
            (Some(socket), _) => options.socket(Some(socket.clone())),
            (None, Some(host)) => options.ip_or_hostname(&host.name).tcp_port(host.port.unwrap_or(PORT)),
            (None, None) => options,
        }
    }
}

/// A time with a unit, `ms`, `s` or `min`, within bounds in milliseconds.
pub(crate) fn duration(
    url: &Url,
    key: &str,
    default: Duration,
    (least, most): (u64, u64),
    wanted: &'static str,
) -> Result<Duration, ConnectError> {
    let Some(given) = url.parameter::<String>(key, wanted)? else { return Ok(default) };
    let number = given.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &given[number.len()..] {
        "ms" => Some(1),
        "s" => Some(1_000),
        "min" => Some(60_000),
        _ => None,
    };
    let ms = unit.and_then(|unit: u64| number.parse::<u64>().ok()?.checked_mul(unit));
    match ms.filter(|ms| (least..=most).contains(ms)) {
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err(url.bad_part(format!("{key}={given}"), wanted).into()),
    }
}

/// A number of connections.
pub(crate) fn connections(url: &Url, default: usize, most: usize) -> Result<usize, ConnectError> {
    const WANTED: &str = "a number of connections: 1 to 1000 for rows, 1 to 10000 for sessions";
    let given = url.parameter("connections", WANTED)?.unwrap_or(default);
    if (1..=most).contains(&given) {
        return Ok(given);
    }
    Err(url.bad_part(format!("connections={given}"), WANTED).into())
}

fn tls_of(url: &Url) -> Result<(TlsMode, Option<TlsFiles>), ConnectError> {
    const WANTED: &str = "`ssl-mode=disabled`, `preferred`, `required` (encrypts, checks no certificate), `verify-ca` or \
                          `verify-identity`";
    let files =
        TlsFiles::of(url, &url.scheme, "")?.filter(|files| files.ca.is_some() || files.identity.is_some());
    let given: Option<String> = url.parameter("ssl-mode", WANTED)?;
    let given = given.map(|mode| mode.to_ascii_lowercase().replace('_', "-"));
    let mode = match given.as_deref() {
        None if files.is_some() => TlsMode::VerifyIdentity,
        None | Some("preferred") => TlsMode::Preferred,
        Some("disabled") => TlsMode::Disabled,
        Some("required") => TlsMode::Required,
        Some("verify-ca") => TlsMode::VerifyCa,
        Some("verify-identity") => TlsMode::VerifyIdentity,
        Some(other) => return Err(url.bad_part(format!("ssl-mode={other}"), WANTED).into()),
    };
    let checks = matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyIdentity);
    if files.as_ref().is_some_and(|files| files.ca.is_some()) && !checks {
        let wanted = "of use with this `ssl-mode`: only `verify-ca` and `verify-identity` check certificates";
        return Err(url.bad_part("tls-ca", wanted).into());
    }
    if cfg!(not(feature = "tls")) && !matches!(mode, TlsMode::Disabled | TlsMode::Preferred) {
        return Err(Unsupported {
            backend: "mysql",
            what: "encrypt its connections",
            why: "this program is built without the feature `mysql-tls`",
            instead: "build with it: `cargo add lockkeeper --features mysql-tls`, or `cargo install lockkeeper-cli \
                      --features mysql`",
        }
        .into());
    }
    Ok((mode, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, String> {
        let url = Url::parse(text, &["mysql"]).map_err(|error| error.to_string())?;
        Settings::of(&url, &["connections"]).map_err(|error| error.to_string())
    }

    fn kind(text: &str) -> Result<LockKind, String> {
        LockKind::of(&text.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_are_the_default_kind() {
        assert_eq!(kind("mysql://h/db"), Ok(LockKind::Row));
        assert_eq!(kind("mysql://h/db?lock=session"), Ok(LockKind::Session));
        assert_eq!(kind("mysql://h/db?layout=shedlock"), Ok(LockKind::ShedLock));
        for (text, quoted) in [
            ("mysql://h/db?lock=rows", "lock=rows"),
            ("mysql://h/db?layout=quartz", "layout=quartz"),
            ("mysql://h/db?lock=session&layout=shedlock", "only with `lock=row`"),
        ] {
            let error = kind(text).unwrap_err();
            assert!(error.contains(quoted), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_parameters_are_refused_and_quoted() {
        for (text, quoted) in [
            ("mysql://h", "a database"),
            ("mysql://h/a/b", "a database"),
            ("mysql:///db", "socket=PATH"),
            ("mysql://h/db?timeout=1h", "timeout=1h"),
            ("mysql://h/db?timeout=61s", "timeout=61s"),
            ("mysql://h/db?ssl-mode=allow", "ssl-mode=allow"),
            ("mysql://h/db?tls-cert=/x", "tls-key"),
            ("mysql://h/db?connection=4", "did you mean `connections`"),
        ] {
            let error = settings(text).err().unwrap_or_default();
            assert!(error.contains(quoted), "{text}: {error}");
        }
    }

    #[test]
    fn each_host_has_options() {
        let found = settings("mysql://me:secret@a,[::1]:7/shop").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((0..found.servers()).map(|at| found.shown(at)).collect::<Vec<_>>(), ["a:3306", "[::1]:7"]);
        let options = Opts::from(found.options(1));
        assert_eq!((options.ip_or_hostname(), options.tcp_port()), ("::1", 7));
        assert_eq!(
            (options.user(), options.pass(), options.db_name()),
            (Some("me"), Some("secret"), Some("shop"))
        );
        assert_eq!((found.tls, found.timeout), (TlsMode::Preferred, TIMEOUT));
    }
}
