//! Finds the server to connect to: the URL's host, or the primary that the sentinels name.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind, ConnectError, Host};
use redis::{ErrorKind, RedisError, RedisResult};
use tokio::task::JoinSet;

use super::dial::{Dialer, RedisAddress, without_time_limit};
use super::settings::{SENTINEL_PORT, Settings, Topology};

/// Time limit for the answers of all sentinels.
const SENTINEL_LIMIT: Duration = Duration::from_secs(1);

/// The destination of a link.
pub(super) struct Target {
    settings: Settings,
    topology: Topology,
}

/// A primary, as one sentinel names it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named {
    primary: Host,
    /// Rises with every fail-over.
    epoch: u64,
}

impl Target {
    pub(super) fn new(settings: Settings, topology: Topology) -> Self {
        Self { settings, topology }
    }

    /// Resolves the target, with sentinels by asking them, and returns a dialer for the server.
    pub(super) async fn dialer(&self) -> Result<Dialer, ConnectError> {
        match &self.topology {
            Topology::Single(host) | Topology::Member(host) => Ok(self.settings.dialer(host)?),
            Topology::Socket(path) => Ok(self.settings.dialer_at(RedisAddress::Socket(path.clone()))?),
            Topology::Sentinel { sentinels, primary } => {
                Ok(self.settings.dialer(&self.primary(sentinels, primary).await?)?)
            }
            // Not reached: each node of a cluster has a target of its own.
            Topology::Cluster(nodes) => Ok(self.settings.dialer(&nodes[0])?),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the server may be a replica.
    pub(super) fn may_be_replica(&self) -> bool {
        matches!(self.topology, Topology::Member(_))
    }

    /// Whether the next call of [`Self::dialer`] may return another server.
    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.topology, Topology::Sentinel { .. })
    }

    /// Queries all sentinels and returns the primary with the highest epoch, even if it can't be reached:
    /// during a fail-over, or while it is cut off, a sentinel still names the former primary.
    async fn primary(&self, sentinels: &[Host], name: &str) -> Result<Host, ConnectError> {
        let mut asking = JoinSet::new();
        for sentinel in sentinels {
            let (settings, sentinel, name) = (self.settings.clone(), sentinel.clone(), name.to_owned());
            asking.spawn(async move {
                let answer = tokio::time::timeout(SENTINEL_LIMIT, ask(&settings, &sentinel, &name)).await;
                let trouble = match answer {
                    Ok(Ok(Some(named))) => return Ok(named),
                    Ok(Ok(None)) => format!("knows no primary `{name}`"),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no answer within {SENTINEL_LIMIT:?}"),
                };
                Err(format!("{}: {trouble}", sentinel.address(SENTINEL_PORT)))
            });
        }
        let (mut named, mut troubles) = (Vec::new(), Vec::new());
        while let Some(answer) = asking.join_next().await {
            match answer {
                Ok(Ok(answer)) => named.push(answer),
                Ok(Err(trouble)) => troubles.push(trouble),
                Err(error) => troubles.push(error.to_string()),
            }
        }
        newest(named).ok_or_else(|| {
            let what = format!("{self} is not to be found: {}", troubles.join("; "));
            BackendError::new(BackendErrorKind::Unreachable, what).into()
        })
    }
}

fn newest(named: Vec<Named>) -> Option<Host> {
    named.into_iter().max_by_key(|named| named.epoch).map(|named| named.primary)
}

/// Sentinels often have no password. So without a separate login for sentinels, the first attempt has no
/// login, and the second one the login of the server.
async fn ask(settings: &Settings, sentinel: &Host, name: &str) -> RedisResult<Option<Named>> {
    if !settings.has_sentinel_login() {
        match ask_as(settings, sentinel, name, false).await {
            // The server requires a login.
            Err(error) if error.code() == Some("NOAUTH") => {}
            answer => return answer,
        }
    }
    ask_as(settings, sentinel, name, true).await
}

async fn ask_as(settings: &Settings, sentinel: &Host, name: &str, login: bool) -> RedisResult<Option<Named>> {
    let dialer = settings.sentinel(sentinel, login).map_err(|error| {
        RedisError::from((ErrorKind::InvalidClientConfig, "no sentinel's address", error.to_string()))
    })?;
    let mut connection = dialer.connect(without_time_limit()).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("MASTER").arg(name);
    match ask.query_async::<BTreeMap<String, String>>(&mut connection.calls).await {
        Ok(fields) => Ok(read(&fields)),
        Err(error) if error.detail().is_some_and(|detail| detail.contains("No such master")) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the answer to `SENTINEL MASTER`.
fn read(fields: &BTreeMap<String, String>) -> Option<Named> {
    let primary = Host { name: fields.get("ip")?.clone(), port: Some(fields.get("port")?.parse().ok()?) };
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Some(Named { primary, epoch })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.topology.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primary_of_the_newest_epoch_is_used_whoever_answers_first() {
        let named = |port: &str, epoch: &str| {
            let fields = [("ip", "10.0.0.1"), ("port", port), ("config-epoch", epoch)];
            read(&fields.map(|(key, value)| (key.to_owned(), value.to_owned())).into()).unwrap()
        };
        let chosen = newest(vec![named("1", "3"), named("2", "11"), named("1", "3")]).unwrap();
        assert_eq!(chosen.port, Some(2));
        assert_eq!(newest(Vec::new()), None);
    }
}
