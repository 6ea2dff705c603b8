//! `doctor`: the capabilities and guarantees of a lock service, and a test of whether it works now.

mod directory;

use std::time::{Duration, Instant, SystemTime};

use lockkeeper::backends::KnownBackend;
use lockkeeper::url::Url;
use lockkeeper::{AcquireError, BackendErrorKind, Fencing, Finding, Locks, Wait};
use serde_json::{Value, json};

use super::nodes;
use crate::args::Doctor;
use crate::exit::{Failure, OK, UNAVAILABLE, UNHEALTHY};
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

    let nodes = if can.backend == "lockkeeper" { nodes::ask(&locks).await? } else { Vec::new() };
    let mut warnings = nodes::warnings(&nodes);
    let parsed = url.parse::<Url>().ok();
    warnings.extend(parsed.iter().flat_map(Url::exposed_files));
    let certificate = parsed.and_then(|url| url.client_certificate());
    let certificate_fault = certificate.as_ref().and_then(|it| it.fault(SystemTime::now()));
    warnings.extend(certificate.as_ref().and_then(|it| {
        let what = format!("this client's certificate `{}`", it.file());
        certificate_fault.clone().or_else(|| nodes::end_of_certificate(&what, it.ends()))
    }));
    nodes::check_majority(&nodes, args.json)?;
    let (spoiling, harmless): (Vec<Finding>, Vec<Finding>) = match locks.findings().await {
        Ok(findings) => findings.into_iter().partition(|finding| finding.spoils),
        Err(error) => {
            warnings.push(format!("its settings can't be read: {error}"));
            (Vec::new(), Vec::new())
        }
    };
    let is_well = spoiling.is_empty() && certificate_fault.is_none() && nodes::are_healthy(&nodes);
    let code = if is_well { OK } else { UNHEALTHY };
    warnings.extend(spoiling.into_iter().map(|finding| finding.says));
    let shown = settings::shown(&url);
    let info = KnownBackend::of(url.split_once(':').map_or(&*url, |(scheme, _)| scheme))
        .and_then(|known| known.info);

    let probed = probe(&locks).await;
    // If the session were not closed, it would exist until its ttl has elapsed.
    let _ = locks.shutdown(SHUTDOWN_LIMIT).await;

    let mut settings: Vec<String> = match can.backend {
        "file" => directory::description(&url),
        _ => Vec::new(),
    };
    settings.extend(harmless.into_iter().map(|finding| finding.says));
    let token = probed.worked().and_then(|it| it.token);
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
            "promises": promises, "probe": probed.word(), "probe_says": probed.says(),
            "acquire_us": probed.worked().map(|it| it.acquired.as_micros() as u64),
            "release_us": probed.worked().map(|it| it.released.as_micros() as u64),
            "token": token.map(lockkeeper::Token::get), "settings": settings, "nodes": crate::view::reports(&nodes),
            "warnings": warnings,
        }))?;
        return probed.ended(code);
    }
    output::line(format!("{shown}: excludes {}", can.reach))?;
    if let Some(info) = info {
        output::line(format!("other programs that wait for ours: {}", info.excludes))?;
        output::line(format!("other programs that ours wait for: {}", info.excluded_by))?;
    }
    match can.fencing {
        Fencing::Tokens { source } => {
            let got = token.map_or_else(String::new, |token| format!("; this test got {token}"));
            output::line(format!("tokens: {source}{got}"))?
        }
        Fencing::None { why, instead } => output::line(format!("no tokens: {why}; {instead}"))?,
    }
    match &probed {
        Probed::Works(Worked { acquired, released, .. }) => output::line(format!(
            "works: acquired in {}, released in {}",
            human_us(*acquired),
            human_us(*released)
        ))?,
        Probed::NotTried(why) => output::line(format!("not tried: to acquire `{PROBE}`, since {why}"))?,
        Probed::Failed(failure) => output::line(format!("does not work: {}", failure.message))?,
    }
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
    probed.ended(code)
}

/// The result of the test.
enum Probed {
    Works(Worked),
    /// The caller may not acquire the lock; the rest of the report needs less.
    NotTried(String),
    Failed(Failure),
}

/// The lock was acquired and released.
struct Worked {
    acquired: Duration,
    released: Duration,
    token: Option<lockkeeper::Token>,
}

impl Probed {
    fn worked(&self) -> Option<&Worked> {
        match self {
            Self::Works(worked) => Some(worked),
            Self::NotTried(_) | Self::Failed(_) => None,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Works(_) => "works",
            Self::NotTried(_) => "not-tried",
            Self::Failed(_) => "failed",
        }
    }

    /// Why it does not work, or was not tried.
    fn says(&self) -> Option<&str> {
        match self {
            Self::Works(_) => None,
            Self::NotTried(why) => Some(why),
            Self::Failed(failure) => Some(&failure.message),
        }
    }

    /// The exit code once the report is printed: `code`, unless the test has failed.
    fn ended(self, code: u8) -> Result<u8, Failure> {
        match self {
            Self::Works(_) | Self::NotTried(_) => Ok(code),
            Self::Failed(failure) => Err(failure),
        }
    }
}

/// Acquires and releases a lock.
async fn probe(locks: &Locks) -> Probed {
    let can = locks.capabilities();
    // Only our own service has a permission to read without one to acquire.
    let can_be_read_only = can.backend == "lockkeeper";
    let lock = locks.mutex(PROBE).wait(Wait::For(Duration::from_secs(5)));
    let lock = if can.ttl { lock.ttl(PROBE_TTL) } else { lock };
    let began = Instant::now();
    let guard = match lock.acquire().await {
        Ok(guard) => guard,
        Err(AcquireError::Backend(error)) if can_be_read_only && error.kind == BackendErrorKind::Denied => {
            return Probed::NotTried(error.to_string());
        }
        Err(error) => return Probed::Failed(error.into()),
    };
    let (acquired, token) = (began.elapsed(), guard.token_hint());
    let began = Instant::now();
    match guard.release().await {
        Ok(_) => Probed::Works(Worked { acquired, released: began.elapsed(), token }),
        Err(error) => Probed::Failed(Failure::new(UNAVAILABLE, error.to_string())),
    }
}

fn human_us(duration: Duration) -> String {
    if duration < Duration::from_millis(10) {
        format!("{} µs", duration.as_micros())
    } else {
        human(duration)
    }
}
