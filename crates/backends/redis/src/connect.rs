//! Connections to the server of a URL, for fences and other users of this crate.

use std::time::Duration;

use lockkeeper_backend::{ConnectError, Url};
use redis::AsyncConnectionConfig;

use super::dial::RedisConnection;
use super::refusal;
use super::settings::{Settings, Topology};
use super::target::Target;

impl RedisConnection {
    /// Connects to the server of a URL as in `docs/backends/redis.md`, or to the primary that its sentinels
    /// name; over RESP2. `limit`: for connecting, and for each reply.
    ///
    /// # Errors
    /// The URL is invalid, or names a cluster; the server can't be reached, or refuses the login.
    pub async fn connect(url: &Url, limit: Duration) -> Result<Self, ConnectError> {
        let mut url = url.clone();
        if !["redis", "rediss", "redis+unix"].contains(&url.scheme.as_str()) {
            return Err(url.bad_part(url.scheme.clone(), "`redis`, `rediss` or `redis+unix`").into());
        }
        url.find_password()?;
        let (settings, topology) = Settings::parse(&url)?;
        if matches!(topology, Topology::Cluster(_)) {
            return Err(url
                .bad_part("cluster=true", "of use here: this is a connection to one server")
                .into());
        }
        let target = Target::new(settings, topology);
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(limit));
        let connecting = async {
            let opened = target.dialer().await?.with_resp2().connect(config).await;
            opened.map_err(|error| refusal::of_connecting(&error, &target).into())
        };
        let connected = tokio::time::timeout(limit, connecting).await;
        connected.unwrap_or_else(|_| Err(refusal::connecting_took_too_long(&target, limit).into()))
    }
}
