//! A hold and a waiter behind it that must survive every fault of a test.

use lockkeeper::{AcquireError, Fenced, Guard, LockName, Locks, Wait};
use tokio::task::JoinHandle;

use crate::faults::server::{LONG, answer, within};

const NAME: &str = "kept";

pub(crate) struct Kept {
    held: Guard<Fenced>,
    waiting: JoinHandle<Result<Guard<Fenced>, AcquireError>>,
    holder: Locks<Fenced>,
    watcher: Locks<Fenced>,
}

impl Kept {
    /// `holder` holds the lock, `waiter` waits for it, and `watcher` inspects it.
    pub(crate) async fn begin(
        holder: &Locks<Fenced>,
        waiter: &Locks<Fenced>,
        watcher: &Locks<Fenced>,
    ) -> Self {
        let held = holder.mutex(NAME).ttl(LONG).acquire().await.unwrap();
        let lock = waiter.mutex(NAME).ttl(LONG);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let kept = Self { held, waiting, holder: holder.clone(), watcher: watcher.clone() };
        kept.is_kept("at the beginning").await;
        kept
    }

    /// Asserts that the hold and the waiter are unchanged.
    pub(crate) async fn is_kept(&self, when: &str) {
        let name: LockName = NAME.parse().unwrap();
        let holders = answer("the waiter is in the queue", async || {
            let info = self.watcher.inspect(&name).await.ok().filter(|info| info.waiter_count == 1)?;
            Some(info.holds.iter().map(|holder| holder.token).collect::<Vec<_>>())
        })
        .await;
        assert_eq!(holders, [Some(self.held.token())], "{when}");
        assert_eq!(self.held.loss(), None, "{when}");
    }

    /// Asserts that the hold is still valid, and releases it. Asserts that the lock then passes to the waiter
    /// and to no other client.
    pub(crate) async fn end(self) {
        let token = self.held.token();
        within("the service confirms the hold", self.held.verify()).await.unwrap();
        within("the hold is given back", self.held.release()).await.unwrap();
        let next = within("the waiter has its turn", self.waiting).await.unwrap().unwrap();
        assert!(next.token() > token, "{} after {token}", next.token());
        let free = self.holder.mutex(NAME).ttl(LONG).wait(Wait::No).acquire().await;
        assert!(free.is_err(), "the waiter's hold excludes");
        within("the hold is given back", next.release()).await.unwrap();
    }
}
