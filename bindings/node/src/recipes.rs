//! Elections and partitions.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper::{Fenced, Leader, Unfenced};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use serde_json::json;
use tokio::sync::Mutex;

use crate::bridge::{Bridge, CallAnswer, within};
use crate::errors::{NativeError, throw};
use crate::holds::AnyHold;
use crate::locks::{Kinds, NativeLocks, with};
use crate::options::{LockOptions, OptionsOf, milliseconds};

type AnyMember = Kinds<lockkeeper::PartitionMember<Unfenced>, lockkeeper::PartitionMember<Fenced>>;

/// The leaders of an election.
#[napi(js_name = "LeaderWatch")]
pub struct Leaders(Arc<Mutex<lockkeeper::LeaderWatch>>);

/// A member of a group that divides partitions.
#[napi(js_name = "PartitionMember")]
pub struct NativeMember(Arc<Mutex<Option<AnyMember>>>);

impl Drop for NativeMember {
    fn drop(&mut self) {
        // Else a call has it, and drops it in the runtime.
        if let Ok(mut member) = self.0.try_lock() {
            within(|| drop(member.take()));
        }
    }
}

fn shown(leader: Option<Leader>) -> CallAnswer {
    leader.map_or(CallAnswer::Null, |leader| {
        let Leader { token, label, value, .. } = leader;
        let token = token.map(lockkeeper::Token::get);
        CallAnswer::Json(json!({ "token": token, "label": label, "value": STANDARD.encode(value) }))
    })
}

#[napi]
impl Bridge {
    /// Waits until this client leads.
    #[napi]
    pub fn campaign(
        &self,
        call: u32,
        locks: &NativeLocks,
        name: String,
        value: Uint8Array,
        options: OptionsOf,
    ) -> napi::Result<()> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        let (locks, value) = (locks.0.clone(), value.to_vec());
        self.begin_hold(call, async move {
            Ok(Some(match locks {
                Kinds::Plain(locks) => {
                    let election = locks.election(name).with(|lock| options.on(lock));
                    AnyHold::Plain(election.campaign(value).await?)
                }
                Kinds::Fenced(locks) => {
                    let election = locks.election(name).with(|lock| options.on(lock));
                    AnyHold::Fenced(election.campaign(value).await?)
                }
            }))
        });
        Ok(())
    }

    /// The leader now.
    #[napi]
    pub fn leader(&self, call: u32, locks: &NativeLocks, name: String) {
        let locks = locks.0.clone();
        self.begin(call, async move {
            let leader = with!(locks, locks => locks.election(name).leader().await);
            Ok(shown(leader?))
        });
    }

    /// The leaders, one after another.
    #[napi]
    pub fn observe(&self, locks: &NativeLocks, name: String) -> Leaders {
        let watch = within(|| with!(&locks.0, locks => locks.election(name).observe()));
        Leaders(Arc::new(Mutex::new(watch)))
    }

    /// Waits for the next leader, or for there to be none.
    #[napi]
    pub fn next_leader(&self, call: u32, leaders: &Leaders) {
        let watch = leaders.0.clone();
        self.begin(call, async move { Ok(shown(watch.lock().await.next().await?)) });
    }

    /// Joins a group that divides partitions.
    #[napi]
    pub fn join(
        &self,
        call: u32,
        locks: &NativeLocks,
        name: String,
        count: u32,
        options: OptionsOf,
    ) -> napi::Result<()> {
        let options = LockOptions::try_from(options).map_err(throw)?;
        let locks = locks.0.clone();
        self.begin(call, async move {
            let member = match locks {
                Kinds::Plain(locks) => {
                    let group = locks.partitions(name, count).with(move |lock| options.on(lock));
                    Kinds::Plain(group.join().await?)
                }
                Kinds::Fenced(locks) => {
                    let group = locks.partitions(name, count).with(move |lock| options.on(lock));
                    Kinds::Fenced(group.join().await?)
                }
            };
            Ok(CallAnswer::object(NativeMember(Arc::new(Mutex::new(Some(member))))))
        });
        Ok(())
    }

    /// Waits until one more partition is this member's; `null` if there was none within `limit` milliseconds.
    #[napi]
    pub fn next_partition(&self, call: u32, member: &NativeMember, limit: Option<f64>) -> napi::Result<()> {
        let limit = limit.map(|limit| milliseconds("timeout", limit)).transpose().map_err(throw)?;
        let member = member.0.clone();
        self.begin_hold(call, async move {
            let mut member = member.lock().await;
            let member = member.as_mut().ok_or(NativeError::Released)?;
            let next = async {
                Ok::<_, NativeError>(match member {
                    Kinds::Plain(member) => AnyHold::PlainPartition(member.next().await?),
                    Kinds::Fenced(member) => AnyHold::FencedPartition(member.next().await?),
                })
            };
            match limit {
                None => next.await.map(Some),
                Some(limit) => tokio::time::timeout(limit, next).await.ok().transpose(),
            }
        });
        Ok(())
    }

    /// Leaves the group: others get its partitions.
    #[napi]
    pub fn leave(&self, call: u32, member: &NativeMember) {
        let member = member.0.clone();
        self.begin(call, async move {
            let member = member.lock().await.take().ok_or(NativeError::Released)?;
            with!(member, member => member.leave().await)?;
            Ok(CallAnswer::Nothing)
        });
    }
}
