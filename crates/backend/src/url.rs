//! URLs of lock services: `scheme://host:port,host:port/path?key=value`.
//!
//! The parser is our own, because general URL parsers reject a list of hosts. Errors quote the invalid part
//! and suggest the nearest valid one.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use crate::rotated::Rotated;

/// A parsed URL. The backend decides which parts have a meaning.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// Before the first colon.
    pub scheme: String,
    /// Before an `@` in front of the hosts, percent-decoded.
    pub user: Option<String>,
    /// After the user's colon, percent-decoded. `Display` and `Debug` hide it.
    pub password: Option<Password>,
    /// The comma-separated list after `//`.
    pub hosts: Vec<Host>,
    /// From the first `/` after the hosts, percent-decoded. Without `//`: everything after the scheme.
    pub path: String,
    query: BTreeMap<String, String>,
}

/// A password, never printed.
#[derive(Clone)]
pub struct Password(PasswordSource);

#[derive(Clone)]
enum PasswordSource {
    Text(String),
    File { file: Arc<str>, rotated: Arc<Rotated<String>> },
}

impl Password {
    /// A password that is known.
    #[must_use]
    pub fn of(text: String) -> Self {
        Self(PasswordSource::Text(text))
    }

    /// The password in a file; `None` if it can't be read, or has none.
    fn in_file(file: &str) -> Option<Self> {
        let rotated = Arc::new(Rotated::new(password_in(file)?));
        Some(Self(PasswordSource::File { file: file.into(), rotated }))
    }

    /// The password itself, for a new connection to the service: one in a file is read again.
    #[must_use]
    pub fn reveal(&self) -> String {
        match &self.0 {
            PasswordSource::Text(text) => text.clone(),
            PasswordSource::File { file, rotated } => rotated.latest("password", |_| {
                password_in(file).ok_or_else(|| format!("`{file}` can't be read, or has no password"))
            }),
        }
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (PasswordSource::Text(one), PasswordSource::Text(other)) => one == other,
            (PasswordSource::File { file: one, .. }, PasswordSource::File { file: other, .. }) => {
                one == other
            }
            _ => false,
        }
    }
}

impl Eq for Password {}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Printed in place of a password.
const HIDDEN: &str = "***";
/// Parameters that name the source of the password.
const PASSWORD_FILE: &str = "password-file";
const PASSWORD_ENV: &str = "password-env";
/// The largest file with a password that is read, in bytes.
const PASSWORD_BYTES_MAX: usize = 64 << 10;
/// Parameters whose values are secret.
const SECRET: [&str; 2] = ["password", "sslpassword"];

/// One of the hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// A name or an address; an IPv6 address without its brackets.
    pub name: String,
    /// The number after the colon, if present.
    pub port: Option<u16>,
}

impl Host {
    /// `host:port`, with brackets around an IPv6 address.
    #[must_use]
    pub fn address(&self, default_port: u16) -> String {
        Self { name: self.name.clone(), port: Some(self.port.unwrap_or(default_port)) }.to_string()
    }
}

/// As in a URL.
impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.name)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// User and password, both given.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Password,
}

/// Why a text is not the URL of a lock service.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// No `scheme:` in front.
    #[error("`{url}` has no scheme; write `lockkeeper://host:port`, `file:///dir` or another of: {schemes}")]
    NoScheme {
        /// The whole text.
        url: String,
        /// The known schemes.
        schemes: String,
    },
    /// No backend has this scheme.
    #[error("`{scheme}:` is no lock service of this program{hint}; known: {known}")]
    UnknownScheme {
        /// The scheme as given.
        scheme: String,
        /// The most similar scheme, if one is similar.
        hint: String,
        /// All known schemes.
        known: String,
    },
    /// A scheme whose cargo feature is off.
    #[error(
        "`{scheme}:` is not compiled in; build with the feature `{feature}`: `cargo add lockkeeper --features \
         {feature}`; the command: `cargo build --release --features {feature}` in the source tree, or `cargo install \
         lockkeeper-cli --features {feature}`"
    )]
    NotCompiledIn {
        /// The scheme as given.
        scheme: String,
        /// The feature that adds it.
        feature: &'static str,
    },
    /// A parameter that the scheme doesn't have.
    #[error("`{scheme}:` has no parameter `{key}`{hint}; it has: {known}")]
    UnknownParameter {
        /// The scheme.
        scheme: String,
        /// The parameter as given.
        key: String,
        /// The most similar parameter, if one is similar.
        hint: String,
        /// All parameters of the scheme.
        known: String,
    },
    /// A part that cannot be parsed.
    #[error("`{part}` in `{url}` is not {wanted}")]
    BadPart {
        /// The whole text.
        url: String,
        /// The invalid part.
        part: String,
        /// The expected form.
        wanted: &'static str,
    },
}

impl Url {
    /// The value of a parameter, parsed.
    ///
    /// # Errors
    /// [`UrlError::BadPart`] if the value cannot be parsed.
    pub fn parameter<T: FromStr>(&self, key: &str, wanted: &'static str) -> Result<Option<T>, UrlError> {
        let Some(value) = self.query.get(key) else { return Ok(None) };
        let bad = || UrlError::BadPart { url: self.to_string(), part: format!("{key}={value}"), wanted };
        value.parse().map(Some).map_err(|_| bad())
    }

    /// Takes a parameter that is not the lock service's.
    pub fn take_parameter(&mut self, key: &str) -> Option<String> {
        self.query.remove(key)
    }

    /// Whether the text contains a password; not one that is elsewhere, in a file or an environment variable.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.password.is_some() || SECRET.iter().any(|key| self.query.contains_key(*key))
    }

    /// Takes the password from the file or the environment variable that a parameter names, if there is one:
    /// a URL is shown in lists of processes. Not for services without passwords, where these are unknown
    /// parameters as any other.
    ///
    /// # Errors
    /// [`UrlError::BadPart`] if there is another password, or none to be found there.
    pub fn find_password(&mut self) -> Result<(), UrlError> {
        let file = self.query.remove(PASSWORD_FILE);
        let variable = self.query.remove(PASSWORD_ENV);
        let (part, found) = match (file, variable) {
            (None, None) => return Ok(()),
            (Some(file), None) => (format!("{PASSWORD_FILE}={file}"), Password::in_file(&file)),
            (None, Some(variable)) => {
                let text = std::env::var(&variable).ok().and_then(password);
                (format!("{PASSWORD_ENV}={variable}"), text.map(Password::of))
            }
            (Some(_), Some(_)) => {
                return Err(self.bad_part(PASSWORD_ENV, "of use beside `password-file`: give one of them"));
            }
        };
        if self.password.is_some() || self.query.contains_key(SECRET[0]) {
            return Err(self.bad_part(part, "of use in a URL with a password: give one of them"));
        }
        let wanted = "a file that can be read, or a variable that is set, with a password";
        self.password = Some(found.ok_or_else(|| self.bad_part(part, wanted))?);
        Ok(())
    }

    /// The password in the file that a parameter names, if it is given.
    pub fn password_in(&self, key: &str) -> Result<Option<Password>, UrlError> {
        let Some(file) = self.query.get(key) else { return Ok(None) };
        let bad = || self.bad_part(format!("{key}={file}"), "a file that can be read, with a password");
        Password::in_file(file).map(Some).ok_or_else(bad)
    }

    /// Refuses every parameter that is not one of `known`.
    pub fn only_parameters(&self, known: &[&str]) -> Result<(), UrlError> {
        match self.query.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(UrlError::UnknownParameter {
                scheme: self.scheme.clone(),
                key: key.clone(),
                hint: did_you_mean(key, known, ""),
                known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
            }),
        }
    }

    /// The login of a service whose users all have passwords.
    pub fn login(&self) -> Result<Option<Login>, UrlError> {
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => {
                Ok(Some(Login { user: user.clone(), password: password.clone() }))
            }
            (None, None) => Ok(None),
            _ => Err(self.bad_part("", "a login: give both, as in `user:password@host`")),
        }
    }

    /// The error for a part that does not suit the backend.
    pub fn bad_part(&self, part: impl Into<String>, wanted: &'static str) -> UrlError {
        UrlError::BadPart { url: self.to_string(), part: part.into(), wanted }
    }

    /// Parses a URL. `schemes` are the known ones, for the error.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn parse(text: &str, schemes: &[&str]) -> Result<Self, UrlError> {
        let bad = |part: &str, wanted| {
            let url = without_password(text);
            // A part that is missing from the text without password is a piece of the password.
            let part = if url.contains(part) { part } else { HIDDEN };
            UrlError::BadPart { part: part.to_owned(), url, wanted }
        };
        let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
            return Err(UrlError::NoScheme { url: without_password(text), schemes: schemes.join(", ") });
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (hosts, path) = match rest.strip_prefix("//") {
            None => ("", rest),
            // The ARN of a table, whose colons are no ports.
            Some(rest) if rest.starts_with("arn:") => ("", rest),
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        };
        let (login, hosts) =
            hosts.rsplit_once('@').map_or((None, hosts), |(login, hosts)| (Some(login), hosts));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((user, password)) => {
                let wanted = "`user:password@` in percent-encoded UTF-8";
                let part = |text: &str| percent_decode(text).ok_or_else(|| bad(HIDDEN, wanted));
                (Some(part(user)?), Some(part(password)?))
            }
        };
        let given = |text: &String| !text.is_empty();
        let hosts: Result<Vec<Host>, UrlError> = hosts
            .split(',')
            .filter(|_| !hosts.is_empty())
            .map(|host| parse_host(host).ok_or_else(|| bad(host, "a host, `host:port` or `[ipv6]:port`")))
            .collect();
        let mut parameters = BTreeMap::new();
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| bad(pair, "a parameter, `key=value`"))?;
            let value = percent_decode(value).ok_or_else(|| bad(pair, "percent-encoded UTF-8"))?;
            if parameters.insert(key.to_owned(), value).is_some() {
                return Err(bad(pair, "a parameter that is given once"));
            }
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(given),
            password: password.filter(given).map(Password::of),
            hosts: hosts?,
            path: percent_decode(path).ok_or_else(|| bad(path, "percent-encoded UTF-8"))?,
            query: parameters,
        })
    }
}

/// Parses a URL with any scheme, whether or not a backend exists for it.
impl FromStr for Url {
    type Err = UrlError;
    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text, &[])
    }
}

/// As `Display`: a log must not contain the secrets that an error hides.
impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Url({self})")
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() || self.path.starts_with('/') {
            f.write_str("//")?;
        }
        if self.user.is_some() || self.password.is_some() {
            f.write_str(self.user.as_deref().unwrap_or_default())?;
            f.write_str(if self.password.is_some() { ":***@" } else { "@" })?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{host}")?;
        }
        f.write_str(&self.path)?;
        for (index, (key, value)) in self.query.iter().enumerate() {
            // PostgreSQL URLs may carry the password as a parameter.
            let value = if SECRET.contains(&key.as_str()) { HIDDEN } else { value.as_str() };
            write!(f, "{}{key}={value}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// The password in a file of at most [`PASSWORD_BYTES_MAX`] bytes.
fn password_in(file: &str) -> Option<String> {
    let text = read_begin(file, PASSWORD_BYTES_MAX).ok()?;
    Some(text).filter(|text| text.len() <= PASSWORD_BYTES_MAX).and_then(password)
}

/// The text without the line's end; `None` if nothing is left.
fn password(text: String) -> Option<String> {
    let text = text.trim_end_matches(['\r', '\n']);
    (!text.is_empty()).then(|| text.to_owned())
}

/// The begin of a file's text: one byte more than `bytes_max`, so that the caller can recognize a longer
/// file.
pub fn read_begin(file: &str, bytes_max: usize) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(file)?.take(bytes_max as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The text with its passwords hidden, for errors.
fn without_password(text: &str) -> String {
    let mut shown = without_login(text);
    let Some((_, query)) = text.split_once('?') else { return shown };
    for pair in query.split('&') {
        if let Some((key, value)) = pair.split_once('=')
            && SECRET.contains(&key)
            && !value.is_empty()
        {
            shown = shown.replace(pair, &format!("{key}={HIDDEN}"));
        }
    }
    shown
}

fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("//") else { return text.to_owned() };
    // Up to the last `@` at any position: the text may be an invalid URL because its password contains `/` or
    // `?`.
    match rest.rsplit_once('@').and_then(|(login, end)| Some((login.split_once(':')?.0, end))) {
        Some((user, end)) => format!("{scheme}//{user}:{HIDDEN}@{end}"),
        None => text.to_owned(),
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn parse_host(text: &str) -> Option<Host> {
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, port) = rest.split_once(']')?;
        name.parse::<std::net::Ipv6Addr>().ok()?;
        (name, if port.is_empty() { "" } else { port.strip_prefix(':').filter(|port| !port.is_empty())? })
    } else {
        text.split_once(':')
            .map_or((text, ""), |(name, port)| (name, if port.is_empty() { "?" } else { port }))
    };
    let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
    (!name.is_empty()).then(|| Host { name: name.to_owned(), port })
}

/// Decodes `%XX`. `None` if that is malformed, or not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// ` (did you mean …?)`, if one of `known` is similar: it begins with `text`, or `text` begins with it, or
/// the edit distance is at most half of its length.
pub fn did_you_mean(text: &str, known: &[&str], suffix: &str) -> String {
    let begins =
        |candidate: &&&str| text.len() > 1 && (candidate.starts_with(text) || text.starts_with(**candidate));
    let closest = known.iter().min_by_key(|candidate| distance(text, candidate));
    let similar = closest.filter(|candidate| distance(text, candidate) * 2 <= candidate.len());
    match known.iter().find(begins).or(similar) {
        Some(found) => format!(" (did you mean `{found}{suffix}`?)"),
        None => String::new(),
    }
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMES: &[&str] = &["file", "memory", "lockkeeper"];

    fn parse(text: &str) -> Result<Url, UrlError> {
        Url::parse(text, SCHEMES)
    }

    #[test]
    fn a_url_is_split_into_its_parts() {
        let url = parse("lockkeeper://a:5625,[::1]:7,b/path%20x?ttl=5s&x=%2F").unwrap();
        assert_eq!(url.scheme, "lockkeeper");
        let hosts: Vec<_> = url.hosts.iter().map(|host| (host.name.as_str(), host.port)).collect();
        assert_eq!(hosts, [("a", Some(5625)), ("::1", Some(7)), ("b", None)]);
        assert_eq!(url.path, "/path x");
        assert_eq!(url.parameter::<String>("x", "text").unwrap().as_deref(), Some("/"));
        assert!(parse("memory:").unwrap().hosts.is_empty());
        assert_eq!(parse("file:///var/lib/x").unwrap().path, "/var/lib/x");
    }

    #[test]
    fn password_is_found_in_a_file_or_a_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "a:b@c/?\n").unwrap();
        let of = |text: String| {
            let mut url = parse(&text).unwrap();
            url.find_password().map(|()| url)
        };
        let url = of(format!("redis://u@h?password-file={}", file.display())).unwrap();
        assert_eq!(url.password.as_ref().unwrap().reveal(), "a:b@c/?");
        assert_eq!(url.to_string(), "redis://u:***@h");
        assert!(url.only_parameters(&[]).is_ok());
        // A variable that each process has.
        assert_eq!(
            of("redis://h?password-env=PATH".to_owned()).unwrap().password.unwrap().reveal(),
            std::env::var("PATH").unwrap()
        );
        for (text, why) in [
            ("redis://u:p@h?password-env=PATH", "`password-env=PATH`"),
            ("redis://h?password-env=LOCKKEEPER_NOT_SET", "a variable that is set"),
            ("redis://h?password-file=/nowhere/x", "`password-file=/nowhere/x`"),
            ("redis://h?password-file=/x&password-env=Y", "give one of them"),
        ] {
            let error = of(text.to_owned()).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains(":p@"), "{error}");
        }
    }

    #[test]
    fn a_password_is_parsed_and_never_printed() {
        for wrong in [
            "postgres://h/db?password=geheim&x",
            "postgres://h/db?password=geheim&password=geheim",
            "postgres://h/db?sslpassword=gehe%zz",
            "postgres://h:port/db?user=u&password=geheim",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(!error.contains("gehe"), "{error}");
        }
        let url = parse("lockkeeper://me:a%3Ab%40c@h:1,[::1]/x").unwrap();
        assert_eq!(url.user.as_deref(), Some("me"));
        assert_eq!(url.password.as_ref().unwrap().reveal(), "a:b@c");
        assert_eq!(url.hosts.len(), 2);
        let bad = parse("lockkeeper://me:secret@h:99999/x").unwrap_err().to_string();
        let only = parse("lockkeeper://:secret@h").unwrap();
        assert_eq!((only.user, only.password.unwrap().reveal()), (None, "secret".to_owned()));
        let cut = parse("lockkeeper://me:sec/a:b@c@h").unwrap_err().to_string();
        let parameter = parse("lockkeeper://h/db?user=u&password=secret").unwrap();
        for shown in
            [url.to_string(), format!("{url:?}"), bad, cut, parameter.to_string(), format!("{parameter:?}")]
        {
            assert!(
                !shown.contains("a:b@c") && !shown.contains("secret") && shown.contains("***"),
                "{shown}"
            );
        }
    }

    #[test]
    fn errors_quote_the_bad_part() {
        for (text, quoted) in [
            ("lockkeeper://a:99999", "a:99999"),
            ("lockkeeper://a,,b", "``"),
            ("lockkeeper://[::1", "[::1"),
            ("lockkeeper://a:", "a:"),
            ("file:///x?y", "`y`"),
            ("file:///x?y=%zz", "y=%zz"),
            ("file:///x?y=1&y=2", "y=2"),
            ("no-scheme-here", "no-scheme-here"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(quoted), "{text}: {error}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_parameter_suggests_the_nearest_valid_one() {
        let error =
            parse("file:///x?token_above=3").unwrap().only_parameters(&["tokens_above", "mode"]).unwrap_err();
        assert!(error.to_string().contains("did you mean `tokens_above`"), "{error}");
    }
}
