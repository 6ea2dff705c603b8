//! Cached holds: with every rule no promise breaks in any order of events, and each rule is necessary.

use std::fs;
use std::path::Path;

use lockkeeper_model::{CachedModel, CachedRule, explore, path};

/// Two clients, the first of which caches.
const SMALL: CachedModel =
    CachedModel { clients: 2, asks: 2, spare: 1, all_cache: false, stalls: true, without: None };

fn holds(model: CachedModel, states: usize, must_reach: &[&str]) {
    let report = explore(model, &[], 1);
    assert!(report.broken.is_empty(), "{model:?} breaks {:#?}", report.broken);
    for event in must_reach {
        assert!(report.reached.contains(event), "{model:?} never reached: {event}");
    }
    assert_eq!(report.states, states, "{model:?} has another number of states than before");
}

const GRANTED: &str = "a try is put off and granted";
const BUSY: &str = "a try is put off and busy";
const OUTLIVES: &str = "a section outlives its hold";
const EARLY: &str = "a recall comes before the grant";
const USED_UP: &str = "a block is used up";

/// Three clients: tries at the same time, and a try behind a waiter.
const THREE: CachedModel = CachedModel { clients: 3, stalls: false, ..SMALL };
/// Both clients cache, with a longer block.
const BOTH: CachedModel = CachedModel { spare: 2, all_cache: true, stalls: false, asks: 3, ..SMALL };

#[test]
fn a_holder_that_caches_and_a_client_that_waits_or_tries() {
    holds(SMALL, 1_435_585, &[GRANTED, BUSY, OUTLIVES, EARLY, USED_UP]);
}

#[test]
fn two_clients_that_wait_or_try_at_the_same_time() {
    holds(THREE, 50_094, &[GRANTED, BUSY, USED_UP]);
}

#[test]
fn two_holders_that_cache() {
    holds(BOTH, 21_459, &[GRANTED, BUSY, USED_UP]);
}

/// The model in which promises break without this rule, and the promises that break.
fn missed(rule: CachedRule) -> (CachedModel, &'static [&'static str]) {
    match rule {
        CachedRule::FreshToken => (SMALL, &["P2"]),
        CachedRule::WholeBlock => (SMALL, &["P2"]),
        CachedRule::NoneAfterRecall => (SMALL, &["P8"]),
        CachedRule::ValidLease => (SMALL, &["P2", "P5"]),
        CachedRule::PutOff => (SMALL, &["C6"]),
        CachedRule::ToldAgain | CachedRule::EarlyRecall | CachedRule::SettledEnds => (SMALL, &["C4"]),
    }
}

/// The lines that `docs/lease-rules.md` must contain for a rule.
fn lines(rule: CachedRule) -> Vec<String> {
    let (world, promises) = missed(rule);
    let report = explore(CachedModel { without: Some(rule), ..world }, promises, 1);
    let line = |promise: &&str| {
        let broken = report.broken.get(promise);
        let actions = broken.unwrap_or_else(|| panic!("without {}: {promise} is never broken", rule.name()));
        format!("`{}`, {promise}: {}", rule.name(), path(actions))
    };
    promises.iter().map(line).collect()
}

#[test]
fn leaving_out_a_rule_breaks_a_promise_as_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lease-rules.md");
    let page = fs::read_to_string(page).expect("the page of the lease rules");
    let all: Vec<String> = CachedRule::ALL.into_iter().flat_map(lines).collect();
    let missing: Vec<&String> = all.iter().filter(|line| !page.contains(line.as_str())).collect();
    let missing: String = missing.into_iter().map(|line| format!("- {line}\n")).collect();
    assert!(missing.is_empty(), "docs/lease-rules.md does not say:\n{missing}");
}
