//! Finds the server to connect to: the URL's host, or the primary that the sentinels name.

use std::fmt;
use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult};

use super::refusal;
use super::settings::{PORT, Settings, Topology};
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::url::Host;

/// Time limit for one sentinel; after it, the next one is queried.
const SENTINEL_LIMIT: Duration = Duration::from_secs(1);

/// The destination of a link.
pub(super) struct Target {
    settings: Settings,
    topology: Topology,
}

impl Target {
    pub(super) fn new(settings: Settings, topology: Topology) -> Self {
        Self { settings, topology }
    }

    /// A client for the present server.
    pub(super) async fn client(&self) -> Result<redis::Client, ConnectError> {
        match &self.topology {
            Topology::Single(host) => self.settings.client(host),
            Topology::Sentinel { sentinels, primary } => {
                self.settings.client(&self.primary(sentinels, primary).await?)
            }
            // Not reached: each node of a cluster has a target of its own.
            Topology::Cluster(nodes) => self.settings.client(&nodes[0]),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Queries the sentinels one after the other. After a fail-over some may still name the former primary. It is
    /// detected by its `READONLY` errors, and the sentinels are queried again.
    async fn primary(&self, sentinels: &[Host], name: &str) -> Result<Host, ConnectError> {
        let mut troubles = Vec::new();
        for sentinel in sentinels {
            match self.ask(sentinel, name).await {
                Ok(Some((name, port))) => return Ok(Host { name, port: Some(port) }),
                Ok(None) => {
                    troubles.push(format!("{} knows no primary of that name", sentinel.address(PORT)))
                }
                Err(error) => troubles.push(format!("{}: {error}", sentinel.address(PORT))),
            }
        }
        let what = format!("{self} is not to be found: {}", troubles.join("; "));
        Err(BackendError::new(BackendErrorKind::Unreachable, what).into())
    }

    /// Sentinels often have no password: the first attempt is without one.
    async fn ask(&self, sentinel: &Host, name: &str) -> RedisResult<Option<(String, u16)>> {
        let without = self.ask_as(sentinel, name, false).await;
        match without {
            Err(error) if refusal::wants_login(&error) => self.ask_as(sentinel, name, true).await,
            answer => answer,
        }
    }

    async fn ask_as(&self, sentinel: &Host, name: &str, login: bool) -> RedisResult<Option<(String, u16)>> {
        let client = self.settings.sentinel(sentinel, login).map_err(|error| {
            RedisError::from((ErrorKind::InvalidClientConfig, "no sentinel's address", error.to_string()))
        })?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(SENTINEL_LIMIT))
            .set_response_timeout(Some(SENTINEL_LIMIT));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        ask.query_async(&mut connection).await
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.topology.fmt(f)
    }
}
