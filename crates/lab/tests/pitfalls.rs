//! `lockkeeper-lab pitfalls`: each mistake loses something, and its right way nothing, as docs/pitfalls.md
//! says.

use std::process::{Command, Output};

use lockkeeper_lab::PITFALLS;
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/pitfalls.md");

/// Runs `lockkeeper-lab pitfalls`; returns its exit code and both outputs.
fn pitfalls(words: &[&str]) -> (Option<i32>, String, String) {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-lab"));
    command.arg("pitfalls").args(words).env("HOME", place.path()).env_remove("LOCKKEEPER_URL");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

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
    let (code, out, err) = pitfalls(&[name, "--json"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let played: Value = serde_json::from_str(&out).unwrap();
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
    let (code, list, err) = pitfalls(&[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(PITFALLS.iter().all(|pitfall| list.contains(pitfall.title)), "{list}");
    let (code, out, err) = pitfalls(&["no-fnce"]);
    assert_eq!((code, out.as_str(), err.lines().count()), (Some(64), "", 1), "{err}");
    assert!(["lockkeeper-lab: ", "'no-fnce'", "no-fence"].iter().all(|words| err.contains(words)), "{err}");
    let (_, _, err) = pitfalls(&["no-fnce", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&err).unwrap()["code"], 64, "{err}");
}

#[test]
fn one_play_for_people_has_both_traces_and_their_outcomes() {
    let (code, shown, err) = pitfalls(&["fork"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for words in [
        "A lock that is held across a fork\n",
        "  LOST  the job does not",
        "The right way\n",
        "  kept  the job",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn page_has_the_programs_as_they_are() {
    let (_, rest) = PAGE.split_once("<!-- made by `lockkeeper pitfalls --markdown` -->\n").unwrap();
    let (programs, _) = rest.split_once("<!-- end -->").unwrap();
    let made = lockkeeper_lab::markdown();
    assert!(programs.trim() == made.trim(), "put the output of `lockkeeper pitfalls --markdown` there");
}
