//! `verify`: histories that commands have written, histories with violations, and one that is being written.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{CommandExt, TestDir, wait_until};

/// The exit code of a check that found something.
const VIOLATED: i32 = lockkeeper_cli::exit::NO as i32;

/// A history of one writer on this host's clock.
fn history(lines: &[&str]) -> String {
    let writer = r#"{"at":1,"by":"w","event":"writer","format":1,"clock":"c","label":"test"}"#;
    [writer].iter().chain(lines).map(|line| format!("{line}\n")).collect()
}

const A: &str = r#"{"at":10,"by":"w","event":"granted","hold":1,"service":"s","locks":["x"],"mode":"exclusive","token":5,"asked":9}"#;
const B: &str = r#"{"at":20,"by":"w","event":"granted","hold":2,"service":"s","locks":["x"],"mode":"exclusive","token":6,"asked":12}"#;
const A_ENDS: &str = r#"{"at":31,"by":"w","event":"ended","hold":1,"until":30,"how":"released"}"#;

#[test]
fn history_of_runs_has_no_violation() {
    let test = TestDir::new();
    let path = test.path("history");
    for _ in 0..3 {
        let ended = test.lockkeeper(["run", "x", "--", "true"]).env("LOCKKEEPER_HISTORY", &path).ended();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    }
    let said = test.ran("verify history");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.out.starts_with("3 operations of 3 writers: 3 grants") && said.out.contains("no violation"),
        "{said:?}"
    );
}

#[test]
fn violations_are_shown_with_the_lines_that_prove_them() {
    let test = TestDir::new();
    std::fs::write(test.path("bad"), history(&[A, B, A_ENDS])).unwrap();
    let said = test.ran("verify bad");
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!((said.code, lines.len()), (VIOLATED, 5), "{said:?}");
    assert_eq!(lines[0], "overlap: `x` was held by w with token 5 and by w with token 6 at once");
    assert!(
        lines[1].contains("\"at\":10") && lines[3].contains("\"at\":31") && lines[4].contains("1 violation")
    );
    let said = test.ran("verify bad --json");
    let mut parsed = said.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let violation = parsed.next().unwrap();
    assert_eq!(
        (&violation["violation"], violation["lines"].as_array().unwrap().len()),
        (&"overlap".into(), 3)
    );
    assert_eq!(parsed.next().unwrap()["violations"], 1);
    // Two files are one history.
    std::fs::write(test.path("one"), history(&[A, A_ENDS])).unwrap();
    std::fs::write(test.path("two"), history(&[B]).replace("\"w\"", "\"v\"")).unwrap();
    assert_eq!((test.ran("verify one").code, test.ran("verify two").code), (0, 0));
    assert_eq!(test.ran("verify two one").code, VIOLATED);
    assert_eq!(test.ran("verify bad --show 0").out.lines().count(), 1);
}

#[test]
fn page_has_the_violations_and_their_data() {
    let test = TestDir::new();
    let hostile = "</script><img src=x onerror=alert(1)>";
    let lines = [A, B, A_ENDS].map(|line| line.replace("\"x\"", &format!("{hostile:?}")));
    std::fs::write(test.path("bad"), history(&lines.each_ref().map(String::as_str))).unwrap();
    let plain = test.ran("verify bad");
    let said = test.ran("verify bad --html page.html");
    assert_eq!((said.code, said.out), (VIOLATED, plain.out));
    let page = std::fs::read_to_string(test.path("page.html")).unwrap();
    let text = "<code>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;</code> was held by w with token 5 and by w with \
                token 6 at once";
    assert!(page.contains(text) && !page.contains("<img") && !page.contains("=\"http"), "{page}");
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["violations"][0]["moment"], serde_json::json!([10, 20]));
    assert_eq!((&data["lines"][1]["locks"][0], &data["lines"][1]["token"]), (&hostile.into(), &5.into()));
    // Without a violation there is a page too.
    assert_eq!(test.ran("verify bad --html page.html").code, VIOLATED);
    std::fs::write(test.path("good"), history(&[A, A_ENDS])).unwrap();
    assert_eq!(test.ran("verify good --html page.html").code, 0);
    assert!(std::fs::read_to_string(test.path("page.html")).unwrap().contains("No violation"));
}

#[test]
fn pages_that_can_not_be_written_are_refused() {
    let test = TestDir::new();
    std::fs::write(test.path("good"), history(&[A, A_ENDS])).unwrap();
    let usage = lockkeeper_cli::exit::USAGE;
    test.ran("verify good --html good").is_one_line(usage, &["would overwrite the history `good`"]);
    test.ran("verify /dev/null --html page.html").is_one_line(usage, &["no regular file", "twice"]);
    test.ran("verify good --html missing/page.html")
        .is_one_line(lockkeeper_cli::exit::CANNOT_CREATE, &["missing/page.html"]);
    assert_eq!(test.ran("verify good --html page.html --follow").code, 64);
}

#[test]
fn files_that_are_no_histories_are_refused_with_their_line() {
    let test = TestDir::new();
    std::fs::write(test.path("bad"), history(&[A, "not JSON"])).unwrap();
    test.ran("verify bad")
        .is_one_line(lockkeeper_cli::exit::CONFIG, &["bad: line 3:", "no line of a history"]);
    test.ran("verify missing").is_one_line(lockkeeper_cli::exit::IO, &["missing"]);
    assert_eq!(test.ran("verify").code, 64);
}

#[test]
fn violation_is_told_while_the_history_is_written() {
    let test = TestDir::new();
    let mut file = File::create(test.path("live")).unwrap();
    file.write_all(history(&[A, B]).as_bytes()).unwrap();
    let mut command = test.lockkeeper(["verify", "--follow", "live", "--metrics", "figures.prom"]);
    let mut verify = command.stdout(Stdio::piped()).started();
    let mut lines = BufReader::new(verify.child_mut().stdout.take().unwrap()).lines();
    // Half a line says nothing.
    let (half, rest) = A_ENDS.split_at(30);
    file.write_all(half.as_bytes()).unwrap();
    file.write_all(format!("{rest}\n").as_bytes()).unwrap();
    let told = lines.next().unwrap().unwrap();
    assert!(told.starts_with("overlap: `x` was held"), "{told}");
    let figures = || std::fs::read_to_string(test.path("figures.prom")).unwrap_or_default();
    wait_until("the metrics tell", || figures().contains("\nlockkeeper_verify_violations_total 1\n"));
    verify.signal(Signal::SIGTERM);
    assert!(lines.last().unwrap().unwrap().contains("1 violation"));
    assert_eq!(verify.child_mut().wait().unwrap().code(), Some(VIOLATED));
}

/// The fence of a job writes its decisions down, and `--follow` looks at its marks: those of a backup are
/// told.
#[test]
fn marks_of_a_fence_that_go_back_are_told() {
    let test = TestDir::new();
    let enter = |job: &str| {
        let mut command = test.lockkeeper(["run", "x", "--", "sh", "-c", job]);
        command.env("LOCKKEEPER_URL", format!("file://{}", test.path("locks").display()));
        assert_eq!(command.env("LOCKKEEPER_HISTORY", test.path("history")).ended().code, 0);
    };
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    enter(&format!("{lockkeeper} fence enter stock && cp stock.fence backup"));
    let words = ["verify", "--follow", "history", "--fence", "stock", "--metrics", "figures.prom"];
    let mut verify = test.lockkeeper(words).stdout(Stdio::piped()).started();
    let mut lines = BufReader::new(verify.child_mut().stdout.take().unwrap()).lines();
    let figures = || std::fs::read_to_string(test.path("figures.prom")).unwrap_or_default();
    // A grant, a decision and the mark; and all of them again.
    let checked = |count: u32| {
        let line = format!("\nlockkeeper_verify_operations_total {count}\n");
        wait_until("the marks are read", || figures().contains(&line));
    };
    checked(3);
    enter(&format!("{lockkeeper} fence enter stock"));
    checked(6);
    std::fs::rename(test.path("backup"), test.path("stock.fence")).unwrap();
    let told = lines.next().unwrap().unwrap();
    assert!(told.starts_with("fence-order: the mark of `") && told.contains("had passed before"), "{told}");
    verify.signal(Signal::SIGTERM);
    assert!(lines.last().unwrap().unwrap().contains("1 violation"));
    assert_eq!(verify.child_mut().wait().unwrap().code(), Some(VIOLATED));
}

/// Two real jobs that lock one resource at different services: nothing keeps them apart.
#[test]
fn two_services_for_one_resource_are_told() {
    let test = TestDir::new();
    let job = |service: &str, at: u32| {
        let line = format!(
            r#"echo '{{"at":{at},"by":"{service}","event":"entered","resource":"stock","service":"{service}","lock":"x","token":'$LOCKKEEPER_TOKEN',"asked":{at},"verdict":"accepted"}}' >> history"#
        );
        let mut command = test.lockkeeper(["run", "x", "--", "sh", "-c", &line]);
        command.env("LOCKKEEPER_URL", format!("file://{}", test.path(service).display()));
        assert_eq!(command.env("LOCKKEEPER_HISTORY", test.path("history")).ended().code, 0);
    };
    job("one", 1);
    job("two", 2);
    let said = test.ran("verify history");
    assert!(
        said.code == VIOLATED && said.out.starts_with("two-locks: `stock` is used under `x` of one"),
        "{said:?}"
    );
}
