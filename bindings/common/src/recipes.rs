//! Elections and partitions.

use std::time::Duration;

use lockkeeper::{Fenced, Leader, LeaderWatch, PartitionMember, Unfenced};

use crate::errors::CallError;
use crate::holds::AnyHold;
use crate::locks::{AnyLocks, Kinds};
use crate::options::LockOptions;
use crate::with;

/// A member of a group that divides partitions.
pub type AnyMember = Kinds<PartitionMember<Unfenced>, PartitionMember<Fenced>>;

impl AnyLocks {
    /// Waits until this client leads.
    ///
    /// # Errors
    /// As `Election::campaign`.
    pub async fn campaign(
        &self,
        name: String,
        value: Vec<u8>,
        options: &LockOptions,
    ) -> Result<AnyHold, CallError> {
        Ok(match self {
            Self::Plain(locks) => {
                let election = locks.election(name).with(|lock| options.on(lock));
                AnyHold::Plain(election.campaign(value).await?)
            }
            Self::Fenced(locks) => {
                let election = locks.election(name).with(|lock| options.on(lock));
                AnyHold::Fenced(election.campaign(value).await?)
            }
        })
    }

    /// The leader now.
    ///
    /// # Errors
    /// As `Election::leader`.
    pub async fn leader(&self, name: String) -> Result<Option<Leader>, CallError> {
        Ok(with!(self, locks => locks.election(name).leader().await)?)
    }

    /// The leaders, one after another.
    pub fn observe(&self, name: &str) -> LeaderWatch {
        with!(self, locks => locks.election(name).observe())
    }

    /// Joins a group that divides `count` partitions.
    ///
    /// # Errors
    /// As `Partitions::join`.
    pub async fn join(self, name: String, count: u32, options: LockOptions) -> Result<AnyMember, CallError> {
        Ok(match self {
            Self::Plain(locks) => {
                let group = locks.partitions(name, count).with(move |lock| options.on(lock));
                Kinds::Plain(group.join().await?)
            }
            Self::Fenced(locks) => {
                let group = locks.partitions(name, count).with(move |lock| options.on(lock));
                Kinds::Fenced(group.join().await?)
            }
        })
    }
}

impl AnyMember {
    /// Waits until one more partition is this member's; `None` if there was none within `limit`.
    ///
    /// # Errors
    /// As `PartitionMember::next`.
    pub async fn next(&mut self, limit: Option<Duration>) -> Result<Option<AnyHold>, CallError> {
        let next = async {
            Ok::<_, CallError>(match self {
                Self::Plain(member) => AnyHold::PlainPartition(member.next().await?),
                Self::Fenced(member) => AnyHold::FencedPartition(member.next().await?),
            })
        };
        match limit {
            None => next.await.map(Some),
            Some(limit) => tokio::time::timeout(limit, next).await.ok().transpose(),
        }
    }

    /// Leaves the group: others get its partitions.
    ///
    /// # Errors
    /// As `PartitionMember::leave`.
    pub async fn leave(self) -> Result<(), CallError> {
        Ok(with!(self, member => member.leave().await)?)
    }
}
