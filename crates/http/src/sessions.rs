//! Sessions, and their requests: each is one call of the service, which may be repeated.

use crate::view::{EndSessionResult, EndedSessionView, Mode, SessionView, content};
use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkeeper_core::limits;
use lockkeeper_wire::v1::{self, client_item, server_item::What};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::call::{Client, InPath, InQuery, JsonBody, NoQuery, SessionClient, unexpected};
use crate::problem::{Problem, ProblemCode, RequestEnd};
use crate::service::Origin;

/// The default of `poll_ms`, the time that a call waits for a queued request. The maximum is much longer, but
/// a waiting call does not keep its session alive.
const POLL_MS_DEFAULT: u64 = 1_000;

/// How long the call of a request that doesn't wait waits for its answer: a little longer than the service
/// may put it off because of cached holds (C6).
const TRY_POLL_MS: u64 = limits::TRY_WAIT_MS + 500;

/// Every call about a session sends its secret.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header")]
pub(crate) struct SecretHeader {
    /// The session's secret: 32 random hexadecimal digits that only the session's client knows.
    #[param(rename = "Lockkeeper-Secret", min_length = 32, max_length = 32, pattern = "^[0-9a-fA-F]{32}$")]
    secret: String,
}

/// A new session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenSession {
    /// How long the session lives without a call, in milliseconds.
    #[schema(minimum = 1_000, maximum = 3_600_000)]
    ttl_ms: u64,
    /// How long its locks stay closed if it expires, in milliseconds.
    #[serde(default)]
    #[schema(maximum = 3_600_000)]
    lock_delay_ms: u64,
    /// For people: host, process, purpose.
    #[serde(default)]
    #[schema(max_length = 256)]
    label: String,
}

/// The session that was opened.
#[derive(Serialize, ToSchema)]
pub(crate) struct OpenedSession {
    /// Its id.
    session: u64,
}

/// What has happened to the session's requests since an earlier call. The session's lease is renewed: it
/// ends a ttl after this call was sent.
#[derive(Serialize, ToSchema)]
pub(crate) struct Notices {
    /// The requests whose holds an operator breaks: stop, then delete them.
    revoked: Vec<u64>,
    /// The requests that have ended without being deleted: an operator has broken the hold, or
    /// `at_most_ms` has passed. Stop, then delete them, so that the service forgets them.
    ended: Vec<EndedMeanwhile>,
}

/// A request that has ended without being deleted.
#[derive(Serialize, ToSchema)]
pub(crate) struct EndedMeanwhile {
    request: u64,
    end: RequestEnd,
}

impl Notices {
    pub(crate) fn new(revoked: Vec<u64>, ended: Vec<v1::EndedRequest>) -> Self {
        let ended = ended.into_iter().map(|it| EndedMeanwhile { request: it.seq, end: it.end().into() });
        Self { revoked, ended: ended.collect() }
    }
}

/// Opens a session, or returns the one that an earlier call with the same secret has opened. A call with
/// the same secret and another `ttl_ms` or `lock_delay_ms` is refused.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", params(SecretHeader), request_body = OpenSession,
    responses((status = 200, body = OpenedSession)))]
pub(crate) async fn open<O: Origin>(
    client: SessionClient<O>,
    _: NoQuery,
    JsonBody(asked): JsonBody<OpenSession>,
) -> Result<Json<OpenedSession>, Problem> {
    let open = v1::OpenSession {
        secret: client.secret.0.to_vec(),
        ttl_ms: asked.ttl_ms,
        lock_delay_ms: asked.lock_delay_ms,
        label: asked.label,
        ..v1::OpenSession::default()
    };
    let answered = client.ask(0, client_item::What::Open(open), 0).await?;
    match answered.what {
        What::Opened(_) => Ok(Json(OpenedSession { session: answered.session })),
        What::SessionGone(_) => Err(Problem::session_gone()),
        _ => Err(unexpected()),
    }
}

/// Ends a session: all its requests end, without lock-delay. Also succeeds if the session has ended before.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions",
    params(("session" = u64, Path, description = "The session's id."), SecretHeader),
    responses((status = 204, description = "The session has ended.")))]
pub(crate) async fn close<O: Origin>(
    client: SessionClient<O>,
    _: NoQuery,
    InPath(session): InPath<u64>,
) -> Result<StatusCode, Problem> {
    let answered = client.ask(session, client_item::What::Close(v1::CloseSession {}), 0).await?;
    match answered.what {
        What::SessionGone(_) => Ok(StatusCode::NO_CONTENT),
        _ => Err(unexpected()),
    }
}

/// A request for a lock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acquire {
    /// The session's id.
    session: u64,
    /// The number of this request in its session, from 1. It must be higher than that of every earlier
    /// request. A repeated call with the same number is about the same request, and waits again; it is
    /// refused if the locks, their mode, `permits`, `subtree` or `keep_closed_ms` differ.
    #[schema(minimum = 1)]
    request: u64,
    /// The client has the answers to all requests up to this number and will not repeat them, so the
    /// service may forget them; it remembers at most 4,096 ended requests of a session.
    #[serde(default)]
    done_through: u64,
    /// How to hold the lock.
    #[serde(default)]
    mode: Mode,
    /// For permits: their number; absent: the one in force.
    #[schema(minimum = 1, maximum = 65_536)]
    permits: Option<u32>,
    /// Also covers everything below the name.
    #[serde(default)]
    subtree: bool,
    /// Other locks to acquire together with this one: all or none.
    #[serde(default)]
    #[schema(max_items = 63)]
    also: Vec<String>,
    /// Wait in the queue if the lock is not free.
    #[serde(default)]
    wait: bool,
    /// With `wait`: how long to wait in the queue in all, in milliseconds; absent: unlimited.
    at_most_ms: Option<u64>,
    /// With `wait`: waits only if fewer requests than this wait already for each of the locks; otherwise the
    /// lock is busy; absent: no limit.
    max_waiters: Option<u32>,
    /// The tokens of holds that the caller keeps until this wait has ended. A request that would so wait for
    /// itself is refused: `deadlock`.
    #[serde(default)]
    #[schema(max_items = 16)]
    holding: Vec<u64>,
    /// With `wait`: how long this call waits for the answer, in milliseconds; absent: 1,000. The request
    /// stays in the queue after that. At most a third of the session's ttl, or other calls have to keep the
    /// session alive meanwhile.
    #[schema(maximum = 60_000)]
    poll_ms: Option<u64>,
    /// How long the lock stays closed after the hold, in milliseconds.
    #[serde(default)]
    #[schema(maximum = 86_400_000)]
    keep_closed_ms: u64,
    /// A value that the holder publishes: at most 4,096 bytes.
    value: Option<String>,
    /// The value, if it is not text, in base64.
    value_base64: Option<String>,
    /// For people: the purpose of the hold, at most 1,024 bytes.
    meta: Option<String>,
    /// The purpose, if it is not text, in base64.
    meta_base64: Option<String>,
}

/// What a request does now.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestState {
    /// It holds.
    Held,
    /// It waits.
    Queued,
    /// It holds, but an operator breaks the hold: stop, then delete the request.
    Revoked,
}

/// A request that holds or waits.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestStatus {
    /// `held`; `queued`: the request waits; `revoked`: it holds, but an operator breaks the hold: stop,
    /// then delete the request.
    state: RequestState,
    /// Its locks, in byte order.
    locks: Vec<String>,
    /// Of a hold: the fencing token, which the resource has to check.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// Of a hold of permits: one for each of `locks`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<HeldSlot>,
    /// Of a waiting request: the number of earlier ones that overlap it.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
    #[serde(flatten)]
    notices: Notices,
}

/// A permit that is held.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeldSlot {
    /// Its slot, from 0.
    slot: u32,
    /// The number of permits in force.
    permits: u32,
}

pub(crate) fn slots(permits: Vec<v1::PermitGrant>) -> Vec<HeldSlot> {
    permits.into_iter().map(|it| HeldSlot { slot: it.slot, permits: it.limit }).collect()
}

/// Acquires a lock; a repeated call returns the state of the same request.
///
/// Status 202 means that the request is still in the queue: repeat the call to wait longer. If an answer
/// is lost, repeat the call. To give up, delete the request.
#[utoipa::path(post, path = "/v1/locks/{name}", tag = "sessions",
    params(
        ("name" = String, Path, description = "The lock's name; it may contain `/`."),
        SecretHeader,
        ("traceparent" = Option<String>, Header, description = "The W3C trace context of the caller's span.")),
    request_body = Acquire,
    responses(
        (status = 200, description = "The request holds.", body = RequestStatus),
        (status = 202, description = "The request waits.", body = RequestStatus)))]
pub(crate) async fn acquire<O: Origin>(
    client: SessionClient<O>,
    _: NoQuery,
    InPath(name): InPath<String>,
    headers: HeaderMap,
    JsonBody(asked): JsonBody<Acquire>,
) -> Result<Response, Problem> {
    let poll_ms = match (asked.wait, asked.poll_ms, asked.at_most_ms, asked.max_waiters) {
        (true, poll_ms, ..) => poll_ms.unwrap_or(POLL_MS_DEFAULT),
        (false, None, None, None) => TRY_POLL_MS,
        (false, ..) => {
            return Err(Problem::invalid(
                "`poll_ms`, `at_most_ms` or `max_waiters` is given, but `wait` is not true: the request does not wait",
            ));
        }
    };
    let (waits, number) = (asked.wait, asked.request);
    let acquire = v1::Acquire {
        seq: asked.request,
        done_through: asked.done_through,
        names: std::iter::once(name).chain(asked.also).collect(),
        mode: v1::Mode::from(asked.mode).into(),
        permits: asked.permits,
        subtree: asked.subtree,
        wait: asked.wait,
        at_most_ms: asked.at_most_ms,
        waiters_max: asked.max_waiters,
        keep_closed_ms: asked.keep_closed_ms,
        value: content::bytes("value", asked.value, asked.value_base64).map_err(Problem::invalid)?,
        meta: content::bytes("meta", asked.meta, asked.meta_base64).map_err(Problem::invalid)?,
        spare_tokens: 0,
        holding: asked.holding,
        traceparent: traceparent(&headers),
    };
    // The answer names the locks of this call: the table refuses a call that repeats a request's number with
    // other locks (R5). Sorted and without duplicates, as the table stores them (N1).
    let mut locks = acquire.names.clone();
    locks.sort_unstable();
    locks.dedup();
    let answered = client.ask(asked.session, client_item::What::Acquire(acquire), poll_ms).await?;
    let request = |state, notices| RequestStatus {
        state,
        locks,
        token: None,
        slots: Vec::new(),
        position: None,
        notices,
    };
    let notices = answered.notices;
    let (status, request) = match answered.what {
        What::Granted(granted) => {
            let (token, slots) = (Some(granted.token), slots(granted.permits));
            (StatusCode::OK, RequestStatus { token, slots, ..request(RequestState::Held, notices) })
        }
        What::Revoked(revoked) => {
            let token = Some(revoked.token);
            (StatusCode::OK, RequestStatus { token, ..request(RequestState::Revoked, notices) })
        }
        What::Queued(queued) => {
            let position = Some(queued.position);
            (StatusCode::ACCEPTED, RequestStatus { position, ..request(RequestState::Queued, notices) })
        }
        What::Busy(busy) => return Err(Problem::busy(busy)),
        What::Finished(it) | What::Ended(it) if !waits && it.end() == v1::End::TimedOut => {
            // So that nothing of the request is left, as after any other busy request (R3).
            let finish = v1::Finish { seq: number, target: number, done_through: 0 };
            client.ask(asked.session, client_item::What::Finish(finish), 0).await?;
            return Err(Problem::busy(v1::Busy::default()));
        }
        What::Finished(it) | What::Ended(it) => return Err(Problem::ended(it.end())),
        What::SessionGone(_) => return Err(Problem::session_gone()),
        _ => return Err(unexpected()),
    };
    Ok((status, Json(request)).into_response())
}

/// The trace context of the caller; empty if there is none, or none that can be read.
fn traceparent(headers: &HeaderMap) -> String {
    headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// A request of a session.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfSession {
    /// The session's id.
    session: u64,
    /// The number of the request that acquired the lock.
    request: u64,
}

/// The requests that the client will not repeat.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DoneThrough {
    /// See `done_through` of an acquire.
    #[serde(default)]
    #[param(required = false)]
    done_through: u64,
}

/// How the request has ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeletedRequest {
    end: RequestEnd,
    #[serde(flatten)]
    notices: Notices,
}

/// Releases a lock, or leaves its queue. One call does both, so that giving up can't race with a grant. The
/// number of a request that was never received answers `gone`, and the session can use only higher numbers
/// from then on: an acquire that is still under way is refused when it arrives.
#[utoipa::path(delete, path = "/v1/sessions/{session}/requests/{request}", tag = "sessions",
    params(OfSession, DoneThrough, SecretHeader), responses((status = 200, body = DeletedRequest)))]
pub(crate) async fn release<O: Origin>(
    client: SessionClient<O>,
    InPath(of): InPath<OfSession>,
    InQuery(done): InQuery<DoneThrough>,
) -> Result<Json<DeletedRequest>, Problem> {
    // A `finish` runs whatever its number is, so it needs none of its own (R4).
    let finish = v1::Finish { seq: of.request, target: of.request, done_through: done.done_through };
    let answered = client.ask(of.session, client_item::What::Finish(finish), 0).await?;
    match answered.what {
        What::Finished(it) => Ok(Json(DeletedRequest { end: it.end().into(), notices: answered.notices })),
        What::SessionGone(_) => Err(Problem::session_gone()),
        _ => Err(unexpected()),
    }
}

/// A new value of a hold.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetValue {
    /// The number of this change among the session's requests: higher than every earlier one.
    #[schema(minimum = 1)]
    number: u64,
    /// See `done_through` of an acquire.
    #[serde(default)]
    done_through: u64,
    /// The value: at most 4,096 bytes.
    value: Option<String>,
    /// The value, if it is not text, in base64.
    value_base64: Option<String>,
}

/// Replaces the value that a hold publishes.
#[utoipa::path(put, path = "/v1/sessions/{session}/requests/{request}/value", tag = "sessions",
    params(OfSession, SecretHeader), request_body = SetValue, responses((status = 200, body = Notices)))]
pub(crate) async fn set_value<O: Origin>(
    client: SessionClient<O>,
    _: NoQuery,
    InPath(of): InPath<OfSession>,
    JsonBody(asked): JsonBody<SetValue>,
) -> Result<Json<Notices>, Problem> {
    let set_value = v1::SetValue {
        seq: asked.number,
        target: of.request,
        done_through: asked.done_through,
        value: content::bytes("value", asked.value, asked.value_base64).map_err(Problem::invalid)?,
    };
    change(client, of.session, client_item::What::SetValue(set_value)).await
}

/// A change of a hold from exclusive to shared.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Downgrade {
    /// The number of this change among the session's requests: higher than every earlier one.
    #[schema(minimum = 1)]
    number: u64,
    /// See `done_through` of an acquire.
    #[serde(default)]
    done_through: u64,
}

/// Makes an exclusive hold a shared one. It keeps its token.
#[utoipa::path(post, path = "/v1/sessions/{session}/requests/{request}/downgrade", tag = "sessions",
    params(OfSession, SecretHeader), request_body = Downgrade, responses((status = 200, body = Notices)))]
pub(crate) async fn downgrade<O: Origin>(
    client: SessionClient<O>,
    _: NoQuery,
    InPath(of): InPath<OfSession>,
    JsonBody(asked): JsonBody<Downgrade>,
) -> Result<Json<Notices>, Problem> {
    let downgrade = v1::Downgrade { seq: asked.number, target: of.request, done_through: asked.done_through };
    change(client, of.session, client_item::What::Downgrade(downgrade)).await
}

async fn change<O: Origin>(
    client: SessionClient<O>,
    session: u64,
    what: client_item::What,
) -> Result<Json<Notices>, Problem> {
    let answered = client.ask(session, what, 0).await?;
    match answered.what {
        What::Done(_) => Ok(Json(answered.notices)),
        What::Revoked(_) => Err(Problem::new(
            ProblemCode::FailedPrecondition,
            "the hold is under a break, so it can't be changed: stop, then delete the request",
        )),
        What::Finished(it) | What::Ended(it) => Err(Problem::ended(it.end())),
        What::SessionGone(_) => Err(Problem::session_gone()),
        _ => Err(unexpected()),
    }
}

/// A page of a list, by number.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsPage {
    /// The most entries of the page; absent: 100.
    #[serde(default)]
    #[param(required = false, maximum = 1_000)]
    page_size: u32,
    /// `next_after` of the last page.
    #[serde(default)]
    #[param(required = false)]
    after: u64,
}

/// A page of the live sessions.
#[derive(Serialize, ToSchema)]
#[schema(as = Sessions)]
pub(crate) struct SessionsView {
    /// The sessions of this page.
    sessions: Vec<SessionView>,
    /// `after` of the next page; absent: this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<u64>,
}

/// The live sessions, ordered by id, in pages.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(SessionsPage),
    responses((status = 200, body = SessionsView)))]
pub(crate) async fn list<O: Origin>(
    Client(mut calls): Client<O>,
    InQuery(page): InQuery<SessionsPage>,
) -> Result<Json<SessionsView>, Problem> {
    let asked = v1::ListSessionsRequest { page_size: page.page_size, after: page.after };
    let page = calls.list_sessions(asked).await?.into_inner();
    let sessions = page.sessions.into_iter().map(SessionView::from).collect();
    Ok(Json(SessionsView { sessions, next_after: Some(page.next_after).filter(|after| *after > 0) }))
}

/// An order to end a session with all its holds and waiters.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndSessionBody {
    /// The session's id, as a list shows it.
    session: u64,
    /// The reason, for the audit trail.
    #[schema(min_length = 1, max_length = 256)]
    reason: String,
    /// The name of the person who orders it, for the audit trail.
    #[serde(default)]
    by: String,
    /// End it even if its client is attached. The client may still use its resources: only a fence excludes
    /// it.
    #[serde(default)]
    now: bool,
}

/// Ends a session as if its client were gone, and records the reason: its lock-delay applies.
#[utoipa::path(post, path = "/v1/end-session", tag = "sessions", request_body = EndSessionBody,
    responses((status = 200, body = EndedSessionView)))]
pub(crate) async fn end<O: Origin>(
    Client(mut calls): Client<O>,
    JsonBody(asked): JsonBody<EndSessionBody>,
) -> Result<Json<EndedSessionView>, Problem> {
    let EndSessionBody { session, reason, by, now } = asked;
    let ended = calls.end_session(v1::EndSessionRequest { session, reason, by, now }).await?.into_inner();
    let result = EndSessionResult::of(ended.result()).ok_or_else(unexpected)?;
    Ok(Json(EndedSessionView { session, result }))
}
