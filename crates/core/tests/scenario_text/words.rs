//! Formats answers, effects and the whole table for scenarios.

use lockkeeper_core::snapshot::{Caching, Phase, RequestState};
use lockkeeper_core::{Effect, End, Grant, ModeKind, Reply, SessionId, Snapshot, Token, WallTime};

pub(crate) fn reply(reply: &Reply, called: &dyn Fn(SessionId) -> String) -> String {
    match reply {
        Reply::Opened { session } => format!("opened {session}"),
        Reply::SessionGone => "session gone".to_owned(),
        Reply::Granted(grant) => format!("granted {}", granted(grant)),
        Reply::Queued { position, limits } if limits.is_empty() => format!("queued position={position}"),
        Reply::Queued { position, limits } => format!("queued position={position} limit={}", list(limits)),
        Reply::Busy { holder: Some(holder), queued_ahead } => {
            format!("busy holder={} queued-ahead={queued_ahead}", called(*holder))
        }
        Reply::Busy { holder: None, queued_ahead } => format!("busy queued-ahead={queued_ahead}"),
        Reply::Finished(how) => format!("finished {}", end(*how)),
        Reply::Revoked { token } => format!("revoked token={token}"),
        Reply::Done => "done".to_owned(),
        Reply::NotCurrent { live } => not_current(live),
        Reply::StillClosed => "still closed".to_owned(),
        Reply::Refused(why) => format!("refused: {why}"),
    }
}

pub(crate) fn not_current(live: &[Token]) -> String {
    if live.is_empty() { "not current".to_owned() } else { format!("not current, live={}", list(live)) }
}

pub(crate) fn effect(effect: &Effect, called: &dyn Fn(SessionId) -> String) -> String {
    match effect {
        Effect::SessionEnded { session } => format!("ended session {}", called(*session)),
        Effect::Revoked { session, seq, token } => {
            format!("revoked {}/{seq} token={token}", called(*session))
        }
        Effect::Recalled { session, seq } => format!("recalled {}/{seq}", called(*session)),
        Effect::Ended { session, seq, end: how } => format!("ended {}/{seq} {}", called(*session), end(*how)),
        Effect::Closed { token, ms } => format!("closed token={token} for {ms}ms"),
        Effect::Granted { session, seq, grant } => {
            format!("granted {}/{seq} {}", called(*session), granted(grant))
        }
    }
}

/// All waiters, holds and closed holds in ticket order, then the limits.
pub(crate) fn table(snapshot: &Snapshot, called: &dyn Fn(SessionId) -> String) -> String {
    let mut parts: Vec<String> =
        snapshot.requests.iter().map(|request| request_line(request, called)).collect();
    parts.extend(snapshot.limits.iter().map(|limit| {
        let kind = if limit.stored { "stored" } else { "implied" };
        format!("limit {}={} {kind}", limit.name, limit.limit)
    }));
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

fn request_line(request: &RequestState, called: &dyn Fn(SessionId) -> String) -> String {
    let owner = request.owner.map(|(session, seq)| format!("{}/{seq} ", called(session))).unwrap_or_default();
    let names: Vec<&str> = request.names.iter().map(|name| name.as_str()).collect();
    let mut words = vec![match &request.phase {
        Phase::Waiting { .. } => format!("{owner}waits for"),
        Phase::Held { .. } => format!("{owner}holds"),
        Phase::Revoked { by, .. } => format!("{owner}holds, revoked by {by},"),
        Phase::Closed { .. } => "closed".to_owned(),
    }];
    words.push(names.join(","));
    if request.mode != ModeKind::Exclusive {
        words.push(request.mode.to_string());
    }
    if request.subtree {
        words.push("subtree".to_owned());
    }
    if !request.value.is_empty() {
        words.push(format!("value={}", String::from_utf8_lossy(&request.value)));
    }
    if let Phase::Held { token, slots }
    | Phase::Revoked { token, slots, .. }
    | Phase::Closed { token, slots, .. } = &request.phase
    {
        words.push(format!("token={}", tokens(*token, request.spare_tokens)));
        if !slots.is_empty() {
            words.push(format!("slot={}", list(slots)));
        }
    }
    if let Phase::Closed { ms, .. } = request.phase {
        words.push(format!("for {ms}ms"));
    }
    match request.caching {
        Caching::None => {}
        Caching::Cached => words.push("cached".to_owned()),
        Caching::Recalled => words.push("recalled".to_owned()),
        Caching::Try => words.push("put off".to_owned()),
    }
    if request.since != WallTime::default() {
        words.push(format!("since={}", request.since.0));
    }
    words.join(" ")
}

fn granted(grant: &Grant) -> String {
    let permits: Vec<String> =
        grant.permits.iter().map(|permit| format!("{}/{}", permit.slot, permit.limit)).collect();
    let token = tokens(grant.token, grant.spare_tokens);
    if permits.is_empty() {
        format!("token={token}")
    } else {
        format!("token={token} slot={}", permits.join(","))
    }
}

fn tokens(first: Token, spare: u32) -> String {
    if spare == 0 { first.to_string() } else { format!("{first}..{}", first.get() + u64::from(spare)) }
}

fn end(end: End) -> &'static str {
    match end {
        End::Left => "left",
        End::Released => "released",
        End::Broken => "broken",
        End::TimedOut => "timed out",
        End::NotAcquired => "not acquired",
        End::Gone => "gone",
    }
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
