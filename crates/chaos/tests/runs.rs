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
    for work in ["short", "ledger", "cached", "shared", "permits", "tree", "several", "crowd", "election"] {
        assert!(summary["grants_by_work"][work].as_u64() > Some(0), "{work}: {summary:#}");
    }
}

/// A worker that does not ask the fence, and writes after its hold was lost.
#[test]
fn workers_without_a_fence_are_found() {
    let (code, summary) =
        chaos("--seed 12 --seconds 10 --round 10 --tasks 16 --faults loss --mutant no-fence");
    assert_eq!(code, Some(1), "{summary:#}");
    assert_eq!(summary["violation_kinds"], serde_json::json!(["lost-update"]), "{summary:#}");
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
