//! Elections and partitions.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper::Leader;
use lockkeeper_bindings::SharedMember;
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use serde_json::json;
use tokio::sync::Mutex;

use crate::bridge::{Bridge, CallAnswer, within};
use crate::errors::throw;
use crate::locks::NativeLocks;
use crate::options::{OptionsOf, milliseconds};

/// The leaders of an election.
#[napi(js_name = "LeaderWatch")]
pub struct Leaders(Arc<Mutex<lockkeeper::LeaderWatch>>);

/// A member of a group that divides partitions.
#[napi(js_name = "PartitionMember")]
pub struct NativeMember(SharedMember);

impl Drop for NativeMember {
    fn drop(&mut self) {
        // A call in progress has a reference of its own, and drops it in the runtime.
        within(|| self.0.abandon());
    }
}

#[napi]
impl NativeMember {
    /// Leaves the group in the background, unless a call on it is in progress.
    #[napi]
    pub fn abandon(&self) {
        within(|| self.0.abandon());
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
        let (options, locks, value) = (options.checked()?, locks.0.clone(), value.to_vec());
        self.begin_hold(call, async move { locks.campaign(name, value, &options).await.map(Some) });
        Ok(())
    }

    /// The leader now.
    #[napi]
    pub fn leader(&self, call: u32, locks: &NativeLocks, name: String) {
        let locks = locks.0.clone();
        self.begin(call, async move { Ok(shown(locks.leader(name).await?)) });
    }

    /// The leaders, one after another.
    #[napi]
    pub fn observe(&self, locks: &NativeLocks, name: String) -> Leaders {
        let watch = within(|| locks.0.observe(&name));
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
        let (options, locks) = (options.checked()?, locks.0.clone());
        self.begin(call, async move {
            let member = locks.join(name, count, options).await?;
            Ok(CallAnswer::object(NativeMember(member)))
        });
        Ok(())
    }

    /// Waits until one more partition is this member's; `null` if there was none within `limit` milliseconds.
    #[napi]
    pub fn next_partition(&self, call: u32, member: &NativeMember, limit: Option<f64>) -> napi::Result<()> {
        let limit = limit.map(|limit| milliseconds("timeout", limit)).transpose().map_err(throw)?;
        let member = member.0.clone();
        self.begin_hold(call, async move { member.next(limit).await });
        Ok(())
    }

    /// Leaves the group: others get its partitions.
    #[napi]
    pub fn leave(&self, call: u32, member: &NativeMember) {
        let member = member.0.clone();
        self.begin(call, async move {
            member.leave().await?;
            Ok(CallAnswer::Nothing)
        });
    }
}
