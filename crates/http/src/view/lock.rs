//! Locks: holds, waiters, and the answers about tokens.

use lockkeeper_core::WallTime;
use lockkeeper_wire::v1;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::content::{shown, time};

/// The state of a lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Lock)]
pub struct LockView {
    /// The lock's name.
    pub name: String,
    /// The holds that cover the name, ordered by token: at most 256, and at most 10 in lists and watches.
    pub holds: Vec<HoldView>,
    /// The number of all holds that cover it.
    pub hold_count: u64,
    /// `holds_after` of the next page of holds; absent: there are no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_holds_after: Option<u64>,
    /// The first waiters, in the order of the queue.
    pub waiters: Vec<WaiterView>,
    /// The number of all waiters.
    pub waiter_count: u64,
    /// The number of permits in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Whether an operator has set the number of permits.
    pub permits_stored: bool,
}

/// A hold of a lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
pub struct HoldView {
    /// The fencing token; absent: the lock service issues none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The id of the holder's session; absent if the hold is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// The holder's label, as the client has chosen it; empty if the hold is closed.
    pub label: String,
    /// The identity that the service has authenticated; empty: unknown.
    pub identity: String,
    /// How the lock is held: alone, together with other shared holds, or as one of a number of permits.
    pub mode: Mode,
    /// Whether the hold also covers all names below its own.
    pub subtree: bool,
    /// `held`; `revoked`: still held, but a break has asked its holder to stop; `closed`: the
    /// hold has ended, and keeps the lock closed for some time.
    pub state: HoldStateView,
    /// Of a permit: its slot, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// How long it has been held, in milliseconds, by the wall clock of the node that answers; absent:
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_for_ms: Option<u64>,
    /// When it was granted, by the wall clock of the node that led then (RFC 3339, UTC); absent: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Of a closed hold: how much longer it keeps the lock closed, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_for_ms: Option<u64>,
    /// Whether its client keeps it between its sections, until others wait; absent: no.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// Of a cached hold: whether others wait for it; absent: no.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recalled: bool,
    /// The last of its tokens, if it has several: a cached hold has one for each section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_token: Option<u64>,
    /// The value that the holder publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The value in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// The purpose, for people; the library and the command write lines of `key=value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<String>,
    /// The purpose in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_base64: Option<String>,
    /// Of a revoked hold: who has ordered the break.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub break_by: Option<String>,
    /// Of a revoked hold: the reason of the break.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub break_reason: Option<String>,
}

/// The state of a hold.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = HoldState)]
pub enum HoldStateView {
    /// Its client holds the lock.
    Held,
    /// A break has asked its client to stop; the client still holds the lock.
    Revoked,
    /// The hold has ended, and keeps the lock closed for some time.
    Closed,
}

/// How a lock is held.
#[derive(Clone, Copy, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other shared holds.
    Shared,
    /// One of a number of permits.
    Permit,
}

/// A waiting request.
#[derive(Serialize, ToSchema)]
#[schema(as = Waiter)]
pub struct WaiterView {
    /// The id of the waiter's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// The waiter's label, as the client has chosen it.
    pub label: String,
    /// The identity that the service has authenticated; empty: unknown.
    pub identity: String,
    /// How the lock is to be held.
    pub mode: Mode,
    /// Whether the request also covers all names below its own.
    pub subtree: bool,
    /// The purpose, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<String>,
    /// The purpose in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_base64: Option<String>,
    /// How long it has been waiting, in milliseconds; as `held_for_ms` of a hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for_ms: Option<u64>,
    /// When it was queued; as `since` of a hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// What the service knows of a token.
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
pub struct TokenView {
    /// `current`: a live hold that covers the name has the token; `not-current`: the token was issued,
    /// and no such hold has it; `never-issued`: the token is higher than all that were issued.
    pub status: TokenStateView,
    /// If the token is not current: the tokens of the live holds that cover the name, ascending.
    pub live_tokens: Vec<u64>,
}

/// Whether a token belongs to a live hold.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = TokenState)]
pub enum TokenStateView {
    /// A live hold that covers the name has it.
    Current,
    /// It was issued, and no live hold that covers the name has it.
    NotCurrent,
    /// It is higher than all that were issued.
    NeverIssued,
}

/// What a break has done.
#[derive(Serialize, ToSchema)]
#[schema(as = Break)]
pub struct BreakView {
    /// `done`: the holder is asked to stop, or the hold has ended; `not-current`: no live hold that
    /// covers the name has the token; `still-closed`: the hold has ended and keeps the lock closed, and
    /// only a break with `now` opens it.
    pub result: BreakResult,
    /// If no live hold has the given token: the tokens of the live holds that cover the name, ascending.
    pub live_tokens: Vec<u64>,
}

/// How a break went.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BreakResult {
    /// The holder is asked to stop, or the hold has ended.
    Done,
    /// No live hold that covers the name has the token.
    NotCurrent,
    /// The hold has ended, and keeps the lock closed; only a break with `now` opens it.
    StillClosed,
}

impl From<v1::Lock> for LockView {
    fn from(lock: v1::Lock) -> Self {
        Self {
            name: lock.name,
            holds: lock.holds.into_iter().map(HoldView::from).collect(),
            hold_count: lock.hold_count,
            next_holds_after: Some(lock.next_holds_after).filter(|after| *after > 0),
            waiters: lock.waiters.into_iter().map(WaiterView::from).collect(),
            waiter_count: lock.waiter_count,
            permits: lock.permits,
            permits_stored: lock.permits_stored,
        }
    }
}

impl From<v1::Hold> for HoldView {
    fn from(hold: v1::Hold) -> Self {
        let mode = hold.mode().into();
        let state = match hold.state() {
            v1::HoldState::Held | v1::HoldState::Unspecified => HoldStateView::Held,
            v1::HoldState::Revoked => HoldStateView::Revoked,
            v1::HoldState::Closed => HoldStateView::Closed,
        };
        let (value, value_base64) = shown(hold.value);
        let (meta, meta_base64) = shown(hold.meta);
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            token: Some(hold.token),
            session: Some(hold.session).filter(|session| *session > 0),
            label: hold.label,
            identity: hold.identity,
            mode,
            subtree: hold.subtree,
            state,
            slot: hold.slot,
            held_for_ms: hold.held_for_ms,
            since: WallTime(hold.since_unix_ms).time().map(time),
            closed_for_ms: Some(hold.closed_for_ms).filter(|left| *left > 0),
            cached: hold.cached,
            recalled: hold.recalled,
            last_token: (hold.spare_tokens > 0).then(|| hold.token + u64::from(hold.spare_tokens)),
            value,
            value_base64,
            meta,
            meta_base64,
            break_by: some(hold.break_by),
            break_reason: some(hold.break_reason),
        }
    }
}

impl From<v1::Waiter> for WaiterView {
    fn from(waiter: v1::Waiter) -> Self {
        let mode = waiter.mode().into();
        let (meta, meta_base64) = shown(waiter.meta);
        Self {
            session: Some(waiter.session),
            label: waiter.label,
            identity: waiter.identity,
            mode,
            subtree: waiter.subtree,
            meta,
            meta_base64,
            waiting_for_ms: waiter.waiting_for_ms,
            since: WallTime(waiter.since_unix_ms).time().map(time),
        }
    }
}

impl From<v1::CheckTokenResponse> for TokenView {
    fn from(checked: v1::CheckTokenResponse) -> Self {
        let status = match checked.status() {
            v1::TokenStatus::Current => TokenStateView::Current,
            v1::TokenStatus::NotCurrent => TokenStateView::NotCurrent,
            v1::TokenStatus::NeverIssued | v1::TokenStatus::Unspecified => TokenStateView::NeverIssued,
        };
        Self { status, live_tokens: checked.live }
    }
}

impl From<v1::BreakResponse> for BreakView {
    fn from(broken: v1::BreakResponse) -> Self {
        let result = match broken.result() {
            v1::BreakResult::Done => BreakResult::Done,
            v1::BreakResult::NotCurrent | v1::BreakResult::Unspecified => BreakResult::NotCurrent,
            v1::BreakResult::StillClosed => BreakResult::StillClosed,
        };
        Self { result, live_tokens: broken.live }
    }
}

impl From<Mode> for v1::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permit => Self::Permit,
        }
    }
}

impl From<v1::Mode> for Mode {
    fn from(mode: v1::Mode) -> Self {
        match mode {
            v1::Mode::Exclusive | v1::Mode::Unspecified => Self::Exclusive,
            v1::Mode::Shared => Self::Shared,
            v1::Mode::Permit => Self::Permit,
        }
    }
}
