//! Parsers of values, with errors that name the allowed ones.

use std::time::Duration;

use lockkeeper::{InvalidToken, Token};
use lockkeeper_core::limits;

use crate::settings::duration;

pub(super) fn ttl(typed: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(limits::TTL_MS_MIN)..=Duration::from_millis(limits::TTL_MS_MAX);
    let ttl = duration(typed)?;
    if allowed.contains(&ttl) { Ok(ttl) } else { Err("a ttl is 1s to 1h".to_owned()) }
}

/// Parses a duration of at most `ms` milliseconds. `ms` is a whole number of hours.
fn at_most(typed: &str, ms: u64) -> Result<Duration, String> {
    let (duration, most) = (duration(typed)?, Duration::from_millis(ms));
    if duration <= most {
        Ok(duration)
    } else {
        Err(format!("at most {}h is allowed", most.as_secs() / 3600))
    }
}

pub(super) fn keep_closed(typed: &str) -> Result<Duration, String> {
    at_most(typed, limits::KEEP_CLOSED_MS_MAX)
}

pub(super) fn min_hold(typed: &str) -> Result<Duration, String> {
    // The library's limit is that of `keep_closed`.
    at_most(typed, limits::KEEP_CLOSED_MS_MAX)
}

pub(super) fn lock_delay(typed: &str) -> Result<Duration, String> {
    at_most(typed, limits::LOCK_DELAY_MS_MAX)
}

pub(super) fn token(typed: &str) -> Result<Token, String> {
    typed.parse().map_err(|error: InvalidToken| error.to_string())
}

pub(super) fn key_value(typed: &str) -> Result<(String, String), &'static str> {
    let pair = typed.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or("write KEY=VALUE")
}

/// A rate: a count and the time in which it is allowed.
pub(super) fn rate(typed: &str) -> Result<(u32, Duration), String> {
    let (count, per) = typed.split_once('/').ok_or("write how many, a slash, and a duration: 10/1m")?;
    let most = limits::PERMITS_MAX;
    let count = count.parse().ok().filter(|count| (1..=most).contains(count));
    Ok((count.ok_or_else(|| format!("1 to {most} within a time are allowed"))?, keep_closed(per)?))
}

/// The value of a hold.
pub(super) fn value(typed: &str) -> Result<String, String> {
    let (bytes, most) = (typed.len(), limits::VALUE_BYTES_MAX);
    if bytes <= most {
        Ok(typed.to_owned())
    } else {
        Err(format!("it has {bytes} bytes; at most {most} are allowed"))
    }
}

/// A text that is not blank.
pub(super) fn reason(typed: &str) -> Result<String, &'static str> {
    if typed.trim().is_empty() { Err("others read it: say why") } else { Ok(typed.to_owned()) }
}

/// What selects sessions: a blank one would select those without.
pub(super) fn not_blank(typed: &str) -> Result<String, &'static str> {
    if typed.trim().is_empty() {
        Err("it is empty, and would mean all that have none")
    } else {
        Ok(typed.to_owned())
    }
}

/// The address of a collector of traces, with its port.
#[cfg(feature = "otlp")]
pub(super) fn collector(typed: &str) -> Result<String, &'static str> {
    let expected = "a collector is http://HOST:4317 or https://HOST:4317, by its port for OTLP over gRPC";
    let url: http::Uri = typed.parse().map_err(|_| expected)?;
    let scheme = url.scheme_str().filter(|scheme| ["http", "https"].contains(scheme)).ok_or(expected)?;
    let authority = url.authority().ok_or(expected)?;
    let (host, port) = (authority.host(), authority.port_u16().unwrap_or(4317));
    // A user or an invalid port makes the texts differ.
    let is_plain = [host.to_owned(), format!("{host}:{port}")].contains(&authority.to_string());
    if host.is_empty() || !is_plain || !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(expected);
    }
    Ok(format!("{scheme}://{host}:{port}"))
}

/// Refuses every address: this program can send no traces.
#[cfg(not(feature = "otlp"))]
pub(super) fn collector(_: &str) -> Result<String, &'static str> {
    Err(
        "traces are not compiled in; build with the feature `otlp`: `cargo build --release --features otlp` in the source \
         tree, or `cargo install lockkeeper-cli --features otlp`",
    )
}
