//! A Redis key, guarded by the Redis fence.

use lockkeeper::backends::RedisConnection;
use lockkeeper::url::Url;
use lockkeeper_fence::Section;
use lockkeeper_fence::redis::{RedisCommand, RedisFenceError};
use redis::AsyncCommands;

use super::LedgerError;
use crate::commands::fence::redis::{Fence, connect};
use crate::exit::{Failure, UNAVAILABLE, chain};

pub(in super::super) struct RedisLedger {
    url: Url,
    key: String,
    /// `None` after a failure: the next operation reconnects.
    link: Option<(RedisConnection, Fence)>,
}

impl RedisLedger {
    pub(super) async fn open(url: &Url, name: &str) -> Result<Self, Failure> {
        Ok(Self { url: url.clone(), key: name.to_owned(), link: Some(connect(url).await?) })
    }

    pub(super) async fn create(&mut self) -> Result<(), Failure> {
        self.write(None, "").await.map_err(|trouble| self.failed("cannot make", trouble))
    }

    pub(super) async fn enter(&mut self, section: Section) -> Result<(), LedgerError> {
        let (_, fence) = self.link().await?;
        let entered = fence.enter(&self.key, section).await;
        self.told(entered)
    }

    pub(super) async fn read(&mut self) -> Result<String, LedgerError> {
        let (mut connection, _) = self.link().await?;
        let ledger: Result<Option<String>, _> = connection.get(&self.key).await;
        match self.told(ledger)? {
            Some(ledger) => Ok(ledger),
            None => Err(LedgerError::Failed(format!("the key `{}` is gone", self.key))),
        }
    }

    pub(super) async fn write(&mut self, section: Option<Section>, ledger: &str) -> Result<(), LedgerError> {
        let (mut connection, fence) = self.link().await?;
        match section {
            Some(section) => {
                let set = RedisCommand::new("SET").key(&self.key).arg(ledger);
                let written = fence.write(&self.key, section, &[set]).await;
                self.told(written).map(drop)
            }
            None => {
                let written = connection.set::<_, _, ()>(&self.key, ledger).await;
                self.told(written)
            }
        }
    }

    pub(super) fn location(&self) -> String {
        format!("the key {}", self.key)
    }

    pub(super) async fn remove(&mut self) -> Result<(), Failure> {
        // The key of the marks. The name is generated here and has no braces, so no escaping is needed.
        let marks = format!("{{{}}}:lockkeeper:fence", self.key);
        let removed = match self.link().await {
            Ok((mut connection, _)) => {
                let removed = connection.del::<_, ()>(&self.key).await;
                let removed = match removed {
                    Ok(()) => connection.del::<_, ()>(&marks).await,
                    failed => failed,
                };
                self.told(removed)
            }
            Err(trouble) => Err(trouble),
        };
        removed.map_err(|trouble| self.failed("cannot remove", trouble))
    }

    async fn link(&mut self) -> Result<(RedisConnection, Fence), LedgerError> {
        if let Some(link) = &self.link {
            return Ok(link.clone());
        }
        let link = connect(&self.url).await.map_err(|failure| LedgerError::Failed(failure.message))?;
        self.link = Some(link.clone());
        Ok(link)
    }

    /// Drops the connection after an error that is no refusal by the fence.
    fn told<T, E: Into<LedgerError>>(&mut self, result: Result<T, E>) -> Result<T, LedgerError> {
        let result = result.map_err(Into::into);
        if let Err(LedgerError::Failed(_)) = result {
            self.link = None;
        }
        result
    }

    fn failed(&self, doing: &str, trouble: LedgerError) -> Failure {
        Failure::new(UNAVAILABLE, format!("{doing} the key `{}`: {}", self.key, trouble.why()))
    }
}

impl From<redis::RedisError> for LedgerError {
    fn from(error: redis::RedisError) -> Self {
        Self::Failed(chain(&error))
    }
}

impl From<RedisFenceError> for LedgerError {
    fn from(error: RedisFenceError) -> Self {
        match error {
            RedisFenceError::Refused(refused) => refused.into(),
            other => Self::failed(&other),
        }
    }
}
