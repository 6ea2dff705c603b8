//! Each rule except `expiry-round` is necessary: without it a promise breaks, and `docs/lease-rules.md` shows
//! the path, word for word.

use std::fs;
use std::path::Path;

use lockkeeper_model::{Model, Rule, explore, path};

/// Sessions expire only after their ttl without a renewal.
const SILENCE: Model = Model {
    leaders: 2,
    streams: 2,
    calls: 2,
    expiry: true,
    linger: false,
    breaks: false,
    drops: false,
    middlebox: false,
    without: None,
};
/// Sessions also expire by `linger`, and leaders end streams.
const LINGER: Model = Model { linger: true, drops: true, ..SILENCE };
/// An operator breaks a hold, and sessions do not expire.
const BREAK: Model = Model { expiry: false, breaks: true, ..SILENCE };

/// The model in which promises break without this rule, and the promises that break. `None`: no promise
/// breaks with two or three leaders; `docs/lease-rules.md` gives the reason to keep the rule.
fn missed(rule: Rule) -> Option<(Model, &'static [&'static str])> {
    match rule {
        Rule::Round | Rule::LaterRound => Some((SILENCE, &["P5", "P6"])),
        Rule::FirstEntry | Rule::NothingAfterEnd | Rule::StampBeforeSend | Rule::Margin => {
            Some((SILENCE, &["P5"]))
        }
        Rule::FullTtl | Rule::ClockAfterInput => Some((SILENCE, &["P5", "P9"])),
        Rule::ExpiryDrain | Rule::StallsDontCount => Some((SILENCE, &["P9"])),
        Rule::ClientsCloseOnly => Some((LINGER, &["P5", "P9"])),
        Rule::ClientCuts | Rule::NewestAttach => Some((LINGER, &["P5"])),
        Rule::Floor => Some((LINGER, &["P9"])),
        Rule::NamesRevoked | Rule::RevokedWaits => Some((BREAK, &["P4"])),
        Rule::ExpiryRound => None,
    }
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lease-rules.md");
    fs::read_to_string(path).expect("the page of the lease rules")
}

/// The lines that `docs/lease-rules.md` must contain for a rule.
fn lines(rule: Rule) -> Vec<String> {
    let Some((world, promises)) = missed(rule) else { return Vec::new() };
    let report = explore(Model { without: Some(rule), ..world }, promises, 1);
    let line = |promise: &&str| {
        let broken = report.broken.get(promise);
        let actions = broken.unwrap_or_else(|| panic!("without {}: {promise} is never broken", rule.name()));
        format!("`{}`, {promise}: {}", rule.name(), path(actions))
    };
    promises.iter().map(line).collect()
}

#[test]
fn leaving_out_a_rule_breaks_a_promise_as_documented() {
    let page = page();
    let all: Vec<String> = Rule::ALL.into_iter().flat_map(lines).collect();
    let missing: Vec<&String> = all.iter().filter(|line| !page.contains(line.as_str())).collect();
    let missing: String = missing.into_iter().map(|line| format!("- {line}\n")).collect();
    assert!(missing.is_empty(), "docs/lease-rules.md does not say:\n{missing}");
}

/// A deposed leader can't commit its proposals, so in this model the quorum read of an expiry prevents
/// nothing by itself.
#[test]
fn expiry_without_a_quorum_read_breaks_no_promise_in_the_model() {
    let two = Model { without: Some(Rule::ExpiryRound), ..SILENCE };
    let three = Model { leaders: 3, calls: 1, ..two };
    for world in [two, three] {
        assert!(explore(world, &["P4", "P5", "P6", "P9"], 1).broken.is_empty(), "{world:?}");
    }
    assert!(page().contains("`expiry-round`"), "docs/lease-rules.md says why it stays");
}

/// The one exception to P5, as documented: a middlebox closes the stream, and the client, which does not
/// notice, still relies on its lease.
#[test]
fn with_linger_a_middlebox_can_break_p5_and_nothing_else() {
    let world = Model { calls: 1, drops: false, middlebox: true, ..LINGER };
    let all = explore(world, &["P4", "P5", "P6", "P9"], 1).broken;
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), ["P5"]);
    let shortest = explore(world, &["P5"], 1).broken;
    let line = format!("`linger`, P5: {}", path(&shortest["P5"]));
    assert!(page().contains(&line), "docs/lease-rules.md does not say:\n- {line}");
}
