//! The commands shown in the README and in the service's pages work as printed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;

use lockkeeper_cli::{args, exit};
use lockkeeper_rig::Port;
use serde_json::Value;

use crate::node::Starting;
use crate::support::{CommandExt, TestDir, wait_until};

const README: &str = include_str!("../../../../README.md");
const SERVICE: &str = include_str!("../../../../docs/service.md");
const OPERATING: &str = include_str!("../../../../docs/operating.md");
const CHECKLIST: &str = include_str!("../../../../docs/checklist.md");

/// The shell scripts of a page after a heading.
fn scripts<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let begin = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no `{heading}`"));
    let rest = &page[begin..];
    let blocks = rest.split("```sh\n").skip(1);
    blocks.map(|block| &block[..block.find("```").unwrap()]).collect()
}

/// The arguments of the lines that consist of a single call of `lockkeeper`.
fn calls(script: &str) -> Vec<Vec<OsString>> {
    let lines = script.lines().map(|line| line.split(" #").next().unwrap().trim());
    let ours =
        lines.filter(|line| line.starts_with("lockkeeper ") && !line.contains(['\'', '"', '\\', '|', ';']));
    ours.map(|line| line.trim_end_matches(" &").split_whitespace().map(OsString::from).collect()).collect()
}

#[test]
fn readme_service_example_works() {
    let [serve, client, ..] = scripts(README, "## Serve locks to other machines")[..] else {
        panic!("two terminals are told of")
    };
    let [call] = &calls(serve)[..] else { panic!("one call: {serve}") };
    assert_eq!(call[1..4], ["serve", "--data", "./locks"].map(OsString::from));

    let test = TestDir::new();
    let node = test.serve("127.0.0.1:0");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let path = std::env::join_paths(
        [program.parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    assert!(client.contains("lockkeeper://127.0.0.1\n"), "{client}");
    // The default port may be in use.
    let client = client.replace("lockkeeper://127.0.0.1\n", &format!("{}\n", node.url()));
    let ended = Command::new("sh")
        .args(["-ec", &client])
        .env("PATH", path.unwrap())
        .env_remove("LOCKKEEPER_URL")
        .current_dir(test.path(""))
        .ended();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{ended:?}");
    let first = ended.out.lines().next().unwrap();
    let token = first.strip_prefix("token ").unwrap();
    assert!(ended.out.contains(&format!("token {token}, exclusive, held by")), "{ended:?}");
    assert!(ended.out.contains("REQUESTS") && ended.out.contains("30s"), "{ended:?}");
    assert!(ended.out.contains("APPLIED") && ended.out.contains("leader"), "{ended:?}");
}

#[test]
fn every_call_on_the_service_pages_parses() {
    let mut count = 0;
    for (page, heading) in [(SERVICE, "## Quick start"), (OPERATING, "## Install")] {
        for words in scripts(page, heading).into_iter().flat_map(calls) {
            count += 1;
            if let Err(failure) = args::parse(words.clone()) {
                panic!("{words:?}: {failure:?}");
            }
        }
    }
    assert!(count >= 9, "only {count} calls were found: the search itself is broken");
}

/// Three nodes form a cluster, a fourth joins and becomes the leader, and one is removed: runs every line of
/// the page in order, with free ports.
#[test]
fn operating_page_cluster_example_works() {
    let scripts = scripts(OPERATING, "## A cluster");
    let [forms, changes, ..] = scripts[..] else { panic!("two scripts are on the page: {scripts:?}") };
    let mut page = format!("{forms}{changes}");
    let ports: BTreeMap<u16, Port> =
        (5701..=5704).chain(5801..=5804).map(|written| (written, Port::free())).collect();
    for (written, port) in &ports {
        let (written, free) = (format!("127.0.0.1:{written}"), format!("127.0.0.1:{}", port.number()));
        assert!(page.contains(&written), "{written} is not on the page: {page}");
        page = page.replace(&written, &free);
    }
    let url = page.lines().find_map(|line| line.strip_prefix("export LOCKKEEPER_URL=")).unwrap();
    let test = TestDir::new().over(url);

    let mut starting = Vec::new();
    let mut nodes = Vec::new();
    let mut said = Vec::new();
    let calls = calls(&page);
    for words in &calls {
        let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap()).collect();
        if words[1] == "serve" {
            let log = format!("log-{}", starting.len() + nodes.len());
            let node = test.start(&[&words[2..], &["--segment-bytes", "1048576"]].concat(), &log);
            if words.contains(&"--join") {
                let peers = words[1 + words.iter().position(|word| *word == "--peer-listen").unwrap()];
                wait_until("it can be reached", || std::net::TcpStream::connect(peers).is_ok());
                assert!(!node.serves(), "nobody has added it");
            }
            starting.push(node);
            continue;
        }
        if nodes.is_empty() {
            nodes.extend(starting.drain(..).map(Starting::ready));
        }
        let ended = test.lockkeeper(&words[1..]).ended();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{words:?}: {ended:?}");
        said.push(ended.out);
    }
    assert_eq!((calls.len(), said.len()), (9, 5), "all lines are calls: {page}");
    assert_eq!(said[0], "it works\n");
    nodes.extend(starting.drain(..).map(Starting::ready));

    let members: Value = serde_json::from_str(&test.ran("cluster status --json").out).unwrap();
    let ids: Vec<u64> =
        members["nodes"].as_array().unwrap().iter().map(|it| it["node"].as_u64().unwrap()).collect();
    assert_eq!(ids, [2, 3, 4], "{members}");
    let first = nodes.remove(0);
    let ended = first.ended();
    assert_eq!(ended.code, i32::from(exit::CONFIG), "{ended:?}");
    assert!(ended.err.contains("node 1 was removed from the cluster, and ids never come back"), "{ended:?}");
    assert_eq!(test.ran("run x -- true").code, 0, "the others go on");
}

/// Three nodes over TLS from an empty directory: runs every line of the page in order, with free ports.
#[test]
fn operating_page_tls_example_works() {
    let scripts = scripts(OPERATING, "## TLS");
    let mut page = scripts[0].to_owned();
    let ports: BTreeMap<u16, Port> =
        (5711..=5713).chain(5811..=5813).map(|written| (written, Port::free())).collect();
    for (written, port) in &ports {
        page = page.replace(&format!("127.0.0.1:{written}"), &format!("127.0.0.1:{}", port.number()));
    }
    let test = TestDir::new();
    let calls = calls(&page);
    let words = |call: &[OsString]| -> Vec<String> {
        call.iter().map(|word| word.to_str().unwrap().to_owned()).collect()
    };
    let [init, one, two, three, run] = &calls[..] else { panic!("five commands: {page}") };
    assert_eq!(test.bare(&init[1..]).ended().code, 0);
    let starting = [one, two, three].map(|call| {
        let words = words(call);
        let words: Vec<&str> = words[2..].iter().map(String::as_str).collect();
        test.start(&words, &format!("{}.log", words[1]))
    });
    let _nodes = starting.map(Starting::ready);
    let ended = test.bare(&run[1..]).ended();
    assert_eq!((ended.code, ended.out.as_str()), (0, "it works\n"), "{ended:?}");
}

#[test]
fn serve_calls_in_systemd_unit_and_containerfile_parse() {
    let unit = include_str!("../../../../packaging/systemd/lockkeeper.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/")).unwrap();
    let words = start.replace(" $LOCKKEEPER_SERVE", "");
    args::parse(words.split_whitespace().map(OsString::from)).unwrap();

    let file = include_str!("../../../../packaging/Containerfile");
    let command = file.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let words: Vec<String> = serde_json::from_str::<Value>(command).and_then(serde_json::from_value).unwrap();
    args::parse(std::iter::once("lockkeeper".to_owned()).chain(words).map(OsString::from)).unwrap();
}

#[test]
fn each_question_of_the_checklist_has_a_command_that_parses() {
    let questions: Vec<&str> = CHECKLIST.split("- [ ] ").skip(1).collect();
    assert_eq!(questions.len(), 7);
    for (number, question) in questions.iter().enumerate() {
        assert!(question.starts_with(&format!("**{}. ", number + 1)), "{question}");
        let calls: Vec<&str> = question.split('`').filter(|code| code.starts_with("lockkeeper ")).collect();
        assert!(!calls.is_empty(), "{question}");
        for call in calls {
            let call = call.replace(" N ", " 8 ").replace(" COUNT ", " 8 ");
            if let Err(failure) = args::parse(call.split_whitespace().map(OsString::from)) {
                panic!("{call}: {failure:?}");
            }
        }
    }
}
