//! Settings from a URL: servers, login, and where locks are stored.

use std::time::Duration;

use super::layout::{NodeLayout, Recipe};
use crate::error::ConnectError;
use crate::url::{Host, Url};

/// The default port of ZooKeeper's clients.
const PORT: u16 = 2181;
/// The parameters of `zookeeper://`.
const PARAMETERS: &[&str] = &["layout", "recipe", "tick_ms"];

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `host:port` of each server; at least one.
    pub(super) servers: Vec<String>,
    pub(super) login: Option<Login>,
    pub(super) layout: NodeLayout,
    /// The servers' `tickTime`, if given.
    pub(super) tick: Option<Duration>,
}

/// User and password of the scheme `digest`. Debug output hides the password.
#[derive(Clone)]
pub(super) struct Login {
    user: String,
    password: String,
}

impl Login {
    /// As ZooKeeper's scheme `digest` expects it.
    pub(super) fn digest(&self) -> Vec<u8> {
        format!("{}:{}", self.user, self.password).into_bytes()
    }
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(PARAMETERS)?;
        if url.hosts.is_empty() {
            return Err(url
                .bad_part("", "a list of servers, as in `zookeeper://10.0.0.1:2181,10.0.0.2`")
                .into());
        }
        let login = match (&url.user, &url.password) {
            (Some(user), Some(password)) => {
                Some(Login { user: user.clone(), password: password.reveal().to_owned() })
            }
            (None, None) => None,
            _ => {
                return Err(url
                    .bad_part("", "a login: give both, as in `zookeeper://user:password@host`")
                    .into());
            }
        };
        let root = url.path.trim_end_matches('/');
        if root.split('/').skip(1).any(|node| matches!(node, "" | "." | "..")) {
            return Err(url.bad_part(url.path.clone(), "a path of ZooKeeper, as `/locks/shop`").into());
        }
        let recipe = match url.parameter::<String>("recipe", "`mutex` or `readwrite`")?.as_deref() {
            None | Some("mutex") => Recipe::Mutex,
            Some("readwrite") => Recipe::ReadWrite,
            Some(other) => {
                return Err(url
                    .bad_part(format!("recipe={other}"), "`recipe=mutex` or `recipe=readwrite`")
                    .into());
            }
        };
        let layout = match url.parameter::<String>("layout", "`plain`")?.as_deref() {
            None => NodeLayout::encoded(root, recipe),
            Some("plain") => NodeLayout::plain(root, recipe),
            Some(other) => return Err(url.bad_part(format!("layout={other}"), "`layout=plain`").into()),
        };
        let tick = url.parameter::<u64>("tick_ms", "a number of milliseconds")?.map(Duration::from_millis);
        if tick.is_some_and(|tick| tick.is_zero() || tick > Duration::from_secs(60)) {
            return Err(url.bad_part("tick_ms", "between 1 and 60000 milliseconds").into());
        }
        Ok(Self { servers: url.hosts.iter().map(server).collect(), login, layout, tick })
    }
}

fn server(host: &Host) -> String {
    let port = host.port.unwrap_or(PORT);
    match host.name.contains(':') {
        true => format!("[{}]:{port}", host.name),
        false => format!("{}:{port}", host.name),
    }
}
