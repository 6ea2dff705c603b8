//! The files of `packaging`: manifests of Kubernetes, and units of systemd.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use lockkeeper_cli::{args, exit};
use lockkeeper_rig::Port;
use nix::sys::signal::Signal;

use crate::node::{Node, Starting};
use crate::support::{CommandExt, TestDir, wait_until};

const STATEFUL_SET: &str = include_str!("../../../../packaging/kubernetes/statefulset.yaml");
const KEEPER: &str = include_str!("../../../../packaging/kubernetes/keeper/keeper.yaml");
const UNIT: &str = include_str!("../../../../packaging/systemd/lockkeeper.service");
const TLS_DROP_IN: &str = include_str!("../../../../packaging/systemd/lockkeeper-tls.conf");
const OPERATING: &str = include_str!("../../../../docs/operating.md");

fn packaging(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

/// The arguments of a manifest's container.
fn args_of(manifest: &'static str) -> Vec<&'static str> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != "args:").skip(1);
    let lines = lines.take_while(|line| line.starts_with(['-', '#']));
    lines.filter_map(|line| line.strip_prefix("- ")).collect()
}

/// The pods of the manifests, as processes of this machine.
struct Pods {
    test: TestDir,
    args: Vec<&'static str>,
    peers: Vec<Port>,
    clients: Vec<String>,
}

impl Pods {
    fn new(count: usize) -> Self {
        let args = args_of(STATEFUL_SET);
        assert_eq!(args[..2], ["serve", "--data=/data"], "{args:?}");
        let test = TestDir::new();
        let clients: Vec<String> = (0..count).map(|_| test.address()).collect();
        for line in ["tls init tls --cluster-name lockkeeper", "tls issue tls --any-node --host lockkeeper"] {
            assert_eq!(test.ran(line).code, 0, "{line}");
        }
        let tls = "tls-ca=tls/ca.pem&tls-cert=tls/client.pem&tls-key=tls/client.key";
        let test = test.over(&format!("lockkeepers://{}?{tls}", clients[..3].join(",")));
        Self { test, args, peers: (0..count).map(|_| Port::free()).collect(), clients }
    }

    fn peer(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.peers[node - 1].number())
    }

    /// An argument of the manifests with addresses of this machine.
    fn local(&self, arg: &str) -> String {
        (1..=self.peers.len()).fold(arg.replace("=/tls/", "=tls/"), |arg, other| {
            let pod = format!("lockkeeper-{other}.lockkeeper");
            let arg = arg.replace(&format!("{pod}:5625"), &self.clients[other - 1]);
            let arg = arg.replace(&format!("{pod}:5626"), &self.peer(other));
            arg.replace(&pod, &self.clients[other - 1])
        })
    }

    /// Starts a pod, by its ordinal.
    fn starts(&self, node: usize) -> Starting {
        let local = |arg: &str| {
            let arg = arg.replace("$(NODE)", &node.to_string());
            let arg =
                arg.replace("[::]:5625", &self.clients[node - 1]).replace("[::]:5626", &self.peer(node));
            self.local(&arg.replace("[::]:5627", "127.0.0.1:0"))
        };
        let options: Vec<String> = self.args[2..].iter().map(|arg| local(arg)).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.test.begin(&format!("node{node}"), &options)
    }

    /// Also while not all is well.
    fn voters(&self) -> Vec<u64> {
        let status = self.test.ran("cluster status --json");
        let status: serde_json::Value = serde_json::from_str(&status.out).unwrap_or_default();
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|it| it["part"] == "voter").filter_map(|it| it["node"].as_u64()).collect()
    }
}

#[test]
fn pods_of_kubernetes_lose_a_volume_and_grow_in_number() {
    let pods = Pods::new(4);
    let mut nodes: Vec<Node> =
        (1..=3).map(|node| pods.starts(node)).collect::<Vec<_>>().into_iter().map(Starting::ready).collect();
    let ended = pods.test.ran("run x -- echo it works");
    assert_eq!((ended.code, ended.out.as_str()), (0, "it works\n"), "{ended:?}");
    let holder = pods.test.holder("kept", &["--ttl", "60s"]);

    let refused = pods.test.ran("cluster replace 2");
    refused.is_one_line(exit::USAGE, &["node 2 answers", "not lost"]);
    nodes.remove(1).kill();
    std::fs::remove_dir_all(pods.test.path("node2")).unwrap();
    let empty = pods.starts(2);
    wait_until("it knows that its data are lost", || empty.log().contains("`lockkeeper cluster replace 2`"));
    let status = pods.test.ran("cluster status");
    assert!(
        status.code == i32::from(exit::UNHEALTHY) && status.out.contains("data lost: `cluster replace 2`"),
        "{status:?}"
    );
    let replaced = pods.test.ran("cluster replace 2");
    let words = format!("node 2 takes part no more; node 4 at {} has caught up, and votes\n", pods.peer(2));
    assert_eq!((replaced.code, replaced.out), (0, words), "{}", empty.log());
    empty.ready().kill();
    nodes.push(pods.starts(2).ready());
    assert_eq!(pods.voters(), [1, 3, 4]);

    // A pod that the list does not name, whose ordinal another one has as its id.
    let fourth = pods.starts(4);
    wait_until("it waits", || fourth.log().contains("waits for a new id"));
    let added = pods.test.ran(&format!("cluster add 5={}", pods.peer(4)));
    assert_eq!((added.code, added.out.as_str()), (0, "node 5 has caught up, and votes\n"), "{added:?}");
    nodes.push(fourth.ready());
    assert_eq!(pods.voters(), [1, 3, 4, 5]);
    assert_eq!(pods.test.shown("kept")["holds"][0]["token"], holder.token);
    let again = pods.test.ran("cluster replace 2");
    again.is_one_line(exit::USAGE, &["node 2 was removed already", "`lockkeeper cluster add 6=HOST:PORT`"]);
}

/// Pods are added and removed, and one loses its volume, without an operator's command.
#[test]
fn members_follow_the_pods_of_kubernetes() {
    let pods = Pods::new(5);
    let mut nodes: Vec<Node> =
        (1..=3).map(|node| pods.starts(node)).collect::<Vec<_>>().into_iter().map(Starting::ready).collect();
    let holder = pods.test.holder("kept", &["--ttl", "60s"]);
    std::fs::copy(pods.test.path("tls/client.pem"), pods.test.path("tls/tls.pem")).unwrap();
    std::fs::copy(pods.test.path("tls/client.key"), pods.test.path("tls/tls.key")).unwrap();
    let words = args_of(KEEPER).into_iter().map(|arg| match arg.split_once('=') {
        Some(("--remove-after", _)) => "--remove-after=10s".to_owned(),
        _ => pods.local(arg),
    });
    let keeper = pods.test.bare(words.collect::<Vec<_>>()).started();

    nodes.extend([pods.starts(4), pods.starts(5)].map(Starting::ready));
    wait_until("five vote", || pods.voters() == [1, 2, 3, 4, 5]);
    nodes.remove(1).kill();
    std::fs::remove_dir_all(pods.test.path("node2")).unwrap();
    nodes.push(pods.starts(2).ready());
    wait_until("the empty one votes in its place", || pods.voters() == [1, 3, 4, 5, 6]);
    // Pods 4 and 5.
    for _ in 0..2 {
        nodes.remove(2).kill();
    }
    wait_until("three vote", || pods.voters() == [1, 3, 6]);
    nodes.remove(1).kill();
    nodes.push(pods.starts(3).ready());
    assert_eq!(pods.test.shown("kept")["holds"][0]["token"], holder.token);
    keeper.signal(Signal::SIGTERM);
    let kept = keeper.ended();
    assert_eq!(kept.code, 0, "{kept:?}");
    let said = |line: &str| assert!(kept.out.lines().any(|it| it == line), "{line}: {kept:?}");
    said(&format!("node 2, whose data are lost, is replaced by node 6 at {}, and votes", pods.peer(2)));
    let removed = kept.out.matches("silent for too long, is removed; its data can be deleted").count();
    assert_eq!(removed, 2, "three voters stay, whoever is silent: {kept:?}");
}

/// The components need definitions of others, for which there is no schema here.
#[test]
fn manifests_fit_the_schemas_of_kubernetes() {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign/pypi-kubernetes");
    assert!(
        libraries.join("kubernetes_validate").is_dir(),
        "kubernetes-validate is missing; `cargo xtask test` installs it"
    );
    let files: Vec<_> =
        ["service.yaml", "statefulset.yaml", "disruption.yaml", "network.yaml", "keeper/keeper.yaml"]
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
