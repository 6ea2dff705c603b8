//! `doctor`: what a lock service can do, what it promises, and whether it works right now.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::url::Url;
use lockkeeper::{Fencing, Promise, Wait};
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::exit::{Failure, OK};
use crate::output::{self, human};
use crate::settings;

/// The lock that is taken and given back to see that it works.
const PROBE: &str = "lockkeeper-doctor/probe";

pub(super) async fn doctor(args: Doctor) -> Result<u8, Failure> {
    let given = args.url.as_deref().or(args.service.locks.as_deref());
    let url = settings::locks_url(given, args.service.local)?;
    let locks = settings::connect(&url, "doctor").await?;
    let can = locks.capabilities().clone();

    let began = Instant::now();
    let guard = locks.mutex(PROBE).wait(Wait::For(Duration::from_secs(5))).acquire().await?;
    let acquired = began.elapsed();
    let token = guard.token_hint();
    let began = Instant::now();
    guard.release().await.map_err(|error| Failure::new(crate::exit::UNAVAILABLE, error.to_string()))?;
    let released = began.elapsed();

    let settings = match can.backend {
        "file" => directory(&url),
        _ => Vec::new(),
    };
    let promise = |promise: &Promise| match promise {
        Promise::Kept => "kept",
        Promise::KeptIf(_) => "kept if",
        Promise::NotKept(_) => "not kept",
    };
    if args.json {
        let abilities: serde_json::Map<String, Value> =
            can.abilities().into_iter().map(|(name, has)| (name.to_owned(), has.into())).collect();
        let promises: serde_json::Map<String, Value> = can
            .promises
            .iter()
            .enumerate()
            .map(|(i, p)| (format!("P{}", i + 1), json!({ "is": promise(p), "says": p.to_string() })))
            .collect();
        output::json(&json!({
            "url": url, "backend": can.backend, "excludes": can.reach.to_string(), "abilities": abilities,
            "promises": promises, "acquire_us": acquired.as_micros() as u64, "release_us": released.as_micros() as u64,
            "token": token.map(lockkeeper::Token::get), "settings": settings,
        }))?;
        return Ok(OK);
    }
    output::line(format!("{url}: excludes {}", can.reach))?;
    match can.fencing {
        Fencing::Tokens { source } => {
            output::line(format!("tokens: {source}; the last one is {}", show(token)))?
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
    for (index, promise) in can.promises.iter().enumerate() {
        output::line(format!("P{:<3} {promise}", index + 1))?;
    }
    for said in settings {
        output::line(format!("here: {said}"))?;
    }
    Ok(OK)
}

/// What the place of a lock directory makes of the promises.
fn directory(url: &str) -> Vec<String> {
    let Ok(parsed) = url.parse::<Url>() else { return Vec::new() };
    let path = Path::new(&parsed.path);
    let Ok(metadata) = path.metadata() else {
        return vec![format!("`{}` can't be looked at", path.display())];
    };
    let mode = metadata.permissions().mode() & 0o7777;
    let who = match mode {
        _ if mode & 0o002 != 0 => "every user of this host may hold, break and destroy these locks",
        _ if mode & 0o020 != 0 => "its owner and group may hold, break and destroy these locks",
        _ => "only its owner may use these locks",
    };
    let mut said = vec![format!("mode {mode:04o}, owner {}: {who}", metadata.uid())];
    if let Some(kind) = filesystem(path) {
        let spoils = match kind.as_str() {
            "tmpfs" | "ramfs" => {
                ": gone after a reboot; tokens then go on above by the wall clock, and a lock that is kept closed opens"
            }
            "overlay" => {
                ": a container's own layer; other containers are not excluded, and it goes with the container"
            }
            _ => "",
        };
        said.push(format!("filesystem {kind}{spoils}"));
    }
    said
}

/// The type of the filesystem that a path is on, as the kernel calls it.
fn filesystem(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        // Spaces and the like are written as octal escapes; such mount points are not looked for.
        let place = place.split(' ').nth(4)?;
        path.starts_with(place).then(|| (place.len(), kind.split(' ').next().unwrap_or_default().to_owned()))
    });
    // The last of equals is on top.
    mounted.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
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
