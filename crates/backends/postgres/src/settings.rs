//! Parses a `postgres://` address: kind of lock, servers, user, and transport security.
//!
//! Does no I/O. Parameters of only one kind of lock are parsed by that kind.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_backend::{ConnectError, Host, Password, Unsupported, Url};
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host as ServerHost, SslMode, TargetSessionAttrs};

/// The mechanism that holds a lock (`?lock=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockKind {
    Session,
    Row,
}

/// Ends the error message for an address without a valid `lock=`. There is no default: the kinds differ in
/// what ends a hold, so users must choose one explicitly.
const KINDS: &str = "`lock=session` or `lock=row`:\n  \
    lock=session  an advisory lock on a connection of its own; nothing to set up; no transaction pooler between\n  \
    lock=row      a row with an expiry; fair, permits and the rest; needs the schema of `lockkeeper postgres init`\n";

/// Ends the error message for `lock=transaction`. A transaction that stays open for as long as a lock is held
/// stops vacuum from removing dead rows, and is ended by `idle_in_transaction_session_timeout`.
const NOT_IN_TRANSACTION: &str = "a kind of lock for an address: to lock in a transaction of your own, call \
    `lock_in_transaction` there; where a lock must last longer, use `lock=session`, or `lock=row` behind a transaction pooler";

/// Parameters common to all kinds of lock; most are libpq's.
const COMMON: &[&str] = &[
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "lock",
    "options",
    "password",
    "port",
    "socket",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "timeout",
    "tls-ca",
    "tls-cert",
    "tls-key",
    "user",
];

/// Parameters of libpq and other clients that occur in URLs of providers and are not supported here, with the
/// replacement for each.
const REFUSED: &[(&str, &str)] = &[
    (
        "application_name",
        "possible: it shows whose a lock is; name the client instead (`run --owner`, `Locks::connect_as`)",
    ),
    ("connection_limit", "a parameter here: write `connections=`"),
    ("hostaddr", "a parameter here: write the address as the host"),
    ("passfile", "readable here: write `password-file=FILE`, a file with the password alone"),
    ("pgbouncer", "needed: leave it out; poolers are recognized"),
    ("service", "readable here: write host, port and database into the URL"),
    ("sslcrl", "checked here: leave it out, or use certificates that end soon"),
    ("sslnegotiation", "a parameter here: leave it out, TLS is negotiated as of old"),
    (
        "sslpassword",
        "of use: encrypted keys are not read; decrypt it (`openssl pkey`) into a file of mode 0600",
    ),
];

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
    /// Encrypts if the server offers TLS. Protects against passive eavesdroppers only, not against active
    /// attackers.
    Prefer,
    /// Encrypts without authenticating the server.
    Require,
    /// Encrypts and verifies the server's certificate, for whatever host.
    VerifyCa,
    /// Encrypts and verifies the server's certificate and host name.
    VerifyFull,
}

/// Connection settings of the database.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// One per host, in the order of the address.
    pub(super) servers: Vec<Server>,
    password: Option<Password>,
    pub(super) tls: TlsMode,
    /// PEM file with trusted certificates, instead of the system's store.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "read, and of no use without TLS"))]
    pub(super) tls_ca: Option<PathBuf>,
    /// PEM files with this client's certificate and its key.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "read, and of no use without TLS"))]
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    /// Limit for opening a connection.
    pub(super) connect_timeout: Duration,
    /// `timeout=`: limit for most statements. Others wait for a lock, or have a limit of
    /// their own.
    pub(super) timeout: Duration,
}

/// One host.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// Without the password.
    config: Config,
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
        for (key, instead) in REFUSED {
            if let Some(value) = url.parameter::<String>(key, "text")? {
                let part =
                    if *key == "sslpassword" { "sslpassword=".to_owned() } else { format!("{key}={value}") };
                return Err(url.bad_part(part, instead).into());
            }
        }
        url.only_parameters(&known)?;
        Self::of_any(url)
    }

    /// Like [`Self::of`], but accepts any other parameters.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) fn of_any(url: &Url) -> Result<Self, ConnectError> {
        let timeout = duration(url, "timeout", TIMEOUT, TIMEOUTS, "a time from `100ms` to `60s`")?;
        let connect_timeout = match url.parameter::<u64>("connect_timeout", SECONDS)? {
            None => timeout,
            Some(seconds) if (1..=TIMEOUTS.1.as_secs()).contains(&seconds) => Duration::from_secs(seconds),
            Some(seconds) => return Err(url.bad_part(format!("connect_timeout={seconds}"), SECONDS).into()),
        };
        let (tls, tls_ca) = tls_of(url)?;
        let identity = identity_of(url, tls)?;
        check_that_primary(url)?;
        let mut base = Config::new();
        base.connect_timeout(connect_timeout)
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
                TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
            });
        match url.parameter::<String>("channel_binding", BINDINGS)?.as_deref() {
            None | Some("prefer") => {}
            Some("disable") => drop(base.channel_binding(ChannelBinding::Disable)),
            Some("require") => drop(base.channel_binding(ChannelBinding::Require)),
            Some(other) => return Err(url.bad_part(format!("channel_binding={other}"), BINDINGS).into()),
        }
        if let Some(options) = url.parameter::<String>("options", "options of the server")? {
            base.options(options);
        }
        if let Some(user) = once(url, "user", url.user.clone())? {
            base.user(user);
        }
        let given = once(url, "password", url.password.as_ref().map(Password::reveal))?;
        let password = url.password.clone().or_else(|| given.map(Password::of));
        let database = url.path.strip_prefix('/').filter(|database| !database.is_empty());
        if let Some(database) = once(url, "dbname", database.map(str::to_owned))? {
            base.dbname(database);
        }
        let port: Option<u16> = url.parameter("port", "the number of a port")?;
        let host: Option<String> =
            url.parameter("host", "a host, or the directory of the server's socket")?;
        let mut socket: Option<PathBuf> = url.parameter("socket", "the directory of the server's socket")?;
        let mut hosts = url.hosts.clone();
        if let Some(host) = host {
            if !hosts.is_empty() || socket.is_some() {
                let wanted = "given together with hosts or `socket=`: leave one of the two out";
                return Err(url.bad_part(format!("host={host}"), wanted).into());
            }
            match host.starts_with('/') {
                true => socket = Some(host.into()),
                false => hosts = host.split(',').map(|name| Host { name: name.to_owned(), port }).collect(),
            }
        } else if let Some(port) = port.filter(|_| socket.is_none()) {
            let wanted = "of use without `host=` or `socket=`: write it after the host, as in `host:5433`";
            return Err(url.bad_part(format!("port={port}"), wanted).into());
        }
        let mut servers = Vec::new();
        for host in &hosts {
            let mut config = base.clone();
            config.host(&host.name).port(host.port.unwrap_or(PORT));
            servers.push(Server { config, shown: host.address(PORT) });
        }
        if let Some(directory) = socket {
            if !hosts.is_empty() {
                let wanted = "given together with hosts: leave one of the two out";
                return Err(url.bad_part("socket", wanted).into());
            }
            let port = port.unwrap_or(PORT);
            let mut config = base.clone();
            config.host_path(&directory).port(port);
            servers.push(Server { config, shown: format!("{}/.s.PGSQL.{port}", directory.display()) });
        }
        if servers.is_empty() {
            let wanted = "a host: write `postgres://user@host/database`, or `?socket=/var/run/postgresql`";
            return Err(url.bad_part("//", wanted).into());
        }
        Ok(Self { servers, password, tls, tls_ca, identity, connect_timeout, timeout })
    }

    /// The configuration of one server, for a new connection: with the present password.
    pub(super) fn config(&self, server: usize) -> Config {
        let mut config = self.servers[server].config.clone();
        if let Some(password) = &self.password {
            config.password(password.reveal());
        }
        config
    }

    /// The host of one server's configuration, as a slice of one.
    pub(super) fn hosts(&self, server: usize) -> &[ServerHost] {
        self.servers[server].config.get_hosts()
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

const SECONDS: &str = "a number of seconds from 1 to 60";
const BINDINGS: &str = "`channel_binding=disable`, `prefer` or `require`";

/// A value that a URL gives in its usual place or as a parameter, but not both.
fn once(url: &Url, key: &str, usual: Option<String>) -> Result<Option<String>, ConnectError> {
    match (usual, url.parameter::<String>(key, "text")?) {
        (Some(_), Some(_)) => Err(url.bad_part(key, "given twice: leave one of the two out").into()),
        (usual, parameter) => Ok(usual.or(parameter)),
    }
}

/// An error if the URL asks for a server that is not writable: locks need one.
fn check_that_primary(url: &Url) -> Result<(), ConnectError> {
    let wanted = "a server for locks: they need the primary, `target_session_attrs=read-write`";
    match url.parameter::<String>("target_session_attrs", wanted)? {
        Some(other) if !["any", "primary", "read-write"].contains(&other.as_str()) => {
            Err(url.bad_part(format!("target_session_attrs={other}"), wanted).into())
        }
        _ => Ok(()),
    }
}

/// The files of this client's certificate and key, by libpq's names or ours.
fn identity_of(url: &Url, tls: TlsMode) -> Result<Option<(PathBuf, PathBuf)>, ConnectError> {
    let file = |key| url.parameter::<PathBuf>(key, "a file in PEM");
    let certificate = file("sslcert")?.map_or_else(|| file("tls-cert"), |file| Ok(Some(file)))?;
    let key = file("sslkey")?.map_or_else(|| file("tls-key"), |file| Ok(Some(file)))?;
    match (certificate, key) {
        (Some(_), Some(_)) if tls == TlsMode::Disable => {
            Err(url.bad_part("sslcert", "of use with `sslmode=disable`").into())
        }
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        _ => Err(url.bad_part("sslcert", "complete: give both `sslcert` and `sslkey`").into()),
    }
}

fn tls_of(url: &Url) -> Result<(TlsMode, Option<PathBuf>), ConnectError> {
    const WANTED: &str = "`sslmode=disable`, `prefer`, `require` (encrypts, checks no certificate unless `sslrootcert` \
                          is given), `verify-ca` or `verify-full`";
    let ours: Option<PathBuf> = url.parameter("tls-ca", "a file of PEM certificates")?;
    let given = url.parameter::<PathBuf>("sslrootcert", "a file of PEM certificates, or `system`")?;
    if ours.is_some() && given.is_some() {
        return Err(url.bad_part("sslrootcert", "of use beside `tls-ca`: give one of them").into());
    }
    // `system` names the system's store, which is the default here.
    let is_checked = ours.is_some() || given.is_some();
    let ca = ours.or(given.filter(|file| file.as_os_str() != "system"));
    let given: Option<String> = url.parameter("sslmode", WANTED)?;
    let mode = match given.as_deref() {
        None if is_checked => TlsMode::VerifyFull,
        None | Some("prefer") => TlsMode::Prefer,
        Some("disable") => TlsMode::Disable,
        // As libpq does.
        Some("require") if is_checked => TlsMode::VerifyCa,
        Some("require") => TlsMode::Require,
        Some("verify-ca") => TlsMode::VerifyCa,
        Some("verify-full") => TlsMode::VerifyFull,
        Some(other) => return Err(url.bad_part(format!("sslmode={other}"), WANTED).into()),
    };
    if is_checked && !matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyFull) {
        let wanted =
            "of use with this `sslmode`: only `require`, `verify-ca` and `verify-full` check certificates";
        return Err(url.bad_part("tls-ca", wanted).into());
    }
    if cfg!(not(feature = "tls")) && !matches!(mode, TlsMode::Disable | TlsMode::Prefer) {
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
            ("postgres://h/db?sslmode=allow", "sslmode=allow"),
            ("postgres://h/db?channel_binding=maybe", "channel_binding=maybe"),
            ("postgres://h/db?connect_timeout=0", "connect_timeout=0"),
            ("postgres://h/db?target_session_attrs=standby", "need the primary"),
            ("postgres://h/db?application_name=app", "connect_as"),
            ("postgres://h/db?passfile=/x", "password-file=FILE"),
            ("postgres://h/db?sslpassword=secret", "decrypt it"),
            ("postgres://h/db?sslcert=/x", "sslkey"),
            ("postgres://h/db?port=7", "after the host"),
            ("postgres://h/db?host=/run", "host=/run"),
            ("postgres://me@h/db?user=you", "given twice"),
            ("postgres://h/db?sslmode=prefer&tls-ca=/x", "tls-ca"),
            ("postgres://h/db?socket=/run", "socket"),
            ("postgres://h/db?kei=raw", "did you mean `key`"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(quoted), "{text}: {error}");
        }
        assert!(!settings("postgres://h/db?sslpassword=secret").unwrap_err().contains("secret"));
    }

    #[test]
    fn parameters_of_libpq_are_taken() {
        let shown = |text: &str| settings(text).unwrap().servers.remove(0).shown;
        assert_eq!(shown("postgres:///db?socket=/run"), "/run/.s.PGSQL.5432");
        assert_eq!(shown("postgres:///db?host=/run&port=5433"), "/run/.s.PGSQL.5433");
        assert_eq!(shown("postgres:///?host=db1&port=5433&dbname=shop"), "db1:5433");
        let text = "postgres://h/?user=me&password=secret&dbname=shop&options=-c%20search_path%3Dx&connect_timeout=7\
                    &channel_binding=require&target_session_attrs=primary";
        let found = settings(text).unwrap();
        let config = found.config(0);
        assert_eq!((config.get_user(), config.get_dbname()), (Some("me"), Some("shop")));
        assert_eq!(config.get_password(), Some(&b"secret"[..]));
        assert_eq!(config.get_options(), Some("-c search_path=x"));
        assert_eq!(config.get_channel_binding(), ChannelBinding::Require);
        assert_eq!((found.connect_timeout, found.timeout), (Duration::from_secs(7), TIMEOUT));
        if cfg!(feature = "tls") {
            for (query, mode) in [
                ("sslmode=verify-ca", TlsMode::VerifyCa),
                ("sslmode=require&sslrootcert=/x", TlsMode::VerifyCa),
                ("sslrootcert=system", TlsMode::VerifyFull),
                ("sslmode=require", TlsMode::Require),
            ] {
                assert_eq!(settings(&format!("postgres://h/db?{query}")).unwrap().tls, mode, "{query}");
            }
        }
    }

    #[test]
    fn tls_that_is_not_compiled_in_is_an_error() {
        let found = settings("postgres://h/db?tls-ca=/x");
        if cfg!(feature = "tls") {
            assert_eq!(found.unwrap().tls, TlsMode::VerifyFull);
        } else {
            assert!(found.unwrap_err().contains("postgres-tls"));
        }
    }
}
