//! Short runs on real processes. They need root, `ip`, `nft`, a C compiler, and the command `lockkeeper`
//! beside this package's own (`cargo xtask test` builds it).

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `lockkeeper-chaos --json`; returns its exit code and its summary.
fn chaos(words: &str) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-chaos"));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    command.arg("--json").arg("--keep").arg(kept).args(words.split_whitespace());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let err = String::from_utf8_lossy(&stderr);
    let summary = serde_json::from_slice(&stdout).unwrap_or_else(|error| panic!("{error}: {status}: {err}"));
    (status.code(), summary)
}

#[test]
fn no_fault_of_a_short_run_breaks_a_promise() {
    let (code, summary) = chaos("--seed 11 --seconds 25 --round 25 --tasks 16");
    assert_eq!(
        (code, &summary["violations"], &summary["failures"]),
        (Some(0), &0.into(), &Value::Array(vec![]))
    );
    assert!(summary["operations"].as_u64() > Some(5000), "{summary:#}");
    let faults: Vec<_> = summary["faults"].as_object().unwrap().values().collect();
    let sum = |field: &str| faults.iter().map(|it| it[field].as_u64().unwrap()).sum::<u64>();
    assert!(sum("bitten") >= 2, "{summary:#}");
    for work in
        ["short", "ledger", "cached", "shared", "permits", "tree", "several", "crowd", "election", "gated"]
    {
        assert!(summary["grants_by_work"][work].as_u64() > Some(0), "{work}: {summary:#}");
    }
}

#[test]
fn power_cuts_of_nodes_break_no_promise() {
    let (code, summary) = chaos("--seed 13 --seconds 8 --round 8 --tasks 16 --faults power");
    let bitten = summary["faults"]["power"]["bitten"].as_u64();
    assert!(code == Some(0) && bitten > Some(0), "{code:?}: {summary:#}");
}

#[test]
fn killed_gates_lose_no_update() {
    let (code, summary) = chaos("--seed 18 --seconds 6 --round 6 --tasks 16 --faults kill-gate");
    let bitten = summary["faults"]["kill-gate"]["bitten"].as_u64();
    assert!(code == Some(0) && bitten > Some(0), "{code:?}: {summary:#}");
}

#[test]
fn clients_in_all_languages_work_beside_each_other_through_faults() {
    let clients = "rust,python,asyncio,node,go,java";
    let (code, summary) = chaos(&format!("--seed 14 --seconds 12 --round 12 --tasks 32 --clients {clients}"));
    assert_eq!((code, &summary["violations"]), (Some(0), &0.into()), "{summary:#}");
    let grants = summary["grants_by_worker"].as_object().unwrap();
    assert!(grants.len() == 6 && grants.values().all(|it| it.as_u64() > Some(20)), "{summary:#}");
}

/// What drivers say is enough to contradict a promise.
#[test]
fn another_service_by_the_same_name_is_found_through_drivers() {
    finds("wrong-service --clients go,java,go", "overlap");
}

#[test]
fn clients_of_other_services_are_in_rust() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-chaos"));
    let output = command.args(["--on", "file", "--clients", "rust,go"]).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && err.contains("our own service only"), "{err}");
}

#[test]
fn change_of_the_authority_breaks_no_promise() {
    let (code, summary) = chaos("--seed 15 --seconds 10 --round 10 --tasks 16 --faults certificates");
    let bitten = summary["faults"]["certificates"]["bitten"].as_u64();
    assert!(code == Some(0) && bitten > Some(0), "{code:?}: {summary:#}");
}

#[test]
fn upgrades_and_ways_back_break_no_promise() {
    let program = Path::new(env!("CARGO_BIN_EXE_lockkeeper-chaos")).with_file_name("lockkeeper");
    let upgrade = format!("--faults upgrade --previous {}", program.display());
    let (code, summary) = chaos(&format!("--seed 16 --seconds 9 --round 9 --tasks 16 {upgrade}"));
    let bitten = summary["faults"]["upgrade"]["bitten"].as_u64();
    assert!(code == Some(0) && bitten > Some(0), "{code:?}: {summary:#}");
}

#[test]
fn steady_load_is_sampled_and_plotted() {
    let plot = Path::new(env!("CARGO_TARGET_TMPDIR")).join("samples.svg");
    let samples = format!("--samples {}", plot.display());
    let (code, _) = chaos(&format!("--seed 17 --seconds 6 --round 6 --tasks 8 --faults none {samples}"));
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(code == Some(0) && svg.contains("memory, node3"), "{code:?}: {svg}");
}

#[test]
fn crowds_live_through_a_restart_and_a_change_of_the_leader() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-chaos"));
    let output = command.args(["crowd", "--sessions", "200", "--waiters", "2000"]).output().unwrap();
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{summary:#}");
    assert_eq!((&summary["sessions_pulsed"], &summary["waiters_granted"]), (&200.into(), &2000.into()));
}

/// A planted mistake and the kind of violation that must follow: it is found in the first round, or in one of
/// the next ones.
fn finds(mutant: &str, kind: &str) {
    let (code, summary) = chaos(&format!("--seed 12 --seconds 90 --round 5 --tasks 16 --mutant {mutant}"));
    let kinds = summary["violation_kinds"].as_array().unwrap();
    assert!(code == Some(0) && kinds.iter().any(|found| found == kind), "{code:?}: {summary:#}");
}

macro_rules! planted {
    ($($name:ident: $mutant:literal, $kind:literal;)+) => {$(
        #[test]
        fn $name() {
            finds($mutant, $kind);
        }
    )+};
}

planted! {
    workers_without_a_fence_are_found: "no-fence", "lost-update";
    sections_that_enter_late_are_found: "late-enter", "lost-update";
    marks_from_a_backup_are_found: "old-marks", "fence-order";
    workers_that_ignore_a_loss_are_found: "deaf-worker", "overlap";
    slow_clocks_of_workers_are_found: "slow-worker-clock", "overlap";
    fast_clocks_of_nodes_are_found: "fast-node-clock", "overlap";
    nodes_that_come_back_without_data_are_found: "wiped-nodes", "token-order";
    disks_that_lie_are_found: "lying-disk", "token-order";
    data_from_a_backup_is_found: "old-backup", "token-order";
    another_service_by_the_same_name_is_found: "wrong-service", "overlap";
    resources_under_two_services_are_found: "two-services", "two-locks";
    writes_through_two_gates_are_found: "two-gates", "fence-order";
}

/// Holders are stopped, killed and cut off: an entered fence loses nothing, and no two claims overlap.
#[test]
fn comparison_finds_no_overlap_and_no_loss_at_an_entered_fence_on_our_service() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-chaos"));
    let output = command.args(["compare", "--row", "own-1", "--seconds", "6"]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let row = out.lines().find(|line| line.ends_with("| `own-1` |")).unwrap();
    let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [_, _, grants, faults, overlaps, _, _, lost, ..] = cells[..] else { panic!("{row}") };
    assert!(grants.parse::<u64>().unwrap() > 0 && faults != "0", "{row}");
    assert_eq!((overlaps, lost), ("0", "0"), "{row}");
}

#[test]
fn plan_is_printed_and_is_the_same_for_a_seed() {
    let plan = |seed: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-chaos"));
        let output = command.args(["--plan", "--seconds", "60", "--seed", seed]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(plan("5"), plan("5"));
    assert_ne!(plan("5"), plan("6"));
    assert!(plan("5").lines().count() > 5, "{}", plan("5"));
}
