//! Elections and partitions.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Fenced, Leader, LeaderWatch, PartitionMember, Unfenced};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::errors::CallError;
use crate::holds::{AnyHold, in_background};
use crate::locks::{AnyLocks, Kinds};
use crate::options::LockOptions;
use crate::with;

type AnyMember = Kinds<PartitionMember<Unfenced>, PartitionMember<Fenced>>;

/// A member of a group that divides partitions, until one of the calls on it leaves: that ends the others.
#[derive(Clone, Debug)]
pub struct SharedMember {
    member: Arc<Mutex<Option<AnyMember>>>,
    left: CancellationToken,
}

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
    pub async fn join(
        self,
        name: String,
        count: u32,
        options: LockOptions,
    ) -> Result<SharedMember, CallError> {
        let member = match self {
            Self::Plain(locks) => {
                let group = locks.partitions(name, count).with(move |lock| options.on(lock));
                Kinds::Plain(group.join().await?)
            }
            Self::Fenced(locks) => {
                let group = locks.partitions(name, count).with(move |lock| options.on(lock));
                Kinds::Fenced(group.join().await?)
            }
        };
        Ok(SharedMember { member: Arc::new(Mutex::new(Some(member))), left: CancellationToken::new() })
    }
}

impl SharedMember {
    /// Waits until one more partition is this member's; `None` if there was none within `limit`.
    ///
    /// # Errors
    /// As `PartitionMember::next`, or the member has left.
    pub async fn next(&self, limit: Option<Duration>) -> Result<Option<AnyHold>, CallError> {
        let next = async {
            let mut member = self.member.lock().await;
            Ok::<_, CallError>(match member.as_mut().ok_or(CallError::Left)? {
                Kinds::Plain(member) => AnyHold::PlainPartition(member.next().await?),
                Kinds::Fenced(member) => AnyHold::FencedPartition(member.next().await?),
            })
        };
        let next = async {
            match limit {
                None => next.await.map(Some),
                Some(limit) => tokio::time::timeout(limit, next).await.ok().transpose(),
            }
        };
        tokio::select! {
            biased;
            () = self.left.cancelled() => Err(CallError::Left),
            next = next => next,
        }
    }

    /// Leaves the group: others get its partitions. It begins at once, and goes on in the background if the
    /// future is dropped. To be called in the runtime.
    ///
    /// # Errors
    /// As `PartitionMember::leave`, or the member has left.
    pub fn leave(&self) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        self.left.cancel();
        let shared = self.member.clone();
        in_background(async move {
            let member = shared.lock().await.take().ok_or(CallError::Left)?;
            Ok(with!(member, member => member.leave().await)?)
        })
    }

    /// Leaves the group in the background, unless a call on it is in progress.
    pub fn abandon(&self) {
        if let Ok(mut member) = self.member.try_lock() {
            member.take();
        }
    }
}
