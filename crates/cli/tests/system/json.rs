//! `--json` has the shapes of HTTP/JSON, and the pages of the commands name every field.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{CommandExt, TestDir};

const SHAPES: &str = include_str!("../../../../docs/json.md");
const COMMANDS: [&str; 3] = [
    include_str!("../../../../docs/cli/locks.md"),
    include_str!("../../../../docs/cli/service.md"),
    include_str!("../../../../docs/cli/tools.md"),
];

/// The names of all fields, at any depth.
fn fields(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(object) => object.keys().cloned().chain(object.values().flat_map(fields)).collect(),
        Value::Array(items) => items.iter().flat_map(fields).collect(),
        _ => BTreeSet::new(),
    }
}

/// Without what changes with time.
fn timeless(mut value: Value) -> Value {
    match &mut value {
        Value::Object(object) => {
            object.retain(|name, _| !["held_for_ms", "waiting_for_ms", "left_ms"].contains(&name.as_str()));
            object.values_mut().for_each(|it| *it = timeless(it.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|it| *it = timeless(it.take())),
        _ => {}
    }
    value
}

/// Adds the fields of a shape, and of the shapes that it contains.
fn add_shape(anchor: &str, seen: &mut BTreeSet<String>, names: &mut BTreeSet<String>) {
    if !seen.insert(anchor.to_owned()) {
        return;
    }
    let mut sections = SHAPES.split("\n## ").skip(1);
    let section = sections.find(|it| it.lines().next().unwrap().to_lowercase() == anchor);
    let section = section.unwrap_or_else(|| panic!("docs/json.md has no `{anchor}`"));
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        names.insert(row.split('`').next().unwrap().to_owned());
        for link in row.split("](#").skip(1) {
            add_shape(link.split(')').next().unwrap(), seen, names);
        }
    }
}

/// The fields that the page of a command names, itself or by a link to a shape.
fn documented(command: &str) -> BTreeSet<String> {
    let heading = format!("\n### `{}`\n", command.split(' ').next().unwrap());
    let (_, section) = COMMANDS.iter().find_map(|page| page.split_once(&heading)).unwrap();
    let (_, text) = section.split_once("**JSON").unwrap();
    let text = &text[..text.find("\n\n").unwrap()];
    let mut names: BTreeSet<String> = text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    for link in text.split("json.md#").skip(1) {
        add_shape(link.split(')').next().unwrap(), &mut BTreeSet::new(), &mut names);
    }
    names
}

#[test]
fn commands_print_the_json_of_http_and_their_pages_name_its_fields() {
    let test = TestDir::new();
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    let test = test.over(&node.url());
    let command = |line: &str| -> Value {
        let ended = test.ran(&format!("{line} --json"));
        let said: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{line}: {ended:?}"));
        let (printed, documented) = (fields(&said), documented(line));
        // The page names the groups of `doctor`, not what is in them.
        let own = said.as_object().filter(|_| line == "doctor");
        let printed = own.map_or(printed, |own| own.keys().cloned().chain(fields(&own["nodes"])).collect());
        let missing: Vec<&String> = printed.difference(&documented).collect();
        assert!(missing.is_empty(), "the page of `{line}` does not name {missing:?}: {said}");
        said
    };
    let http = |path: &str| -> Value {
        let ended = Command::new("curl").args(["-gsS", &format!("{}/v1/{path}", node.http())]).ended();
        serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{path}: {ended:?}"))
    };

    assert_eq!(command("set-limit gpu 4"), json!({ "name": "gpu", "permits": 4 }));
    let described = ["--meta", "ticket=5", "--value", "here", "--label", "the job"];
    let holder = test.holder("orders/42", &described);
    let waiter = test.lockkeeper(["run", "--meta", "ticket=6", "orders/42", "--", "true"]).started();
    test.wait_for_waiters("orders/42", 1);
    for (line, path) in [("show orders/42", "locks/orders/42"), ("show gpu", "locks/gpu")] {
        assert_eq!(timeless(command(line)), timeless(http(path)), "{line}");
    }
    assert_eq!(command("show orders/42")["holds"][0]["meta"], "ticket=5");
    assert_eq!(timeless(command("ls")), timeless(http("locks")["locks"].take()));
    assert_eq!(timeless(command("sessions")), timeless(http("sessions")["sessions"].take()));
    let old = holder.token - 1;
    let checked = command(&format!("check-token orders/42 {old}"));
    assert_eq!(checked, http(&format!("check-token?name=orders/42&token={old}")));
    assert_eq!(checked, json!({ "status": "not-current", "live_tokens": [holder.token] }));
    let mut members = command("cluster status");
    assert_eq!(members["warnings"].take(), json!([]));
    members.as_object_mut().unwrap().remove("warnings");
    assert_eq!(fields(&members), fields(&http("members")));
    let mut report = command("doctor")["nodes"][0].take();
    report.as_object_mut().unwrap().retain(|name, _| name != "address" && name != "answers");
    // The member of the report has `answers`.
    assert_eq!(fields(&report), fields(&http("status")));
    let leader = command("leader orders/42");
    assert_eq!((&leader["leader"]["label"], &leader["leader"]["value"]), (&json!("the job"), &json!("here")));

    // A client that does not stop: the hold stays revoked.
    let secret = "Lockkeeper-Secret: 07070707070707070707070707070707";
    let post = |path: &str, body: &str| -> Value {
        let url = format!("{}/v1/{path}", node.http());
        let ended = Command::new("curl").args(["-gsS", "-H", secret, "--json", body, &url]).ended();
        serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{path}: {ended:?}"))
    };
    let session = post("sessions", r#"{"ttl_ms":600000}"#)["session"].take();
    let held =
        post("locks/b", &json!({ "session": session, "request": 1, "value_base64": "/w==" }).to_string());
    let broken = command(&format!("break b --token {} --reason late --by ann", held["token"]));
    assert_eq!(broken, json!({ "result": "done", "live_tokens": [] }));
    let shown = command("show b");
    assert_eq!(timeless(shown.clone()), timeless(http("locks/b")));
    let hold = &shown["holds"][0];
    assert_eq!(
        (&hold["state"], &hold["break_by"], &hold["break_reason"], &hold["value_base64"]),
        (&json!("revoked"), &json!("ann"), &json!("late"), &json!("/w=="))
    );
    drop((holder, waiter));
}
