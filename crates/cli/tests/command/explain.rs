//! `explain`: the stories, played and listed.

use lockkeeper_cli::exit;
use lockkeeper_hazard::{KEYS, STORIES};
use serde_json::Value;

use crate::support::TestDir;

const PAGE: &str = include_str!("../../../../docs/hazards.md");

#[test]
fn stories_are_listed_and_played() {
    let test = TestDir::new();
    let list = test.ran("explain");
    assert!(STORIES.iter().all(|story| list.out.contains(story.name)) && list.code == 0, "{list:?}");
    let lost = test.ran("explain paused-holder --pause-for 20s");
    assert_eq!(lost.code, 0, "{lost:?}");
    assert!(
        lost.out.ends_with("LOST  the balance is 70 instead of 20: B's withdrawal of 50 is lost\n"),
        "{lost:?}"
    );
    let better = "lockkeeper explain paused-holder --pause-for 20s --fence write";
    assert!(lost.err.contains(better), "{lost:?}");
    let kept = test.ran(better.trim_start_matches("lockkeeper "));
    assert!(kept.out.contains("refuses A: token 1 is older than 2") && kept.err.is_empty(), "{kept:?}");
    let json: Value = serde_json::from_str(&test.ran("explain enter --fence none --json").out).unwrap();
    assert_eq!(
        (&json["name"], &json["trace"]["outcome"]["verdict"]),
        (&"enter".into(), &"lost".into()),
        "{json}"
    );
}

#[test]
fn settings_that_can_not_be_used_are_refused() {
    let test = TestDir::new();
    for (words, parts) in [
        ("explain paused-hold", &["paused-holder"][..]),
        ("explain paused-holder --ttl 1s", &["`ttl` is `1s`", "2s to 1m"]),
        ("explain redlock-clock --fence enter", &["Redlock issues no tokens"]),
        ("explain paused-holder --drift -60", &["`drift` is `-60`"]),
        ("explain --fence enter", &["STORY"]),
    ] {
        let ended = test.ran(words);
        assert_eq!(ended.code, i32::from(exit::USAGE), "{ended:?}");
        assert!(parts.iter().all(|part| ended.err.contains(part)), "{ended:?}");
    }
    // Every setting is an option.
    for key in KEYS {
        let ended = test.ran(&format!("explain paused-holder --{key} nonsense"));
        assert!(ended.err.contains(&format!("`{key}` is `nonsense`")), "{ended:?}");
    }
}

/// The page's table is what the command says, and its excerpt what a play shows.
#[test]
fn page_says_how_the_stories_end() {
    let test = TestDir::new();
    let mut rows = 0;
    for line in test.ran("explain --all").out.lines().skip(1) {
        let mut words = line.split_whitespace();
        let (story, fence) = (words.next().unwrap(), words.next().unwrap());
        let end = words.collect::<Vec<_>>().join(" ");
        assert!(PAGE.contains(&format!("| `{story}` | {fence} | {end} |\n")), "{line}");
        rows += 1;
    }
    assert_eq!(rows, PAGE.lines().filter(|line| line.starts_with("| `")).count());
    let played = test.ran("explain paused-holder").out;
    let (_, excerpt) = PAGE.split_once("```text\n").unwrap();
    let (excerpt, _) = excerpt.split_once("```").unwrap();
    assert!(played.contains(excerpt), "{played}");
}
