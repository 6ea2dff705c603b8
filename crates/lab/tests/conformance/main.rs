//! `lockkeeper-lab conformance`: the Rust library keeps each promise, and a driver with a mistake is found.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use lockkeeper_lab::conformance::languages::Language;
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_lockkeeper-lab");

/// Runs `lockkeeper-lab conformance --json`; returns its exit code, the verdicts, and its messages.
fn conformance(words: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let mut command = Command::new(LAB);
    command.args(["conformance", "--json"]).args(words).env_remove("LOCKKEEPER_URL");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let verdicts = String::from_utf8(stdout).unwrap();
    let verdicts = verdicts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (status.code(), verdicts, String::from_utf8(stderr).unwrap())
}

/// The promises with this verdict.
fn promises<'verdicts>(verdicts: &'verdicts [Value], verdict: &str) -> Vec<&'verdicts str> {
    let with = verdicts.iter().filter(|it| it["verdict"] == verdict);
    with.map(|it| it["promise"].as_str().unwrap()).collect()
}

#[test]
fn rust_library_keeps_each_promise() {
    let (code, verdicts, err) = conformance(&["--driver", &format!("{LAB} driver")]);
    assert_eq!(code, Some(0), "{err}: {verdicts:#?}");
    assert_eq!(promises(&verdicts, "not claimed"), ["P3", "P6"]);
    let held = ["protocol", "P1", "P2", "P4", "P5", "P7", "P8", "P9", "P10", "P11", "P12"];
    assert_eq!(promises(&verdicts, "held"), held, "{verdicts:#?}");
}

/// The clients in all languages exclude each other, and each keeps its promises beside the others.
#[test]
fn clients_of_all_languages_keep_each_promise() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The native modules were built with the tests of their packages.
    let built = std::env::current_exe().unwrap();
    let driver = |language: Language| language.driver(place.path(), built.parent().unwrap()).unwrap();
    let mut commands = vec![format!("{LAB} driver")];
    commands.extend(Language::ALL.map(driver));
    let drivers: Vec<&str> = commands.iter().flat_map(|command| ["--driver", command]).collect();
    let (code, verdicts, err) = conformance(&drivers);
    assert_eq!(code, Some(0), "{err}: {verdicts:#?}");
    assert_eq!(promises(&verdicts, "not claimed"), ["P3", "P6"]);
}

/// A node of our own service.
struct Node {
    process: Child,
    url: String,
    _data: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut process = Command::new(Path::new(LAB).with_file_name("lockkeeper"))
            .args(["serve", "--listen", "127.0.0.1:0", "--json", "--data"])
            .arg(data.path().join("data"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("`cargo xtask test` builds `lockkeeper`");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let serves: Value = serde_json::from_str(&line).unwrap();
        Self { process, url: serves["locks"].as_str().unwrap().to_owned(), _data: data }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wrong(mistake: &str) -> String {
    let filter = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/wrong_driver.py");
    format!("python3 {} {mistake} {LAB} driver", filter.display())
}

/// Plays the scenarios about `played`; `broken` must be found, for a reason that has these words.
#[track_caller]
fn is_found(mistake: &str, played: &str, broken: &str, words: &str, options: &[&str]) {
    let driver = wrong(mistake);
    let arguments = ["--driver", &driver, "--promise", played, "--patience", "5"];
    let (code, verdicts, err) = conformance(&[&arguments, options].concat());
    assert_eq!(code, Some(1), "{err}: {verdicts:#?}");
    let verdict = verdicts.iter().find(|it| it["promise"] == broken).unwrap();
    let texts = verdict["broken"].as_array().unwrap();
    assert!(texts.iter().any(|text| text.as_str().unwrap().contains(words)), "{verdicts:#?}");
}

/// One test for each mistake that one node is enough for.
macro_rules! mistakes {
    ($($test:ident: $mistake:literal, $played:literal, $broken:literal, $words:literal;)*) => {
        $(
            #[test]
            fn $test() {
                let node = Node::start();
                is_found($mistake, $played, $broken, $words, &["--locks", &node.url]);
            }
        )*
    };
}

mistakes! {
    a_driver_that_ignores_busy_is_found: "ignores-busy", "P1", "P1", "answers that it holds";
    a_driver_with_one_token_is_found: "one-token", "P2", "P2", "was granted after";
    a_driver_with_tokens_of_mutexes_only_is_found: "no-other-tokens", "P2", "P2", "the service has tokens";
    a_driver_that_does_not_renew_is_found: "no-renewal", "P4", "P4", "for 2.5 ttls";
    a_driver_that_releases_again_is_found: "releases-again", "P4", "P4", "to a second release";
    a_driver_that_frees_by_name_is_found: "frees-by-name", "P4", "P4", "released twice";
    a_driver_that_ends_with_1_is_found: "ends-with-1", "P4", "P4", "and not with 0";
    a_driver_that_leaves_holds_is_found: "leaves-holds", "P4", "P4", "is held or waited for";
    a_driver_that_is_never_lost_is_found: "never-lost", "P5", "P5", "says that it still holds";
    a_driver_that_reports_no_loss_is_found: "no-event", "P5", "P5", "has not reported its loss";
    a_driver_with_a_late_deadline_is_found: "long-validity", "P1", "P5", "longer than its ttl";
    a_driver_that_ignores_cancel_is_found: "ignores-cancel", "P7", "P7", "has not answered";
    a_driver_that_leaves_its_place_is_found: "asks-anew", "P8", "P8", "has not answered";
    a_driver_that_accepts_all_is_found: "accepts-all", "P11", "P11", "answers that it holds";
    a_driver_that_answers_twice_is_found: "answers-twice", "P8", "protocol", "not due";
    a_driver_that_loses_what_it_never_had_is_found: "lost-unknown", "P8", "protocol", "never granted";
    a_driver_that_writes_no_utf8_is_found: "not-utf8", "P8", "protocol", "not UTF-8";
}

/// One test for each mistake that needs faults of the service, or between it and the client.
macro_rules! mistakes_under_faults {
    ($($test:ident: $mistake:literal, $played:literal, $broken:literal, $words:literal;)*) => {
        $(
            #[test]
            fn $test() {
                is_found($mistake, $played, $broken, $words, &[]);
            }
        )*
    };
}

mistakes_under_faults! {
    a_driver_that_is_lost_late_is_found: "late-loss", "P5", "P5", "holds what another one has";
    a_driver_that_reports_late_is_found: "late-event", "P5", "P5", "after the next grant";
    a_driver_whose_session_ends_with_a_connection_is_found:
        "lost-with-connection", "P9", "P9", "the leader was killed";
    a_driver_that_grants_by_itself_is_found: "grants-unacknowledged", "P10", "P10", "said to hold until";
    a_driver_that_calls_the_unknown_busy_is_found: "unknown-is-busy", "P12", "P12", "answers Busy";
    a_driver_that_calls_an_unseen_grant_late_is_found:
        "unknown-is-not-in-time", "P12", "P12", "granted while it was cut off";
}

#[test]
fn a_driver_that_can_not_be_played_is_refused() {
    for (driver, words) in [
        ("exit 3", "has ended"),
        ("echo hello; sleep 60", "has no first line"),
        (r#"echo '{"driver":"x","version":"1","protocol":99,"schemes":[],"modes":[]}'; cat"#, "protocol 99"),
        (r#"echo '{"driver":"x","version":"1","protocol":1,"schemes":["ftp"],"modes":[]}'; cat"#, "ftp"),
    ] {
        let (code, verdicts, err) = conformance(&["--driver", driver]);
        assert_eq!((code, verdicts.len()), (Some(78), 0), "{err}");
        assert!(err.contains(words), "{words}: {err}");
    }
}
