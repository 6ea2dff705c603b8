//! Questions about locks, and breaks: as JSON, whose shapes are in `lib/index.d.cts`.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper::{BreakOrder, HolderInfo, HolderState, LockInfo, LockName, Token, WaiterInfo};
use lockkeeper_bindings::{with, words};
use napi_derive::napi;
use serde_json::{Map, Value, json};

use crate::bridge::{Bridge, CallAnswer};
use crate::locks::NativeLocks;
use crate::options::token_of;

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970; `None` before that.
fn since_1970(time: SystemTime) -> Option<u64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(milliseconds)
}

fn tokens(live: &[Token]) -> Vec<u64> {
    live.iter().map(|token| token.get()).collect()
}

fn meta(pairs: &[(String, String)]) -> Map<String, Value> {
    pairs.iter().map(|(key, value)| (key.clone(), json!(value))).collect()
}

fn lock(lock: &LockInfo) -> Value {
    json!({
        "name": lock.name.as_str(),
        "holds": lock.holds.iter().map(hold).collect::<Vec<_>>(),
        "holdCount": lock.hold_count,
        "waiters": lock.waiters.iter().map(waiter).collect::<Vec<_>>(),
        "waiterCount": lock.waiter_count,
        "permits": lock.permits,
        "permitsStored": lock.permits_stored,
    })
}

fn hold(hold: &HolderInfo) -> Value {
    let (closed_for, break_by, break_reason) = match &hold.state {
        HolderState::Revoked { reason, by } => (None, Some(by), Some(reason)),
        HolderState::Closed { left } => (Some(milliseconds(*left)), None, None),
        _ => (None, None, None),
    };
    json!({
        "token": hold.token.map(Token::get),
        "session": hold.session,
        "label": hold.label,
        "identity": hold.identity,
        "mode": hold.mode.to_string(),
        "subtree": hold.subtree,
        "slot": hold.slot,
        "state": words::hold_state(&hold.state),
        "heldFor": hold.held_for.map(milliseconds),
        "since": hold.since.and_then(since_1970),
        "closedFor": closed_for,
        "breakBy": break_by,
        "breakReason": break_reason,
        "value": STANDARD.encode(&hold.value),
        "meta": meta(&hold.meta),
    })
}

fn waiter(waiter: &WaiterInfo) -> Value {
    json!({
        "session": waiter.session,
        "label": waiter.label,
        "identity": waiter.identity,
        "mode": waiter.mode.to_string(),
        "subtree": waiter.subtree,
        "waitingFor": waiter.waiting_for.map(milliseconds),
        "since": waiter.since.and_then(since_1970),
        "meta": meta(&waiter.meta),
    })
}

#[napi]
impl Bridge {
    #[napi]
    pub fn inspect(&self, call: u32, locks: &NativeLocks, name: String) {
        let locks = locks.0.clone();
        self.begin(call, async move {
            let found = with!(locks, locks => locks.inspect(name).await)?;
            Ok(CallAnswer::Json(lock(&found)))
        });
    }

    #[napi]
    pub fn list(&self, call: u32, locks: &NativeLocks, prefix: Option<String>) {
        let locks = locks.0.clone();
        self.begin(call, async move {
            let found = with!(locks, locks => locks.list(prefix.as_deref()).await)?;
            Ok(CallAnswer::Json(found.iter().map(lock).collect()))
        });
    }

    #[napi]
    pub fn check_token(&self, call: u32, locks: &NativeLocks, name: String, token: f64) {
        let locks = locks.0.clone();
        self.begin(call, async move {
            let token = token_of(token)?;
            let status = with!(locks, locks => locks.check_token(name, token).await)?;
            let (status, live) = words::token_status(token, status);
            Ok(CallAnswer::Json(json!({ "status": status, "liveTokens": tokens(&live) })))
        });
    }

    #[napi]
    #[allow(clippy::too_many_arguments, reason = "the parts of an order")]
    pub fn break_hold(
        &self,
        call: u32,
        locks: &NativeLocks,
        name: String,
        token: f64,
        reason: String,
        by: String,
        now: bool,
    ) {
        let locks = locks.0.clone();
        self.begin(call, async move {
            let name = LockName::parse(&name).map_err(lockkeeper::AcquireError::from)?;
            let order = BreakOrder { name, token: token_of(token)?, reason, by, now };
            let (result, live) = words::broken(with!(locks, locks => locks.break_hold(order).await)?);
            Ok(CallAnswer::Json(json!({ "result": result, "liveTokens": tokens(&live) })))
        });
    }
}
