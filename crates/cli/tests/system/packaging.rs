//! The files of `packaging`: manifests of Kubernetes, and units of systemd.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use lockkeeper_cli::{args, exit};
use lockkeeper_rig::Port;

use crate::node::{Node, Starting};
use crate::support::{CommandExt, TestDir};

const STATEFUL_SET: &str = include_str!("../../../../packaging/kubernetes/statefulset.yaml");
const UNIT: &str = include_str!("../../../../packaging/systemd/lockkeeper.service");
const TLS_DROP_IN: &str = include_str!("../../../../packaging/systemd/lockkeeper-tls.conf");
const OPERATING: &str = include_str!("../../../../docs/operating.md");

fn packaging(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

#[test]
fn arguments_of_the_kubernetes_pods_start_a_cluster_with_tls() {
    let lines = STATEFUL_SET.lines().map(str::trim).skip_while(|line| *line != "args:").skip(1);
    let lines = lines.take_while(|line| line.starts_with(['-', '#']));
    let args: Vec<&str> = lines.filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(args[..2], ["serve", "--data=/data"], "{args:?}");
    let test = TestDir::new();
    assert_eq!(test.ran("tls init tls --nodes 3 --cluster-name lockkeeper").code, 0);
    let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
    let peers: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{}", port.number())).collect();
    let listens: Vec<String> = (0..3).map(|_| test.address()).collect();
    let nodes: Vec<Starting> = (0..3)
        .map(|node| {
            let local = |arg: &str| {
                let arg = arg.replace("$(NODE)", &(node + 1).to_string()).replace("=/tls/", "=tls/");
                let arg = arg.replace("[::]:5625", &listens[node]).replace("[::]:5626", &peers[node]);
                let arg = arg.replace("[::]:5627", "127.0.0.1:0");
                (0..3).fold(arg, |arg, other| {
                    let pod = format!("lockkeeper-{}.lockkeeper", other + 1);
                    let arg = arg.replace(&format!("{pod}:5625"), &listens[other]);
                    arg.replace(&format!("{pod}:5626"), &peers[other])
                })
            };
            let options: Vec<String> = args[2..].iter().map(|arg| local(arg)).collect();
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            test.begin(&format!("node{node}"), &options)
        })
        .collect();
    let _nodes: Vec<Node> = nodes.into_iter().map(Starting::ready).collect();
    let hosts = listens.join(",");
    let url =
        format!("lockkeepers://{hosts}?tls-ca=tls/ca.pem&tls-cert=tls/client.pem&tls-key=tls/client.key");
    let ended = test.over(&url).ran("run x -- echo it works");
    assert_eq!((ended.code, ended.out.as_str()), (0, "it works\n"), "{ended:?}");
}

/// The components need definitions of others, for which there is no schema here.
#[test]
fn manifests_fit_the_schemas_of_kubernetes() {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign/pypi-kubernetes");
    assert!(
        libraries.join("kubernetes_validate").is_dir(),
        "kubernetes-validate is missing; `cargo xtask test` installs it"
    );
    let files: Vec<_> = ["service.yaml", "statefulset.yaml", "disruption.yaml", "network.yaml"]
        .map(|file| packaging("kubernetes").join(file))
        .into();
    let ended = Command::new("python3")
        .env("PYTHONPATH", &libraries)
        .args(["-m", "kubernetes_validate", "-k", "1.31", "--strict"])
        .args(&files)
        .ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    let output = format!("{}{}", ended.out, ended.err);
    assert_eq!(output.matches("passed").count(), files.len(), "{output}");
}

#[test]
fn units_are_valid_for_systemd_also_with_tls() {
    let test = TestDir::new();
    std::fs::create_dir(test.path("lockkeeper.service.d")).unwrap();
    // The program need not be installed.
    let local = |unit: &str| unit.replace("/usr/bin/lockkeeper", "/bin/true");
    let unit = test.path("lockkeeper.service");
    std::fs::write(&unit, local(UNIT)).unwrap();
    let verify = || {
        let mut command = Command::new("systemd-analyze");
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", test.path("").display()));
        let ended = command.args(["verify", "--man=no"]).arg(&unit).ended();
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (0, "", ""), "{ended:?}");
    };
    verify();
    std::fs::write(test.path("lockkeeper.service.d/tls.conf"), local(TLS_DROP_IN)).unwrap();
    verify();
}

/// As systemd expands them: `$WORD` to words, `${WORD}` within a word.
#[test]
fn command_of_the_drop_in_for_tls_parses() {
    let value = |name: &str| {
        let prefix = format!("Environment=\"{name}=");
        let line = TLS_DROP_IN.lines().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|value| value.strip_suffix('"')).expect("the variable")
    };
    let start = TLS_DROP_IN.lines().rev().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/")).unwrap();
    let call = start.replace("${CLUSTER}", value("CLUSTER")).replace("$NODE", value("NODE"));
    let call = call.replace("$TLS", value("TLS")).replace(" $LOCKKEEPER_SERVE", "");
    let loaded: Vec<&str> =
        TLS_DROP_IN.lines().filter_map(|line| line.strip_prefix("LoadCredential=")).collect();
    for file in call.split_whitespace().filter_map(|word| word.strip_prefix("%d/")) {
        assert!(loaded.contains(&format!("{file}:/etc/lockkeeper/{file}").as_str()), "{file}");
    }
    assert_eq!(call.matches("%d/").count(), loaded.len(), "{call}");
    args::parse(call.split_whitespace().map(OsString::from)).unwrap();
}

/// The table of docs/operating.md says after which codes a restart does not help.
#[test]
fn systemd_starts_a_node_again_unless_that_can_not_help() {
    let rows = OPERATING.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let rows: Vec<(u8, &str)> = rows.filter_map(|(code, rest)| Some((code.parse().ok()?, rest))).collect();
    assert!(rows.len() >= 8 && rows.iter().all(|(code, _)| exit::ALL.contains(code)), "{rows:?}");
    let final_codes: BTreeSet<u8> =
        rows.iter().filter(|(_, rest)| rest.ends_with("| no |")).map(|(code, _)| *code).collect();
    let prevented = UNIT.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap();
    let prevented: BTreeSet<u8> = prevented.split(' ').map(|code| code.parse().unwrap()).collect();
    assert_eq!(prevented, final_codes);
    let about_options = [exit::USAGE, exit::CANNOT_CREATE, exit::PERMISSION, exit::CONFIG];
    assert_eq!(prevented, about_options.into(), "what only a change by the operator mends");
}
