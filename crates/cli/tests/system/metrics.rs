//! `/metrics`, the alerts and the dashboard, with a real Prometheus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockkeeper_rig::{Program, Prometheus, find, prometheus};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{CommandExt, TestDir, wait_until};

const PAGE: &str = include_str!("../../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../../packaging/grafana/lockkeeper.json");
const ALERTS: &str = include_str!("../../../../packaging/prometheus/alerts.yml");

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus")
}

fn promtool() -> Command {
    let Program { name, package } = prometheus::TOOL;
    Command::new(find(name).unwrap_or_else(|| panic!("{name} is missing: `apt-get install {package}`")))
}

/// Calls HTTP/JSON; the answer.
fn curl(words: &[&str]) -> String {
    let ended = Command::new("curl").args(["-sS", "--fail-with-body"]).args(words).ended();
    assert_eq!(ended.code, 0, "{words:?}: {ended:?}");
    ended.out
}

/// Opens a session and acquires a lock.
fn hold(url: &str, secret: &str, ttl_ms: u64, name: &str) -> u64 {
    let secret = format!("Lockkeeper-Secret: {}", secret.repeat(16));
    let opened =
        curl(&["-H", &secret, "--json", &format!("{{\"ttl_ms\":{ttl_ms}}}"), &format!("{url}/v1/sessions")]);
    let session = serde_json::from_str::<Value>(&opened).unwrap()["session"].as_u64().unwrap();
    let acquire = format!("{{\"session\":{session},\"request\":1}}");
    curl(&["-H", &secret, "--json", &acquire, &format!("{url}/v1/locks/{name}")]);
    session
}

#[test]
fn every_metric_of_the_page_is_there_and_the_other_way_round() {
    let test = TestDir::new();
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    hold(&node.http(), "07", 30_000, "orders/42");
    let locks = TestDir::new().over(&format!("lockkeeper://{}", node.listening()));
    let holder = locks.holder("jobs", &[]);
    let waiter = locks.lockkeeper(["run", "jobs", "--", "true"]).started();
    locks.wait_for_waiters("jobs", 1);
    let page = || curl(&[&format!("{}/metrics", node.http())]);
    let waiting = page();
    assert!(!waiting.contains("lockkeeper_longest_waiter_age_seconds 0\n"), "{waiting}");
    let by_prefix = "lockkeeper_prefix_longest_waiter_age_seconds{prefix=\"jobs\"} ";
    assert!(waiting.contains(by_prefix) && !waiting.contains(&format!("{by_prefix}0\n")), "{waiting}");
    holder.signal(Signal::SIGTERM);
    let (_, waited) = (holder.ended(), waiter.ended());
    assert_eq!(waited.code, 0, "{waited:?}");
    let text = page();
    std::fs::write(test.path("metrics"), &text).unwrap();
    let checked = promtool()
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(test.path("metrics")).unwrap())
        .ended();
    assert_eq!((checked.code, &checked.out[..], &checked.err[..]), (0, "", ""));
    let version = env!("CARGO_PKG_VERSION");
    for line in [
        "lockkeeper_prefix_holds{prefix=\"orders\"} 1".to_owned(),
        format!("lockkeeper_build_info{{version=\"{version}\"}} 1"),
        "lockkeeper_disk_full 0".to_owned(),
        "lockkeeper_longest_waiter_age_seconds 0".to_owned(),
        "lockkeeper_prefix_longest_waiter_age_seconds{prefix=\"jobs\"} 0".to_owned(),
        "lockkeeper_queue_wait_seconds_count 1".to_owned(),
        "lockkeeper_refusals_total{what=\"denied\"} 0".to_owned(),
        "lockkeeper_quota_refusals_total{what=\"calls-of-sessions\"} 0".to_owned(),
    ] {
        assert!(text.lines().any(|shown| shown == line), "no {line} in {text}");
    }
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
    };
    assert!(
        value("lockkeeper_oldest_hold_age_seconds") > 0.0 && value("lockkeeper_queue_wait_seconds_sum") > 0.0
    );
    assert!(value("lockkeeper_prefix_oldest_hold_age_seconds{prefix=\"orders\"}") > 0.0);
    assert!(value("lockkeeper_disk_free_bytes") > 0.0 && value("lockkeeper_disk_used_bytes") > 0.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((0.0..600.0).contains(&(now - value("process_start_time_seconds"))), "{text}");
    assert!(value("process_resident_memory_bytes") > 1e6 && value("process_max_fds") >= 16.0);

    let of_node = PAGE.split_once("\n## A node of our own service\n").unwrap().1;
    let listed: BTreeSet<&str> = of_node
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|line| {
            line.split(" |")
                .next()
                .unwrap()
                .split('`')
                .filter(|word| word.starts_with("lockkeeper_") || word.starts_with("process_"))
        })
        .collect();
    let shown: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    // These need backups, TLS, a snapshot, or 10 s.
    let later = [
        "lockkeeper_backups_total",
        "lockkeeper_last_backup_timestamp_seconds",
        "lockkeeper_certificate_ends_timestamp_seconds",
        "lockkeeper_clock_correction_ratio",
        "lockkeeper_snapshot_bytes",
        "lockkeeper_snapshot_seconds",
        "lockkeeper_snapshot_step_seconds",
    ];
    let missing: BTreeSet<&str> = listed.difference(&shown).copied().collect();
    assert!(missing.iter().all(|name| later.contains(name)), "listed, but not shown: {missing:?}");
    let unknown: BTreeSet<&str> = shown.difference(&listed).copied().collect();
    assert!(unknown.is_empty(), "shown, but not listed: {unknown:?}");
}

#[test]
fn rules_are_valid_and_each_alert_fires_in_its_case_only() {
    for words in [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ] {
        let ended = promtool().args(words).current_dir(packaging()).stdin(Stdio::null()).ended();
        assert_eq!(ended.code, 0, "{words:?}: {ended:?}");
    }
    let alerts = ALERTS.matches("- alert: ").count();
    let tests = std::fs::read_to_string(packaging().join("alerts_test.yml")).unwrap();
    for alert in ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} has no test");
    }
    assert!(alerts >= 10, "only {alerts} alerts were found");
}

/// The tests of the rules run in invented time; here a real Prometheus scrapes three nodes, and three alerts
/// fire for real faults.
#[test]
fn prometheus_scrapes_a_cluster_draws_the_dashboard_and_fires_alerts() {
    let test = TestDir::new();
    let (mut nodes, _ports) = test.begin_three();
    let targets: Vec<String> = nodes.iter().map(|node| node.http().replace("http://", "")).collect();

    let rules = test.path("alerts.yml");
    let at_once: String = ALERTS
        .lines()
        .map(|line| {
            if line.trim().starts_with("for: ") {
                "        for: 0s\n".to_owned()
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    std::fs::write(&rules, at_once).unwrap();
    let prometheus = Prometheus::start("lockkeeper", &targets, &rules);
    let value = |query: &str| -> Vec<Value> {
        let answer = prometheus.query(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        serde_json::from_str(&answer).unwrap()
    };
    wait_until("three nodes are scraped", || value("up == 1").len() == 3);
    let session = hold(&nodes[0].http(), "07", 60_000, "orders/42");
    let keep_alive = format!("{}/v1/sessions/{session}/keep-alive", nodes[0].http());
    let secret = format!("Lockkeeper-Secret: {}", "07".repeat(16));

    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries: Vec<String> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| {
            target["expr"].as_str().unwrap().replace("$job", "lockkeeper").replace("$__rate_interval", "10s")
        })
        .collect();
    assert!(queries.len() >= 15, "{queries:?}");
    for query in &queries {
        wait_until(query, || {
            curl(&["-H", &secret, "-X", "POST", &keep_alive]);
            let found = value(query);
            let is_number = |sample: &Value| sample["value"][1].as_str().is_some_and(|text| text != "NaN");
            !found.is_empty() && found.iter().all(is_number)
        });
    }
    assert_eq!(value("sum(lockkeeper_leads)")[0]["value"][1], "1");
    assert_eq!(value("ALERTS").len(), 0, "{:?}", value("ALERTS"));

    hold(&nodes[0].http(), "08", 1_000, "orders/43");
    let leader = value("lockkeeper_leads == 1")[0]["metric"]["instance"].as_str().unwrap().to_owned();
    let follower = nodes.iter().position(|node| !node.http().ends_with(&leader)).unwrap();
    nodes.remove(follower).kill();
    for alert in ["LockkeeperSessionsExpire", "LockkeeperNodeDown", "LockkeeperMemberNotHeard"] {
        wait_until(alert, || {
            value(&format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}")).len() == 1
        });
    }
    drop(nodes);
}
