//! The pages for browsers in a real one: Debian's Chromium, driven by the scripts in `tests/browser`.
//!
//! With the name of a folder in the environment variable `PICTURES`, the scripts keep pictures there: so
//! those of `docs/images` are made.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockkeeper_rig::find;

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
