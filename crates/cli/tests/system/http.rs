//! HTTP/JSON from a shell and from Python, as the page on it shows.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_cli::exit;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::node::Node;
use crate::support::{CommandExt, TestDir, wait_until};

const PAGE: &str = include_str!("../../../../docs/http.md");

/// The code after a heading; before the first heading if there is none.
fn code(heading: &str, language: &str) -> &'static str {
    let begin = if heading.is_empty() { 0 } else { PAGE.find(&format!("\n{heading}\n")).unwrap() };
    let rest = PAGE[begin..].split_once(&format!("```{language}\n")).unwrap().1;
    rest.split_once("```").unwrap().0
}

fn node(test: &TestDir) -> Node {
    test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready()
}

/// A program of the page that runs a job under a lock.
#[derive(Clone, Copy)]
enum Script {
    Shell,
    Python,
}

const SCRIPTS: [Script; 2] = [Script::Shell, Script::Python];

impl Script {
    /// The program, which runs `job`, a line for the shell, under the lock `name`.
    fn command(self, test: &TestDir, node: &Node, name: &str, job: &str) -> Command {
        let mut command = match self {
            Self::Shell => {
                let script = format!("{}\nwith_lock \"$@\"", code("## A lock in a shell script", "sh"));
                let mut command = Command::new("sh");
                command.args(["-c", &script, "sh", name, "sh", "-c", job]);
                command
            }
            Self::Python => {
                let mut command = Command::new("python3");
                command.args(["-c", code("## A lock in Python", "python"), name, "sh", "-c", job]);
                command
            }
        };
        command.env("LOCKKEEPER_HTTP", node.http()).current_dir(test.path(""));
        command
    }
}

#[test]
fn first_calls_of_the_page_answer_as_printed() {
    let test = TestDir::new();
    let node = node(&test);
    let script = code("", "sh").replace("http://127.0.0.1:5627", &node.http());
    // The alias of an interactive shell.
    let script = script
        .replace("alias ask='curl -sS", "ask() { curl -sS -w '\\n'")
        .replace("$secret\"'", "$secret\" \"$@\"; }");
    let ended = Command::new("sh").args(["-ec", &script]).ended();
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
    let shown = |text: &str| {
        let digits = |line: &str| match line.split_once("\"token\":") {
            Some((before, after)) => {
                format!("{before}\"token\":{}", after.trim_start_matches(|it: char| it.is_ascii_digit()))
            }
            None => line.to_owned(),
        };
        text.lines().filter(|line| !line.is_empty()).map(digits).collect::<Vec<_>>()
    };
    let printed = PAGE.split_once("\n```\n{").unwrap().1.split_once("\n```").unwrap().0;
    assert_eq!(shown(&ended.out), shown(&format!("{{{printed}")));
}

/// Both programs wait for each other, pass on the job's exit code, and leave nothing behind.
#[test]
fn programs_of_the_page_exclude_each_other() {
    let test = TestDir::new();
    let node = node(&test);
    const JOB: &str = "echo \"in $TOKEN\" >> journal; sleep 0.3; echo \"out $TOKEN\" >> journal; exit 7";
    let mut running: Vec<_> = [SCRIPTS; 3]
        .into_iter()
        .flatten()
        .map(|script| {
            script.command(&test, &node, "orders/42", JOB).stderr(Stdio::inherit()).spawn().unwrap()
        })
        .collect();
    for child in &mut running {
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
    let journal = std::fs::read_to_string(test.path("journal")).unwrap();
    let lines: Vec<_> = journal.lines().collect();
    assert_eq!(lines.len(), 12, "{journal}");
    let token = |line: &str| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    let mut last = 0;
    for pair in lines.chunks(2) {
        assert!(pair[0].starts_with("in ") && pair[1].starts_with("out "), "{journal}");
        assert!(token(pair[0]) == token(pair[1]) && token(pair[0]) > last, "{journal}");
        last = token(pair[0]);
    }
    let left = test.over(&node.url()).ran("sessions");
    assert_eq!((left.code, &left.err[..]), (0, "lockkeeper: no sessions\n"), "{left:?}");
}

/// A job is killed before the lease ends if the service is out of reach.
#[test]
fn programs_of_the_page_give_up_in_time() {
    let test = TestDir::new();
    let node = node(&test);
    let mut running: Vec<_> = (0..)
        .zip(SCRIPTS)
        .map(|(index, script)| {
            let (name, job) = (format!("lock-{index}"), format!("echo up > up-{index}; exec sleep 100"));
            script.command(&test, &node, &name, &job).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    wait_until("both jobs run", || (0..2).all(|index| test.path(&format!("up-{index}")).exists()));
    // Not killed: its connections stay open, and nothing answers.
    node.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    for child in &mut running {
        let code = child.wait().unwrap().code();
        assert_ne!(code, Some(0));
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "the jobs ended by themselves");
    node.signal(Signal::SIGCONT);
}

/// A hold that an operator breaks ends the job, at once or not.
#[test]
fn programs_of_the_page_stop_when_their_hold_is_broken() {
    let test = TestDir::new();
    let node = node(&test);
    let mut running: Vec<_> = (0..)
        .zip(SCRIPTS.into_iter().flat_map(|script| [(script, false), (script, true)]))
        .map(|(index, (script, now))| {
            let (name, job) = (format!("lock-{index}"), format!("echo up > up-{index}; exec sleep 100"));
            let child = script.command(&test, &node, &name, &job).stderr(Stdio::null()).spawn().unwrap();
            (name, now, child)
        })
        .collect();
    wait_until("the jobs run", || (0..4).all(|index| test.path(&format!("up-{index}")).exists()));
    let test = test.over(&node.url());
    for (name, now, _) in &running {
        let token = test.shown(name)["holds"][0]["token"].as_u64().unwrap();
        let more = if *now { "--now" } else { "" };
        let ended = test.ran(&format!("break {name} --token {token} --reason test {more}"));
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let begun = Instant::now();
    for (name, _, child) in &mut running {
        assert_ne!(child.wait().unwrap().code(), Some(0), "{name}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "the jobs ended by themselves");
}

/// A signal to all of a program's processes, as by Ctrl-C, ends its job, and nothing holds the lock any more.
#[test]
fn programs_of_the_page_end_their_jobs() {
    let test = TestDir::new();
    let node = node(&test);
    for script in SCRIPTS {
        let up = test.path("up");
        let _ = std::fs::remove_file(&up);
        let mut command = script.command(&test, &node, "orders/42", "echo up > up; exec sleep 100");
        let mut child = command.stderr(Stdio::null()).process_group(0).spawn().unwrap();
        wait_until("the job runs", || up.exists());
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
        killpg(group, Signal::SIGTERM).unwrap();
        assert_ne!(child.wait().unwrap().code(), Some(0));
        let ended = script.command(&test, &node, "orders/42", "cat; exit 3").stdin(Stdio::null()).ended();
        assert_eq!(ended.code, 3, "{ended:?}");
        wait_until("all processes have ended", || killpg(group, None).is_err());
    }
}

/// Cron sends a mail of everything that a job prints.
#[test]
fn program_prints_nothing_of_its_own() {
    let test = TestDir::new();
    let node = node(&test);
    for shell in ["sh", "bash"] {
        let script = Script::Shell.command(&test, &node, "orders/42", "echo done");
        let ended = Command::new(shell)
            .args(script.get_args())
            .envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .ended();
        assert_eq!((ended.code, &ended.out[..], &ended.err[..]), (0, "done\n", ""), "{shell}: {ended:?}");
    }
}

#[test]
fn program_says_why_it_has_no_lock() {
    let test = TestDir::new();
    let node = node(&test);
    let ended = Script::Shell.command(&test, &node, "orders//42", "echo never").ended();
    assert_eq!((ended.code, &ended.out[..]), (75, ""), "{ended:?}");
    assert!(ended.err.contains("empty segment"), "{ended:?}");
}

/// Calls made up from the OpenAPI document, valid and invalid ones: the document describes every answer, and
/// nothing is a failure of the service.
#[test]
fn answers_to_generated_calls_are_those_of_the_document() {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign/pypi-http");
    assert!(
        libraries.join("schemathesis").is_dir(),
        "schemathesis is missing; `cargo xtask test` installs it"
    );
    let test = TestDir::new();
    let node = node(&test);
    // Not `not_a_server_error`: it is what 503 is, the answer to a transfer to a node that is not there.
    const CHECKS: &str =
        "status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method";
    let ended = Command::new("python3")
        .args(["-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"])
        .arg(format!("{}/v1/openapi.json", node.http()))
        .args(["--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "7"])
        // The answer of a watch has no end.
        .args(["--exclude-path", "/v1/watch", "--request-timeout", "60", "--no-color"])
        .args(["--header", "Lockkeeper-Secret: 07070707070707070707070707070707"])
        .env("PYTHONPATH", libraries)
        .current_dir(test.path(""))
        .ended();
    assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.err);
    assert!(ended.out.contains("Tested: 24"), "{}", ended.out);
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

#[test]
fn default_address_for_http_is_of_the_default_port_only() {
    let test = TestDir::new();
    let other = test.begin("other", &["--listen", "127.0.0.1:0"]).ready();
    assert!(other.said["http"].is_null(), "{}", other.said);
    let off = test.begin("off", &["--listen", "127.0.0.1:0", "--http-listen", "off"]).ready();
    assert!(off.said["http"].is_null(), "{}", off.said);
    let wide = test.ran("serve --data wide --listen 127.0.0.1:0 --http-listen 0.0.0.0:0");
    wide.is_one_line(exit::USAGE, &["0.0.0.0:0"]);
    let taken = off.listening();
    let busy = test.ran(&format!("serve --data busy --listen 127.0.0.1:0 --http-listen {taken}"));
    assert!(busy.code == i32::from(exit::BUSY) && busy.err.contains(&taken), "{busy:?}");
}
