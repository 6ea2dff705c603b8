//! Who may do what: identities from certificates and tokens, permissions, the audit trail, as an operator
//! sets them up.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use lockkeeper_cli::exit::{CANNOT_CREATE, CONFIG, IO, LOST, NO, OK, PERMISSION, UNAVAILABLE, USAGE};
use lockkeeper_rig::Port;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::node::Node;
use crate::support::{CommandExt, Ended, TestDir, wait_until};

const PERMISSIONS: &str = r#"[groups]
shop = ["billing"]

[[allow]]
who = ["group:shop"]
actions = ["acquire", "read"]
names = ["orders"]

[[allow]]
who = ["reports"]
actions = ["read"]
names = ["*"]

[[allow]]
who = ["client"]
actions = ["acquire", "read", "break", "limit", "admin"]
names = ["*"]
"#;

/// Three nodes over TLS with tokens, permissions and an audit trail each; a token of `reports`, a certificate
/// of `billing`.
struct Shop {
    test: TestDir,
    nodes: Vec<Node>,
}

impl Shop {
    fn open() -> Self {
        let test = TestDir::new();
        for made in ["tls init tls --nodes 3", "tls issue tls --client billing"] {
            assert_eq!(test.ran(made).code, i32::from(OK));
        }
        let token = test.ran("token add reports --file tokens");
        assert_eq!(token.code, i32::from(OK), "{token:?}");
        std::fs::write(test.path("reports.token"), token.out).unwrap();
        std::fs::write(test.path("permissions"), PERMISSIONS).unwrap();
        let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
        let list = (1..).zip(&ports).map(|(node, port)| format!("{node}=127.0.0.1:{}", port.number()));
        let list = list.collect::<Vec<_>>().join(",");
        // Without `--node`: the certificate says which node it is.
        let starting: Vec<_> = (1..=3)
            .map(|node| {
                let (listen, [cert, key]) =
                    (test.address(), ["pem", "key"].map(|end| format!("tls/node-{node}.{end}")));
                let audit = format!("audit-{node}");
                let options = [
                    ["--listen", &listen],
                    ["--cluster", &list],
                    ["--tls-cert", &cert],
                    ["--tls-key", &key],
                    ["--tls-ca", "tls/ca.pem"],
                    ["--tokens", "tokens"],
                    ["--permissions", "permissions"],
                    ["--audit", &audit],
                ];
                test.begin(&format!("node{node}"), &options.concat())
            })
            .collect();
        Self { test, nodes: starting.into_iter().map(crate::node::Starting::ready).collect() }
    }

    /// The URL of node `at` with the credentials of the client `who`.
    fn url(&self, at: usize, who: &str) -> String {
        let files = match who {
            "nobody" => String::new(),
            "reports" => "&token-file=reports.token".to_owned(),
            who => format!("&tls-cert=tls/{who}.pem&tls-key=tls/{who}.key"),
        };
        format!("{}?tls-ca=tls/ca.pem{files}", self.nodes[at].url())
    }

    /// Runs a command at node `at` with the credentials of the client `who`.
    fn ran(&self, at: usize, who: &str, command: &str) -> Ended {
        let url = self.url(at, who);
        self.test.bare(command.split(' ').chain(["--locks", &url])).ended()
    }

    fn audited(&self, at: usize) -> Vec<Value> {
        let text = std::fs::read_to_string(self.test.path(&format!("audit-{}", at + 1))).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Changes the permissions of all nodes, and waits until they use them.
    fn permits(&self, text: &str) {
        let reloads =
            |it: &Self, at: usize| it.audited(at).iter().filter(|line| line["what"] == "reload").count();
        let before: Vec<usize> = (0..3).map(|at| reloads(self, at)).collect();
        std::fs::write(self.test.path("permissions.new"), text).unwrap();
        std::fs::rename(self.test.path("permissions.new"), self.test.path("permissions")).unwrap();
        for (at, node) in self.nodes.iter().enumerate() {
            node.signal(Signal::SIGHUP);
            wait_until("the node reads its files", || reloads(self, at) > before[at]);
        }
    }
}

/// At each node: one leads, the others pass calls on.
#[test]
fn each_caller_may_do_what_the_permissions_say_at_any_node() {
    let shop = Shop::open();
    for at in 0..3 {
        let url = shop.url(at, "billing");
        let holder = shop.test.bare(["run", "--locks", &url, "orders/42", "--", "sleep", "60"]).started();
        let shown = || shop.ran(at, "reports", "show orders/42 --json").json();
        wait_until("billing holds the lock", || shown()["holds"][0]["identity"] == "billing");
        let token = shown()["holds"][0]["token"].clone();
        let sessions = shop.ran(at, "reports", "sessions --json").json();
        assert_eq!(sessions[0]["identity"], "billing", "{sessions}");
        shop.ran(at, "billing", "ls").is_one_line(PERMISSION, &["billing may not read all names"]);
        assert_eq!(shop.ran(at, "billing", "ls orders").code, i32::from(OK));
        let order = format!("break orders/42 --token {token} --reason late");
        for who in ["billing", "reports"] {
            let denied = format!("{who} may not break holds of `orders/42`");
            shop.ran(at, who, &order).is_one_line(PERMISSION, &[&denied]);
        }
        for command in ["cluster transfer", "backup saved"] {
            shop.ran(at, "reports", command).is_one_line(PERMISSION, &["needs the permission `admin`"]);
        }
        shop.ran(at, "billing", "set-limit orders/gpu 4").is_one_line(PERMISSION, &["may not set the limit"]);
        shop.ran(at, "nobody", "ls orders").is_one_line(PERMISSION, &["a certificate or a token"]);
        shop.ran(at, "node-1", "ls orders").is_one_line(PERMISSION, &["your certificate is of node 1"]);
        // The holder learns who broke its hold, and the leader's audit trail has a record.
        assert_eq!(shop.ran(at, "client", &order).code, i32::from(OK));
        assert!(holder.ended().err.contains("client"));
        let breaks = (0..3).flat_map(|at| shop.audited(at)).filter(|line| line["what"] == "break");
        let breaks: Vec<Value> = breaks.filter(|line| line["token"] == token).collect();
        assert_eq!(breaks.len(), 1, "{breaks:?}");
        assert_eq!((&breaks[0]["identity"], &breaks[0]["reason"]), (&"client".into(), &"late".into()));
        assert!(breaks[0]["detail"].as_str().unwrap().contains("by client"), "{breaks:?}");
        let refused = shop.audited(at).into_iter().filter(|line| line["result"] == "refused");
        assert!(refused.count() > 0);
    }
}

#[test]
fn acquires_are_denied_and_a_change_holds_for_new_requests_of_running_sessions() {
    let shop = Shop::open();
    let run = |who: &str, name: &str| {
        let url = shop.url(0, who);
        shop.test.bare(["run", "--locks", &url, name, "--", "true"]).ended()
    };
    assert_eq!(run("billing", "orders/1").code, i32::from(OK));
    run("billing", "stock").is_one_line(PERMISSION, &["billing may not acquire `stock`"]);
    run("reports", "orders/1").is_one_line(PERMISSION, &["reports may not acquire `orders/1`"]);
    for at in 0..3 {
        let report = shop.ran(at, "reports", "doctor --json");
        assert_eq!((report.code, &report.err[..]), (i32::from(OK), ""), "reading is enough: {report:?}");
        let report = report.json();
        assert_eq!(report["probe"], "not-tried", "{report}");
        assert!(
            report["probe_says"].as_str().is_some_and(|why| why.contains("reports may not acquire")),
            "{report}"
        );
        assert_eq!(report["nodes"].as_array().map(Vec::len), Some(3), "{report}");
    }
    let report = shop.ran(0, "reports", "doctor");
    assert!(report.out.contains("not tried: to acquire `lockkeeper-doctor/probe`"), "{report:?}");
    assert_eq!(shop.ran(0, "reports", "cluster status").code, i32::from(OK));
    let left = shop.ran(0, "client", "sessions --json").json();
    assert_eq!(
        left.as_array().map(Vec::len),
        Some(0),
        "a denied client leaves no session for its ttl: {left}"
    );

    let url = shop.url(0, "billing");
    let holder =
        shop.test.bare(["run", "--locks", &url, "--ttl", "3s", "orders/7", "--", "sleep", "60"]).started();
    let holders = || shop.ran(0, "client", "show orders/7 --json").json()["holds"].as_array().unwrap().len();
    wait_until("billing holds the lock", || holders() == 1);
    let mut watch = shop.test.bare(["watch", "orders", "--locks", &url]).started();
    let mut first = String::new();
    BufReader::new(watch.child_mut().stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("orders/7"), "{first}");
    // A withdrawn permission does not end holds.
    shop.permits(&PERMISSIONS.replace("names = [\"orders\"]", "names = [\"other\"]"));
    run("billing", "orders/8").is_one_line(PERMISSION, &["billing may not acquire `orders/8`"]);
    assert_eq!(holders(), 1);
    // Revoked, it loses that too.
    shop.permits(&format!("revoked = [\"billing\"]\n{PERMISSIONS}"));
    watch.ended().is_one_line(PERMISSION, &["billing may do nothing: it is revoked"]);
    wait_until("its session ends", || holders() == 0);
    assert_eq!(holder.ended().code, i32::from(LOST));
    run("billing", "orders/8").is_one_line(PERMISSION, &["billing may do nothing"]);
    // A file that can't be used changes nothing.
    std::fs::write(shop.test.path("permissions"), "[[allow").unwrap();
    shop.nodes[0].signal(Signal::SIGHUP);
    let failed = || shop.audited(0).iter().any(|line| line["result"] == "failed");
    wait_until("the file is read", failed);
    assert_eq!(run("client", "orders/8").code, i32::from(OK));
    // Only this node's differ from the others' until they read the same.
    std::fs::write(shop.test.path("permissions"), format!("{PERMISSIONS}\n# later\n")).unwrap();
    shop.nodes[0].signal(Signal::SIGHUP);
    let status = || shop.ran(0, "client", "cluster status --json").json()["warnings"].to_string();
    wait_until("the difference is seen", || status().contains("different files of permissions"));
}

/// The error of a client at its quota names the limit and the usage. Other clients are not limited.
#[test]
fn quotas_are_errors_that_say_how_much_there_is_and_change_with_the_file() {
    let shop = Shop::open();
    let quota = |requests: u64| {
        format!("{PERMISSIONS}\n[[quota]]\nwho = [\"group:shop\"]\nsessions = 9\nrequests = {requests}\n")
    };
    let run = |at: usize, who: &str, name: &str| {
        let url = shop.url(at, who);
        shop.test.bare(["run", "--locks", &url, name, "--", "true"]).ended()
    };
    let url = shop.url(0, "billing");
    let holder = shop.test.bare(["run", "--locks", &url, "orders/1", "--", "sleep", "60"]).started();
    let shown = || shop.ran(0, "reports", "show orders/1 --json").json();
    wait_until("billing holds the lock", || shown()["holds"].as_array().is_some_and(|it| it.len() == 1));
    shop.permits(&quota(1));
    for at in 0..3 {
        run(at, "billing", "orders/2").is_one_line(
            UNAVAILABLE,
            &["billing may have 1 holds and waiters, has 1, and this needs 1 more"],
        );
        assert_eq!(run(at, "client", "orders/3").code, i32::from(OK), "others are not limited");
    }
    let refused = (0..3).flat_map(|at| shop.audited(at)).filter(|line| line["what"] == "quota").count();
    assert!(refused >= 1, "the audit trail has it");
    shop.permits(&quota(2));
    let ran = run(0, "billing", "orders/2");
    assert_eq!(ran.code, i32::from(OK), "{ran:?}");
    let printed = shop.test.ran("access quota billing --file permissions");
    assert!(printed.out.contains("holds and waiters: 2\n"), "{printed:?}");
    let json = shop.test.ran("access quota reports --file permissions --json").json();
    assert_eq!((&json["line"], &json["requests"]), (&Value::Null, &Value::Null), "{json}");
    // The rate counts at each node.
    shop.permits(&format!("{PERMISSIONS}\n[[quota]]\nwho = [\"billing\"]\nrequests-per-second = 1\n"));
    let mut told = String::new();
    wait_until("it asks too often", || {
        let ended = shop.ran(1, "billing", "show orders/1");
        told = ended.err;
        ended.code != i32::from(OK)
    });
    assert!(told.contains("billing may ask for 1 things a second at this node"), "{told}");
    drop(holder);
}

/// At the node that leads, and at those that pass the watch on.
#[test]
fn removed_token_ends_the_watches_of_its_owner_at_every_node() {
    let shop = Shop::open();
    let held = shop.url(0, "client");
    let holder = shop.test.bare(["run", "--locks", &held, "orders/1", "--", "sleep", "60"]).started();
    wait_until("it is held", || shop.ran(0, "reports", "ls orders").out.contains("orders/1"));
    let watches: Vec<_> = (0..3)
        .map(|at| {
            let mut watch =
                shop.test.bare(["watch", "orders", "--locks", &shop.url(at, "reports")]).started();
            let mut first = String::new();
            BufReader::new(watch.child_mut().stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
            assert!(first.contains("orders/1"), "{first}");
            watch
        })
        .collect();
    // Another token of the same name is another token.
    assert_eq!(shop.test.ran("token remove reports --file tokens").code, i32::from(OK));
    assert_eq!(shop.test.ran("token add reports --file tokens").code, i32::from(OK));
    for (at, watch) in watches.into_iter().enumerate() {
        shop.nodes[at].signal(Signal::SIGHUP);
        watch.ended().is_one_line(PERMISSION, &["reports may do nothing: its token was removed"]);
        let denied = |line: &Value| line["what"] == "denied" && line["identity"] == "reports";
        wait_until("it is recorded", || shop.audited(at).iter().any(denied));
    }
    drop(holder);
}

#[test]
fn token_of_a_plain_node_identifies_too_and_can_be_removed() {
    let test = TestDir::new();
    let token = test.ran("token add reports --file tokens");
    std::fs::write(test.path("reports.token"), &token.out).unwrap();
    std::fs::write(test.path("permissions"), PERMISSIONS).unwrap();
    let listen = test.address();
    let node = test
        .begin("node", &["--listen", &listen, "--tokens", "tokens", "--permissions", "permissions"])
        .ready();
    let ls = |more: &str| {
        let url = format!("{}{more}", node.url());
        test.bare(["ls", "--locks", &url]).ended()
    };
    assert_eq!(ls("?token-file=reports.token").code, i32::from(OK));
    let by_variable = format!("{}?token-env=SHOP_TOKEN", node.url());
    let mut by_variable = test.bare(["ls", "--locks", &by_variable]);
    assert_eq!(by_variable.env("SHOP_TOKEN", token.out.trim()).ended().code, i32::from(OK));
    ls("").is_one_line(PERMISSION, &["anonymous may do nothing here"]);
    std::fs::write(test.path("wrong.token"), token.out.replace(".reports.", ".nobody.")).unwrap();
    ls("?token-file=wrong.token").is_one_line(PERMISSION, &["does not know the token"]);
    assert_eq!(test.ran("token remove reports --file tokens").code, i32::from(OK));
    node.signal(Signal::SIGHUP);
    wait_until("the token is refused", || ls("?token-file=reports.token").code == i32::from(PERMISSION));
}

#[test]
fn token_file_is_made_listed_and_never_has_a_token() {
    let test = TestDir::new();
    let made = test.ran("token add billing --file tokens");
    let token = made.out.trim().to_owned();
    assert!(made.err.is_empty() && token.starts_with("lkt.billing."), "{made:?}");
    let secret = token.rsplit_once('.').unwrap().1;
    assert!(!std::fs::read_to_string(test.path("tokens")).unwrap().contains(secret));
    test.ran("token add billing --file tokens")
        .is_one_line(CANNOT_CREATE, &["has a token of `billing` already"]);
    for name in ["a:b", "Müller"] {
        test.ran(&format!("token add {name} --file tokens")).is_one_line(USAGE, &["ASCII characters only"]);
    }
    assert_eq!(test.ran("token add reports --file tokens").code, i32::from(OK));
    assert_eq!(test.ran("token list --file tokens").out, "billing\nreports\n");
    test.ran("token remove nobody --file tokens").is_one_line(NO, &["has no token of `nobody`"]);
    assert_eq!(test.ran("token remove billing --file tokens").code, i32::from(OK));
    assert_eq!(test.ran("token list --file tokens --json").json()[0]["name"], "reports");
    // The client's file is new, and readable by its owner only.
    let written = test.ran("token add stock --file tokens --out stock.token");
    assert!(written.code == i32::from(OK) && !written.out.contains("lkt."), "{written:?}");
    let token = std::fs::read_to_string(test.path("stock.token")).unwrap();
    assert!(token.starts_with("lkt.stock.") && token.ends_with('\n'), "{token}");
    assert_eq!(std::fs::metadata(test.path("stock.token")).unwrap().mode() & 0o7777, 0o600);
    test.ran("token add web --file tokens --out stock.token")
        .is_one_line(CANNOT_CREATE, &["`stock.token` exists already"]);
    assert_eq!(std::fs::read_to_string(test.path("stock.token")).unwrap(), token);
    test.ran("token add web --file missing/tokens --out web.token").is_one_line(IO, &["missing/tokens"]);
    assert!(!test.path("web.token").exists(), "no node knows the token");
    assert_eq!(test.ran("token list --file tokens").out, "reports\nstock\n");
    assert_eq!(test.ran("token remove stock --file tokens").code, i32::from(OK));
    // Through a link, the file that it names is changed, and keeps its owner and mode.
    let file = test.path("tokens");
    let of = |path: &Path| std::fs::metadata(path).map(|it| (it.uid(), it.gid(), it.mode())).unwrap();
    if nix::unistd::Uid::effective().is_root() {
        std::os::unix::fs::chown(&file, Some(1234), Some(1234)).unwrap();
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = of(&file);
    std::os::unix::fs::symlink(&file, test.path("link")).unwrap();
    assert_eq!(test.ran("token add third --file link").code, i32::from(OK));
    assert!(std::fs::symlink_metadata(test.path("link")).unwrap().is_symlink());
    assert_eq!(
        (test.ran("token list --file tokens").out, of(&file)),
        ("reports\nthird\n".to_owned(), before)
    );
}

#[test]
fn access_check_answers_with_the_line_that_decides() {
    let test = TestDir::new();
    std::fs::write(test.path("permissions"), format!("revoked = [\"old\"]\n\n{PERMISSIONS}")).unwrap();
    let check = |what: &str| test.ran(&format!("access check {what} --file permissions"));
    let allowed = check("billing acquire orders/42");
    assert_eq!(allowed.code, i32::from(OK));
    assert_eq!(
        allowed.out,
        "allowed: line 6 of `permissions` allows it: who = [\"group:shop\"], actions = [\"acquire\", \"read\"], names = \
         [\"orders\"]\n"
    );
    let denied = check("billing acquire stock");
    assert_eq!((denied.code, &*denied.out), (i32::from(NO), "denied: no rule allows it in `permissions`\n"));
    let revoked = check("old read orders");
    assert_eq!(revoked.code, i32::from(NO));
    assert_eq!(revoked.out, "denied: line 1 of `permissions` revokes the client: revoked = [\"old\"]\n");
    assert_eq!(check("client admin --json").json()["line"], 16);
    check("client admin orders").is_one_line(USAGE, &["`admin` is about the whole service"]);
    std::fs::write(test.path("permissions"), "\nallow = 3").unwrap();
    check("a read").is_one_line(CONFIG, &["`permissions` can't be used: line 2"]);
}
