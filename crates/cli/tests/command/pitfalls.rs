//! `pitfalls`: each mistake loses something, and its right way nothing, as docs/pitfalls.md says.

use lockkeeper_cli::exit;
use lockkeeper_pitfalls::PITFALLS;
use serde_json::Value;

use crate::support::{CommandExt, Place};

const PAGE: &str = include_str!("../../../../docs/pitfalls.md");

/// One test for each pitfall, so that they run beside each other.
macro_rules! plays {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                is_as_described($name);
            }
        )*

        #[test]
        fn each_pitfall_is_played_by_a_test() {
            let mut played = vec![$($name),*];
            let mut all: Vec<_> = PITFALLS.iter().map(|pitfall| pitfall.name).collect();
            played.sort_unstable();
            all.sort_unstable();
            assert_eq!(played, all);
        }
    };
}

plays! {
    advisory_through_pooler: "advisory-through-pooler",
    check_then_act: "check-then-act",
    clock_step: "clock-step",
    fail_over: "fail-over",
    fork: "fork",
    leader_does_not_notice: "leader-does-not-notice",
    no_fence: "no-fence",
    no_ttl: "no-ttl",
    pid_file: "pid-file",
    release_of_anothers: "release-of-anothers",
    result_ignored: "result-ignored",
    row_without_expiry: "row-without-expiry",
    short_ttl: "short-ttl",
    slow_call: "slow-call",
    thundering_herd: "thundering-herd",
    two_services: "two-services",
    watchdog: "watchdog",
    write_only_fence: "write-only-fence",
}

#[track_caller]
fn is_as_described(name: &str) {
    let ended = Place::new().bare(["pitfalls", name, "--json"]).fed(b"");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let played: Value = serde_json::from_str(&ended.out).unwrap();
    let (wrong, right) = (&played["wrong"], &played["right"]);
    assert_eq!((&wrong["lost"], &right["lost"]), (&true.into(), &false.into()), "{played}");
    for play in [wrong, right] {
        let trace = play["trace"].as_array().unwrap();
        assert!(trace.iter().any(|line| line["kind"] == "step"), "{play}");
    }
    let row = format!(
        "](#{}) | {} | {} |",
        anchor(played["title"].as_str().unwrap()),
        wrong["outcome"].as_str().unwrap(),
        right["outcome"].as_str().unwrap()
    );
    assert!(PAGE.contains(&format!("| [`{name}`{row}")), "the table of docs/pitfalls.md lacks {row}");
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || [' ', '-'].contains(it));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn list_names_all_and_an_unknown_name_is_refused() {
    let list = Place::new().bare(["pitfalls"]).fed(b"");
    assert_eq!(list.code, 0, "{}", list.err);
    assert!(PITFALLS.iter().all(|pitfall| list.out.contains(pitfall.title)), "{}", list.out);
    let unknown = Place::new().bare(["pitfalls", "no-fnce"]).fed(b"");
    unknown.is_one_line(exit::USAGE, &["no-fnce", "no-fence"]);
}

#[test]
fn one_play_for_people_has_both_traces_and_their_outcomes() {
    let shown = Place::new().bare(["pitfalls", "fork"]).fed(b"");
    assert_eq!((shown.code, shown.err.as_str()), (0, ""));
    for words in [
        "A lock that is held across a fork\n",
        "  LOST  the job does not",
        "The right way\n",
        "  kept  the job",
    ] {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
}

#[test]
fn page_has_the_programs_as_they_are() {
    let (_, rest) = PAGE.split_once("<!-- made by `lockkeeper pitfalls --markdown` -->\n").unwrap();
    let (programs, _) = rest.split_once("<!-- end -->").unwrap();
    let made = lockkeeper_pitfalls::markdown();
    assert!(programs.trim() == made.trim(), "put the output of `lockkeeper pitfalls --markdown` there");
}
