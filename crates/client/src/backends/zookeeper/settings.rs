//! Settings from a URL: servers, login, and where locks are stored.

use std::time::Duration;

use super::layout::{NodeLayout, Recipe};
use crate::error::ConnectError;
use crate::url::{Login, Url};

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

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(PARAMETERS)?;
        if url.hosts.is_empty() {
            return Err(url
                .bad_part("", "a list of servers, as in `zookeeper://10.0.0.1:2181,10.0.0.2`")
                .into());
        }
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
        let servers = url.hosts.iter().map(|host| host.address(PORT)).collect();
        Ok(Self { servers, login: url.login()?, layout, tick })
    }
}
