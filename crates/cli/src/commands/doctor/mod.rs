//! `doctor`: the capabilities and guarantees of a lock service, and a test of whether it works now.

mod directory;

use std::time::{Duration, Instant};

use lockkeeper::backends::KnownBackend;
use lockkeeper::url::Url;
use lockkeeper::{Fencing, Finding, Wait};
use serde_json::{Value, json};

use super::nodes;
use crate::args::Doctor;
use crate::exit::{Failure, OK, UNHEALTHY};
use crate::output::{self, human};
use crate::settings;

/// The lock that is acquired and released as a test.
const PROBE: &str = "lockkeeper-doctor/probe";
/// Its ttl: servers that limit ttls grant this one.
const PROBE_TTL: Duration = Duration::from_secs(5);
/// The time limit for closing the session; if it is not closed in time, it expires by itself.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn doctor(args: Doctor) -> Result<u8, Failure> {
    let given = args.url.as_deref().or(args.service.locks.as_deref());
    let url = settings::locks_url(given, args.service.local)?;
    let locks = settings::connect(&url, "doctor").await?;
    let can = locks.capabilities().clone();

    let nodes = if can.backend == "lockkeeper" { locks.nodes().await? } else { Vec::new() };
    let mut warnings = nodes::warnings(&nodes);
    warnings.extend(url.parse::<Url>().iter().flat_map(Url::exposed_files));
    if let Some(lost) = nodes::lost_majority(&nodes) {
        nodes::print_all(&nodes, args.json)?;
        return Err(lost);
    }
    let (spoiling, harmless): (Vec<Finding>, Vec<Finding>) = match locks.findings().await {
        Ok(findings) => findings.into_iter().partition(|finding| finding.spoils),
        Err(error) => {
            warnings.push(format!("its settings can't be read: {error}"));
            (Vec::new(), Vec::new())
        }
    };
    let code = if spoiling.is_empty() && nodes::are_healthy(&nodes) { OK } else { UNHEALTHY };
    warnings.extend(spoiling.into_iter().map(|finding| finding.says));
    let shown = settings::shown(&url);
    let info = KnownBackend::of(url.split_once(':').map_or(&*url, |(scheme, _)| scheme))
        .and_then(|known| known.info);

    let began = Instant::now();
    let probe = locks.mutex(PROBE).wait(Wait::For(Duration::from_secs(5)));
    let probe = if can.ttl { probe.ttl(PROBE_TTL) } else { probe };
    let probed = async {
        let guard = probe.acquire().await.inspect_err(|_| {
            // The warnings may explain the failure.
            for text in &warnings {
                output::say(text);
            }
        })?;
        let (acquired, token) = (began.elapsed(), guard.token_hint());
        let began = Instant::now();
        guard.release().await.map_err(|error| Failure::new(crate::exit::UNAVAILABLE, error.to_string()))?;
        Ok::<_, Failure>((acquired, token, began.elapsed()))
    };
    let probed = probed.await;
    // If the session were not closed, it would exist until its ttl has elapsed.
    let _ = locks.shutdown(SHUTDOWN_LIMIT).await;
    let (acquired, token, released) = probed?;

    let mut settings: Vec<String> = match can.backend {
        "file" => directory::description(&url),
        _ => Vec::new(),
    };
    settings.extend(harmless.into_iter().map(|finding| finding.says));
    if args.json {
        let abilities: serde_json::Map<String, Value> =
            can.abilities().into_iter().map(|(name, has)| (name.to_owned(), has.into())).collect();
        let promises: serde_json::Map<String, Value> = can
            .promises
            .list()
            .into_iter()
            .map(|(number, name, p)| {
                (format!("P{number}"), json!({ "name": name, "is": p.as_str(), "says": p.to_string() }))
            })
            .collect();
        output::json(&json!({
            "url": shown, "backend": can.backend, "excludes": can.reach.to_string(),
            "others": info.map(|info| json!({ "excluded": info.excludes, "exclude": info.excluded_by })),
            "abilities": abilities,
            "promises": promises, "acquire_us": acquired.as_micros() as u64, "release_us": released.as_micros() as u64,
            "token": token.map(lockkeeper::Token::get), "settings": settings, "nodes": crate::view::reports(&nodes),
            "warnings": warnings,
        }))?;
        return Ok(code);
    }
    output::line(format!("{shown}: excludes {}", can.reach))?;
    if let Some(info) = info {
        output::line(format!("other programs that wait for ours: {}", info.excludes))?;
        output::line(format!("other programs that ours wait for: {}", info.excluded_by))?;
    }
    match can.fencing {
        Fencing::Tokens { source } => {
            output::line(format!("tokens: {source}; this test got {}", show(token)))?
        }
        Fencing::None { why, instead } => output::line(format!("no tokens: {why}; {instead}"))?,
    }
    output::line(format!("works: acquired in {}, released in {}", human_us(acquired), human_us(released)))?;
    let named = |wanted: bool| -> Vec<&str> {
        can.abilities().into_iter().filter(|(_, has)| *has == wanted).map(|(name, _)| name).collect()
    };
    output::line(format!("can: {}", named(true).join(", ")))?;
    let cannot = named(false);
    output::line(format!(
        "can't: {}",
        if cannot.is_empty() { "nothing".to_owned() } else { cannot.join(", ") }
    ))?;
    for (number, name, promise) in can.promises.list() {
        output::line(format!("P{number:<3} {name}: {promise}"))?;
    }
    for text in settings {
        output::line(format!("here: {text}"))?;
    }
    if !nodes.is_empty() {
        nodes::print(&nodes)?;
    }
    for text in warnings {
        output::line(format!("warning: {text}"))?;
    }
    Ok(code)
}

fn show(token: Option<lockkeeper::Token>) -> String {
    token.map_or_else(|| "none".to_owned(), |token| token.to_string())
}

fn human_us(duration: Duration) -> String {
    if duration < Duration::from_millis(10) {
        format!("{} µs", duration.as_micros())
    } else {
        human(duration)
    }
}
