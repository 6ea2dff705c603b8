//! The stories end as they say, and no settings break a play.

use super::*;

fn play_with(name: &str, changes: &[(&str, &str)]) -> Trace {
    let mut settings = story(name).unwrap().settings();
    for (key, value) in changes {
        settings.set(key, value).unwrap();
    }
    let trace = play(&settings).unwrap();
    is_sound(&trace);
    trace
}

/// What holds for every trace.
#[track_caller]
fn is_sound(trace: &Trace) {
    let text = || {
        let steps: Vec<String> = trace.steps.iter().map(step_line).collect();
        format!("{:?}\n{}\n{}", trace.settings, steps.join("\n"), outcome_line(&trace.outcome))
    };
    assert!(trace.steps.is_sorted_by_key(|step| step.at_ms), "{}", text());
    assert!(trace.steps.iter().all(|step| step.at_ms <= trace.end_ms), "{}", text());
    for span in &trace.spans {
        assert!(span.from_ms <= span.to_ms && span.to_ms <= trace.end_ms, "{span:?} {}", text());
    }
    // Every program ends: none waits for ever, and none is cut off by the limits of a play.
    for lane in [Lane::A, Lane::B] {
        let last = trace.steps.iter().rev().find_map(|step| step.phase.filter(|_| step.lane == lane));
        assert!(matches!(last, Some(Phase::Done | Phase::Dead | Phase::GaveUp)), "{last:?} {}", text());
    }
    // P1: the table never has two exclusive holds at once.
    let held: Vec<&Span> = trace.spans.iter().filter(|span| span.lane == Lane::Locks).collect();
    let is_shared = trace.settings.others == Others::Readers;
    for (index, one) in held.iter().enumerate().filter(|_| !is_shared) {
        for other in &held[index + 1..] {
            assert!(one.to_ms <= other.from_ms || other.to_ms <= one.from_ms, "{one:?} {other:?} {}", text());
        }
    }
    // P3: with `enter`, no setting loses an update.
    if trace.settings.fence == Fence::Enter {
        assert_eq!(trace.outcome.verdict, DataVerdict::Kept, "{}", text());
    }
}

/// Plays a story with each fence, and returns verdict and balance of each.
fn outcomes(name: &str) -> Vec<(DataVerdict, i64)> {
    let fences = story(name).unwrap().fences();
    let outcome = |fence: Fence| play_with(name, &[("fence", fence.name())]).outcome;
    fences.into_iter().map(outcome).map(|outcome| (outcome.verdict, outcome.balance)).collect()
}

#[test]
fn stories_end_as_they_say() {
    use DataVerdict::{Kept, Lost, Torn};
    // By fence: none, write, enter.
    assert_eq!(outcomes("paused-holder"), [(Lost, 70), (Kept, 20), (Kept, 20)]);
    assert_eq!(outcomes("write-only"), [(Lost, 50), (Lost, 50), (Kept, 20)]);
    assert_eq!(outcomes("enter"), [(Lost, 50), (Lost, 50), (Kept, 20)]);
    assert_eq!(outcomes("delayed-packet"), [(Lost, 70), (Kept, 50), (Kept, 50)]);
    assert_eq!(outcomes("redlock-clock"), [(Lost, 50)]);
    assert_eq!(outcomes("renewed-lease"), [(Kept, 20), (Kept, 20), (Kept, 20)]);
    assert_eq!(outcomes("late-writer"), [(Torn, 70), (Torn, 70), (Kept, 70)]);
    assert_eq!(outcomes("slow-clock"), [(Lost, 50), (Lost, 50), (Kept, 20)]);
    assert_eq!(outcomes("lock-delay"), [(Kept, 20), (Kept, 20), (Kept, 20)]);
}

/// Without a step of a clock, Redlock's client notices by its own that its keys are gone: a grant that
/// arrives late is no lock.
#[test]
fn grant_of_redlock_that_arrives_after_its_keys_have_expired_is_not_used() {
    let late = [("step", "0s"), ("ttl", "10s"), ("cut-at", "700ms"), ("cut-for", "12s")];
    let trace = play_with("redlock-clock", &late);
    assert_eq!((trace.outcome.verdict, trace.outcome.balance), (DataVerdict::Kept, 20));
}

/// Anything that can be chosen is played to its end, within its bounds.
#[test]
fn random_settings_lead_to_sound_traces() {
    let mut dice = fastrand::Rng::with_seed(22);
    let time = |dice: &mut fastrand::Rng, max: u64| {
        let ms = if dice.bool() { 0 } else { dice.u64(0..=max) };
        format!("{ms}ms")
    };
    let mut verdicts = std::collections::BTreeSet::new();
    for _ in 0..3_000 {
        let mut settings = Settings::default();
        let max = if dice.u8(..) < 40 { 120_000 } else { 20_000 };
        let values = [
            ("service", if dice.u8(..) < 30 { "redlock" } else { "lockkeeper" }.to_owned()),
            ("others", if dice.bool() { "writer" } else { "readers" }.to_owned()),
            ("fence", Fence::ALL[dice.usize(0..3)].name().to_owned()),
            ("ttl", format!("{}ms", dice.u64(2_000..=60_000))),
            ("lock-delay", time(&mut dice, max)),
            ("linger", time(&mut dice, 2_000)),
            ("work", time(&mut dice, max)),
            (
                "pause",
                ["never", "before-read", "before-work", "before-check", "before-write"][dice.usize(0..5)]
                    .to_owned(),
            ),
            ("pause-for", time(&mut dice, max)),
            ("drift", dice.i64(-50..=50).to_string()),
            ("cut-at", time(&mut dice, max)),
            ("cut-for", time(&mut dice, max)),
            ("write-delay", time(&mut dice, max)),
            ("crash", (dice.u8(..) < 60).to_string()),
            ("step-at", time(&mut dice, max)),
            ("step", time(&mut dice, max)),
        ];
        assert_eq!(values.each_ref().map(|(key, _)| *key).len(), KEYS.len());
        for (key, value) in &values {
            settings.set(key, value).unwrap();
        }
        match play(&settings) {
            Ok(trace) => {
                is_sound(&trace);
                assert_eq!(play(&settings).unwrap(), trace, "the same settings, the same trace");
                verdicts.insert(format!("{:?}", trace.outcome.verdict));
            }
            Err(error) => assert!(matches!(error, SettingsError::Together(_)), "{error}"),
        }
    }
    assert_eq!(verdicts.len(), 3, "{verdicts:?}");
}

#[test]
fn settings_that_can_not_be_used_are_refused_in_words() {
    let refusal = |pairs: &[(&str, &str)]| Settings::of_query(pairs).unwrap_err().to_string();
    for (pairs, words) in [
        (&[("story", "nothing")][..], "one of paused-holder, write-only"),
        (&[("tll", "10s")], "there is no setting `tll`; there are: service"),
        (&[("ttl", "1s")], "`ttl` is `1s`; it must be a duration from 2s to 1m"),
        (&[("ttl", "10")], "as `10s`"),
        (&[("drift", "90")], "from -50 to 50"),
        (&[("crash", "yes")], "one of true, false"),
        (&[("story", "redlock-clock"), ("fence", "enter")], "Redlock issues no tokens"),
        (&[("service", "redlock"), ("others", "readers")], "no shared locks"),
        (&[("step", "10s")], "trusts no clock"),
        (&[("linger", "20s")], "must not be longer than `ttl`"),
    ] {
        assert!(refusal(pairs).contains(words), "{}", refusal(pairs));
    }
    assert!(refusal(&[(&"x".repeat(10_000), "1")]).len() < 400);
    assert!(refusal(&[("ttl", &"x".repeat(10_000))]).len() < 300);
}

/// The single file has no link to a file beside it, and its data end where they should.
#[test]
fn single_file_needs_nothing_else() {
    let page = page::single_file();
    assert!(!page.contains("hazard/hazard."), "a link is left");
    assert!(!page.lines().any(|line| line.starts_with("import ") || line.starts_with("export ")));
    let (_, data) = page.split_once("id=\"recorded\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let stories: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(stories, page::recorded());
    for (_, script) in page::SCRIPTS {
        for line in script.lines().filter(|line| line.starts_with("import")) {
            assert!(line.starts_with("import {") && line.ends_with("';"), "one line each: {line}");
        }
    }
}
