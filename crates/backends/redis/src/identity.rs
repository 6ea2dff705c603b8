//! Identity of a server, to check that the servers of a majority are independent of each other.

use lockkeeper_backend::BackendError;

use super::store::RedisStore;

/// Identity and role of the server that answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Random at each start of the server.
    pub run_id: String,
    /// The address of its primary, if it is a replica.
    pub replica_of: Option<String>,
}

impl RedisStore {
    /// Reads the server's identity. Needs the permission for `INFO`.
    pub async fn identity(&self) -> Result<Identity, BackendError> {
        let mut text = self.info("server").await?;
        text.push_str(&self.info("replication").await?);
        let field = |name: &str| {
            let value = |line: &str| Some(line.trim_end().strip_prefix(name)?.strip_prefix(':')?.to_owned());
            text.lines().find_map(value).unwrap_or_default()
        };
        let primary = format!("{}:{}", field("master_host"), field("master_port"));
        let is_replica = matches!(field("role").as_str(), "slave" | "replica");
        Ok(Identity { run_id: field("run_id"), replica_of: is_replica.then_some(primary) })
    }

    async fn info(&self, section: &str) -> Result<String, BackendError> {
        let mut ask = redis::cmd("INFO");
        ask.arg(section);
        let answer = self.ask(ask).await?;
        redis::from_redis_value_ref(&answer).map_err(|_| self.unexpected("INFO", &answer))
    }
}
