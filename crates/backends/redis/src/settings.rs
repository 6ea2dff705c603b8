//! Settings from a URL: servers, login, and how locks are stored.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper_backend::{BackendError, ConnectError, Host, Password, Rotated, TlsFiles, Url, UrlError};
use redis::{ProtocolVersion, RedisConnectionInfo};

use super::dial::{Dialer, RedisAddress};

/// The default port.
pub const PORT: u16 = 6379;
/// The default port of a sentinel.
pub(super) const SENTINEL_PORT: u16 = 26379;

/// Connection and storage settings, without the hosts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefix of each lock's key.
    pub prefix: Arc<str>,
    /// Draw a token with each grant.
    pub(super) fencing: bool,
    /// Draw tokens even where the server may lose the counter.
    pub(super) force: bool,
    /// The login, without the password.
    login: RedisConnectionInfo,
    password: Option<Password>,
    tls: Option<Tls>,
    /// A separate login for sentinels.
    sentinel_login: Option<(RedisConnectionInfo, Password)>,
    sentinel_tls: Option<Tls>,
}

/// Trusted certificates, and this client's own.
#[derive(Clone)]
struct Tls {
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "there is no TLS"))]
    files: Arc<Rotated<TlsFiles>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// How the hosts of a URL form one service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Topology {
    /// One server: a primary.
    Single(Host),
    /// One server by its Unix socket.
    Socket(PathBuf),
    /// One of several servers; the caller checks that it is no replica.
    Member(Host),
    /// Sentinels, and the name of their primary.
    Sentinel { sentinels: Vec<Host>, primary: String },
    /// Some nodes of a cluster.
    Cluster(Vec<Host>),
}

/// The parameters of `redis://`.
const PARAMETERS: &[&str] = &[
    "cluster",
    "db",
    "fencing",
    "force",
    "prefix",
    "sentinel",
    SENTINEL_PASSWORD_FILE,
    SENTINEL_TLS,
    SENTINEL_USER,
    "tls-ca",
    "tls-cert",
    "tls-key",
];
const SENTINEL_PASSWORD_FILE: &str = "sentinel-password-file";
const SENTINEL_TLS: &str = "sentinel-tls";
const SENTINEL_USER: &str = "sentinel-user";
/// The scheme of a server's Unix socket.
const SOCKET: &str = "redis+unix";

impl Settings {
    /// The settings that all schemes over Redis share: login, database, prefix, TLS. `tls`: whether the
    /// scheme requires TLS. The caller checks which parameters the URL may have.
    pub fn of(url: &Url, tls: bool) -> Result<Self, ConnectError> {
        let by_socket = url.scheme == SOCKET;
        let db = match url.path.trim_matches('/') {
            _ if by_socket => url.parameter("db", "the number of a database")?.unwrap_or(0),
            "" => 0,
            text => text
                .parse::<u16>()
                .map_err(|_| url.bad_part(url.path.clone(), "the number of a database, as in `/0`"))?,
        };
        if !by_socket && let Some(db) = url.parameter::<String>("db", "text")? {
            return Err(url
                .bad_part(format!("db={db}"), "of use without a socket: write `/NUMBER` after the host")
                .into());
        }
        let version = env!("CARGO_PKG_VERSION");
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("lockkeeper", version)
            .set_db(i64::from(db));
        if let Some(user) = &url.user {
            login = login.set_username(user);
        }
        let sentinel_tls = url.parameter(SENTINEL_TLS, "`true` or `false`")?.unwrap_or(tls);
        let scheme = if tls || sentinel_tls { &url.scheme } else { "rediss" };
        let files = TlsFiles::of(url, scheme, "of use without TLS: write the scheme with an `s`")?;
        let files = files.map(|files| Tls::of(url, files)).transpose()?;
        let prefix = url.parameter::<String>("prefix", "text")?.unwrap_or_default();
        Ok(Self {
            prefix: prefix.into(),
            fencing: false,
            force: false,
            login,
            password: url.password.clone(),
            tls: files.clone().filter(|_| tls),
            sentinel_login: sentinel_login(url)?,
            sentinel_tls: files.filter(|_| sentinel_tls),
        })
    }

    /// Parses a whole `redis://` or `rediss://` URL.
    pub(super) fn parse(url: &Url) -> Result<(Self, Topology), ConnectError> {
        url.only_parameters(PARAMETERS)?;
        let mut settings = Self::of(url, url.scheme == "rediss")?;
        settings.fencing = match url.parameter::<String>("fencing", "`counter`")?.as_deref() {
            None => false,
            Some("counter") => true,
            Some(other) => return Err(url.bad_part(format!("fencing={other}"), "`fencing=counter`").into()),
        };
        settings.force = url.parameter("force", "`true` or `false`")?.unwrap_or(false);
        if settings.force && !settings.fencing {
            return Err(url.bad_part("force=true", "of use without `fencing=counter`").into());
        }
        let topology = Topology::of(url)?;
        if matches!(topology, Topology::Cluster(_)) && settings.login.db() != 0 {
            return Err(url.bad_part(url.path.clone(), "`/0`, the only database of a cluster").into());
        }
        Ok((settings, topology))
    }

    /// A dialer for one host.
    pub(super) fn dialer(&self, host: &Host) -> Result<Dialer, BackendError> {
        self.dialer_at(RedisAddress::Tcp { host: host.name.clone(), port: host.port.unwrap_or(PORT) })
    }

    /// A dialer for one address, with the present password and TLS files.
    pub(super) fn dialer_at(&self, address: RedisAddress) -> Result<Dialer, BackendError> {
        let login = match &self.password {
            Some(password) => self.login.clone().set_password(password.reveal()),
            None => self.login.clone(),
        };
        Ok(Dialer {
            address,
            login,
            #[cfg(feature = "tls")]
            tls: self.tls.as_ref().map(Tls::present).transpose()?,
        })
    }

    /// Whether sentinels have a login of their own.
    pub(super) fn has_sentinel_login(&self) -> bool {
        self.sentinel_login.is_some()
    }

    /// A dialer for a sentinel. `login`: with the sentinels' login, or else the servers' login; otherwise
    /// without one.
    pub(super) fn sentinel(&self, host: &Host, login: bool) -> Result<Dialer, BackendError> {
        let (login, password) = match (login, &self.sentinel_login) {
            (false, _) => (RedisConnectionInfo::default(), None),
            (true, Some((login, password))) => (login.clone(), Some(password.clone())),
            (true, None) => (self.login.clone().set_db(0), self.password.clone()),
        };
        let host = Host { name: host.name.clone(), port: Some(host.port.unwrap_or(SENTINEL_PORT)) };
        Self { login, password, tls: self.sentinel_tls.clone(), ..self.clone() }.dialer(&host)
    }

    /// Whether connections are encrypted.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }
}

/// The login of sentinels, if the URL has one.
fn sentinel_login(url: &Url) -> Result<Option<(RedisConnectionInfo, Password)>, UrlError> {
    let user = url.parameter::<String>(SENTINEL_USER, "a user")?;
    let Some(password) = url.password_in(SENTINEL_PASSWORD_FILE)? else {
        return match user {
            Some(user) => {
                Err(url
                    .bad_part(format!("{SENTINEL_USER}={user}"), "of use without `sentinel-password-file`"))
            }
            None => Ok(None),
        };
    };
    let login = RedisConnectionInfo::default();
    let login = match user {
        Some(user) => login.set_username(user),
        None => login,
    };
    Ok(Some((login, password)))
}

impl Tls {
    #[cfg(not(feature = "tls"))]
    fn of(url: &Url, _files: TlsFiles) -> Result<Self, ConnectError> {
        Err(UrlError::NotCompiledIn { scheme: url.scheme.clone(), feature: "redis-tls" }.into())
    }

    #[cfg(feature = "tls")]
    #[expect(clippy::unnecessary_wraps, reason = "without TLS it is an error")]
    fn of(_url: &Url, files: TlsFiles) -> Result<Self, ConnectError> {
        Ok(Self { files: Arc::new(Rotated::new(files)) })
    }

    #[cfg(feature = "tls")]
    fn present(&self) -> Result<Arc<rustls::ClientConfig>, BackendError> {
        let read = |files: &TlsFiles| {
            let new = files.read_again()?;
            new.client_config().map(|_| new)
        };
        self.files.latest("files of TLS", read).client_config().map(Arc::new)
    }
}

impl Topology {
    fn of(url: &Url) -> Result<Self, UrlError> {
        let sentinel = url.parameter::<String>("sentinel", "the primary's name")?;
        let cluster = url.parameter::<bool>("cluster", "`true` or `false`")?.unwrap_or(false);
        let of_sentinel = [SENTINEL_PASSWORD_FILE, SENTINEL_TLS, SENTINEL_USER];
        for key in of_sentinel.iter().filter(|_| sentinel.is_none()) {
            if let Some(value) = url.parameter::<String>(key, "text")? {
                return Err(url.bad_part(format!("{key}={value}"), "of use without `sentinel=NAME`"));
            }
        }
        if url.scheme == SOCKET {
            return match (sentinel.is_none() && !cluster && url.hosts.is_empty(), url.path.len()) {
                (true, 2..) => Ok(Self::Socket(PathBuf::from(&url.path))),
                _ => Err(url.bad_part(
                    url.path.clone(),
                    "the path of one server's socket: `redis+unix:///run/redis.sock`",
                )),
            };
        }
        let Some(first) = url.hosts.first().cloned() else {
            return Err(url.bad_part("", "a host: write `redis://127.0.0.1:6379`"));
        };
        match (sentinel, cluster) {
            (Some(_), true) => {
                Err(url.bad_part("sentinel", "possible in a cluster, which needs no sentinels"))
            }
            (Some(primary), false) => Ok(Self::Sentinel { sentinels: url.hosts.clone(), primary }),
            (None, true) => Ok(Self::Cluster(url.hosts.clone())),
            (None, false) if url.hosts.len() == 1 => Ok(Self::Single(first)),
            (None, false) => Err(url.bad_part(
                url.hosts.iter().map(|host| host.address(PORT)).collect::<Vec<_>>().join(","),
                "one server; for several add `?sentinel=NAME` or `?cluster=true`, or use `redlock://`",
            )),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[Host], port: u16| {
            hosts.iter().map(|host| host.address(port)).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Single(host) | Self::Member(host) => write!(f, "Redis at {}", host.address(PORT)),
            Self::Socket(path) => write!(f, "Redis at {}", path.display()),
            Self::Sentinel { sentinels, primary } => {
                write!(
                    f,
                    "the Redis primary `{primary}` of the sentinels at {}",
                    list(sentinels, SENTINEL_PORT)
                )
            }
            Self::Cluster(hosts) => write!(f, "the Redis cluster at {}", list(hosts, PORT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Settings, Topology), ConnectError> {
        Settings::parse(&Url::parse(text, &["redis"]).unwrap())
    }

    #[test]
    fn a_url_is_parsed_into_settings_and_topology() {
        let (settings, topology) =
            parse("redis://me:secret@[::1]/3?prefix=app:&fencing=counter&force=true").unwrap();
        assert_eq!((&*settings.prefix, settings.fencing, settings.force), ("app:", true, true));
        assert_eq!(topology.to_string(), "Redis at [::1]:6379");
        assert_eq!((settings.login.db(), settings.login.username()), (3, Some("me")));
        assert_eq!(settings.password.as_ref().map(Password::reveal).as_deref(), Some("secret"));
        assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        let (settings, topology) = parse("redis+unix://:secret@/run/redis.sock?db=2").unwrap();
        assert_eq!((topology.to_string().as_str(), settings.login.db()), ("Redis at /run/redis.sock", 2));
        let (_, topology) = parse("redis://a:1,b?sentinel=main").unwrap();
        assert_eq!(topology.to_string(), "the Redis primary `main` of the sentinels at a:1, b:26379");
        assert!(
            matches!(parse("redis://a,b?cluster=true").unwrap().1, Topology::Cluster(hosts) if hosts.len() == 2)
        );
    }

    #[test]
    fn errors_quote_the_bad_part_and_name_a_remedy() {
        for (text, quoted) in [
            ("redis:", "redis://127.0.0.1:6379"),
            ("redis://a/x", "the number of a database"),
            ("redis://a,b", "redlock://"),
            ("redis://a,b?cluster=true&sentinel=m", "needs no sentinels"),
            ("redis://a/1?cluster=true", "the only database of a cluster"),
            ("redis://a?fencing=yes", "fencing=counter"),
            ("redis://a?force=true", "fencing=counter"),
            ("redis://a?tls-ca=/x", "without TLS"),
            ("redis://a?sentinel-tls=false", "sentinel=NAME"),
            ("redis://a?sentinel=m&sentinel-user=me", "sentinel-password-file"),
            ("redis://a?sentinel=m&sentinel-password-file=/no/such", "/no/such"),
            ("redis://a?db=1", "`/NUMBER`"),
            ("redis+unix://a/x", "redis+unix:///run"),
            ("redis://a?prefx=a", "did you mean `prefix`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(quoted), "{text}: {error}");
        }
    }
}
