//! The pages for browsers in a real one: Debian's Chromium, driven by the scripts in `tests/browser`.
//!
//! With the name of a folder in the environment variable `PICTURES`, the scripts keep pictures there: so
//! those of `docs/images` are made.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockkeeper_rig::find;
use serde_json::json;

use crate::node::Node;
use crate::support::{CommandExt, TestDir};

/// A browser beside other tests on two cores takes its time.
const BROWSER_PATIENCE: Duration = Duration::from_secs(240);

/// Runs a script to its end. It fails if the page has logged an error, violated its policy or called another
/// host.
fn run(script: &str, words: &[&str]) {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign/npm-browser/node_modules");
    assert!(
        libraries.join("playwright-core").is_dir(),
        "playwright-core is missing; `cargo xtask test` installs it"
    );
    let browser = find("chromium").expect("chromium is missing: `apt-get install chromium`");
    let ended = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser").join(script))
        .args(words)
        .env("LIBRARIES", libraries)
        .env("CHROMIUM", browser)
        .started()
        .ended_within(BROWSER_PATIENCE);
    assert_eq!(ended.code, 0, "{script}: {}\n{}", ended.out, ended.err);
}

#[test]
fn console_shows_locks_as_they_change_and_breaks_holds() {
    let test = TestDir::new();
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    run("console.mjs", &[&node.http()]);
}

#[test]
fn console_begins_with_what_needs_attention() {
    let test = TestDir::new();
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    run("attention.mjs", &[&node.http()]);
}

#[test]
fn console_sorts_its_lists_and_breaks_all_below_a_name() {
    let test = TestDir::new();
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    run("lists.mjs", &[&node.http()]);
}

#[test]
fn console_of_a_follower_shows_the_cluster() {
    let test = TestDir::new();
    let (nodes, _ports) = test.begin_three();
    let status = |node: &Node| {
        let ended = Command::new("curl").args(["-sS", &format!("{}/v1/status", node.http())]).ended();
        serde_json::from_str::<serde_json::Value>(&ended.out).unwrap()
    };
    let follower = nodes.iter().find(|node| status(node)["role"] == "follower").unwrap();
    run("cluster.mjs", &[&follower.http()]);
}

#[test]
fn console_asks_for_a_token_and_shows_what_its_owner_may_see() {
    let test = TestDir::new();
    let made = test.ran("token add shop --file tokens");
    assert_eq!(made.code, 0, "{made:?}");
    std::fs::write(
        test.path("permissions.toml"),
        "[[allow]]\nwho = [\"shop\"]\nactions = [\"acquire\", \"read\"]\nnames = [\"orders\"]\n",
    )
    .unwrap();
    let files = ["--tokens", "tokens", "--permissions", "permissions.toml"];
    let ports = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
    let node = test.begin("data", &[files, ports].concat()).ready();
    run("sign-in.mjs", &[&node.http(), made.out.trim()]);
}

/// Every story is played to its end with every fence, and ends as the command says.
#[test]
fn hazards_are_played_to_their_ends() {
    let test = TestDir::new();
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    let stories = test.ran("explain --json");
    std::fs::write(test.path("stories"), &stories.out).unwrap();
    let page = test.ran("explain --html");
    std::fs::write(test.path("page.html"), &page.out).unwrap();
    let [stories, page] = ["stories", "page.html"].map(|name| test.path(name).display().to_string());
    run("hazard.mjs", &[&node.http(), &stories, &page]);
}

/// A history of eight writers with two violations: an overlap at a lock with a hostile name, and a token that
/// was granted twice.
fn history_with_violations() -> String {
    const MS: u64 = 1_000_000;
    const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";
    let mut lines = Vec::new();
    let mut push = |at: u64, by: &str, mut more: serde_json::Value| {
        (more["at"], more["by"]) = ((at * MS).into(), by.into());
        lines.push((at, more.to_string()));
    };
    let grant = |at: u64, lock: &str, token: u64| {
        json!({
            "event": "granted", "hold": token, "service": "s", "locks": [lock], "mode": "exclusive", "token": token,
            "asked": (at - 2) * MS,
        })
    };
    let end =
        |at: u64, hold: u64| json!({ "event": "ended", "hold": hold, "until": at * MS, "how": "released" });
    let writers: Vec<String> = (0..8).map(|number| format!("worker {number}")).collect();
    for by in writers.iter().map(String::as_str).chain(["early", "late", "chaos"]) {
        push(1, by, json!({ "event": "writer", "format": 1, "clock": "c", "label": "a test" }));
    }
    for turn in 1..=400 {
        let (by, at) = (writers[usize::try_from(turn % 8).unwrap()].as_str(), 10 * turn);
        push(at, by, grant(at, "busy", 1_000 + turn));
        push(at + 9, by, end(at + 8, 1_000 + turn));
    }
    for (at, begins) in [(1_500, true), (1_900, false)] {
        push(at, "chaos", json!({ "event": "fault", "fault": "pause", "target": "early", "begins": begins }));
    }
    push(1_800, "early", grant(1_800, HOSTILE, 101));
    push(1_850, "late", grant(1_850, HOSTILE, 102));
    push(1_870, "late", end(1_869, 102));
    push(1_910, "early", end(1_900, 101));
    push(3_000, "early", grant(3_000, "twice", 7));
    push(3_001, "early", end(3_001, 7));
    push(3_010, "late", grant(3_010, "twice", 7));
    lines.sort();
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}

#[test]
fn page_of_a_history_shows_its_violations() {
    let test = TestDir::new();
    std::fs::write(test.path("history"), history_with_violations()).unwrap();
    let said = test.ran("verify history --html page.html");
    assert!(said.code == 1 && said.out.ends_with("2 violations\n"), "{said:?}");
    run("history.mjs", &[&test.path("page.html").display().to_string()]);
}
