//! What the project weighs: seconds and crates of builds, and the time of tests, as the tables of
//! docs/benchmarks.md and docs/testing.md.
//!
//! Every build starts from an empty target directory of its own, and is offline: the registry's cache is
//! filled before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;
use std::time::Instant;

use clap::Subcommand;
use serde_json::Value;

use crate::TaskResult;
use crate::features;
use crate::packages::{COMMAND, LIBRARY};
use crate::process::{cargo, output, run, shown};
use crate::record::{self, cpu_of_children};

/// What to weigh.
#[derive(Subcommand)]
pub(crate) enum Weight {
    /// Build the command and the library from nothing with each set of features (30 minutes on 2 cores)
    Build {
        /// Only builds whose name contains this text
        filter: Option<String>,
    },
    /// Print the tables of the newest `cargo xtask test`
    Tests {
        /// How many of the slowest tests
        #[arg(long, default_value_t = 50)]
        slowest: usize,
    },
}

/// A build: its name in the table, and the arguments of cargo.
struct Build {
    name: &'static str,
    args: &'static [&'static str],
}

/// The builds of the table. The first one is the README's first command.
const BUILDS: &[Build] = &[
    Build { name: "command, default", args: &["--release", "-p", COMMAND] },
    Build {
        name: "command, own service and file only",
        args: &["--release", "-p", COMMAND, "--no-default-features"],
    },
    Build { name: "command, and `dynamodb`", args: &["--release", "-p", COMMAND, "--features", "dynamodb"] },
    Build {
        name: "command, and `zookeeper`",
        args: &["--release", "-p", COMMAND, "--features", "zookeeper"],
    },
    Build { name: "command, and `otlp`", args: &["--release", "-p", COMMAND, "--features", "otlp"] },
    Build { name: "command, `all`", args: &["--release", "-p", COMMAND, "--features", "all"] },
    Build {
        name: "command, `all`, profile dist",
        args: &["--profile", "dist", "-p", COMMAND, "--features", "all"],
    },
    Build { name: "library, default, debug", args: &["-p", LIBRARY] },
    Build { name: "library, none, debug", args: &["-p", LIBRARY, "--no-default-features"] },
    Build { name: "library, and `etcd`, debug", args: &["-p", LIBRARY, "--features", "etcd"] },
    Build {
        name: "library, and `postgres-tls`, debug",
        args: &["-p", LIBRARY, "--features", "postgres-tls"],
    },
    Build { name: "library, and `redis-tls`, debug", args: &["-p", LIBRARY, "--features", "redis-tls"] },
    Build { name: "library, and `zookeeper`, debug", args: &["-p", LIBRARY, "--features", "zookeeper"] },
    Build { name: "library, and `dynamodb`, debug", args: &["-p", LIBRARY, "--features", "dynamodb"] },
];

/// How many crates the table by crate shows.
const HEAVIEST: usize = 25;

pub(crate) fn weigh(what: &Weight) -> TaskResult {
    match what {
        Weight::Build { filter } => build(filter.as_deref().unwrap_or_default()),
        Weight::Tests { slowest } => {
            println!("{}", record::tables(*slowest)?.trim_end());
            Ok(())
        }
    }
}

fn build(filter: &str) -> TaskResult {
    let folder = features::metadata()?.target_directory.join("weight").into_std_path_buf();
    run(cargo().args(["fetch", "--locked"]))?;
    println!("| build | crates | wall, s | CPU, s |\n| --- | --- | --- | --- |");
    let mut heaviest = None;
    for Build { name, args } in BUILDS.iter().filter(|build| build.name.contains(filter)) {
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let mut cargo = cargo();
        cargo
            .args(["build", "--locked", "--offline", "--timings"])
            .args(*args)
            .arg("--target-dir")
            .arg(&folder);
        cargo.stdout(Stdio::null()).stderr(Stdio::null());
        let (start, before) = (Instant::now(), cpu_of_children());
        let status = cargo.status().map_err(|error| format!("`{}`: {error}", shown(&cargo)))?;
        if !status.success() {
            return Err(format!("`{}` failed: {status}", shown(&cargo)));
        }
        let (wall, cpu) = (start.elapsed(), cpu_of_children() - before);
        println!("| {name} | {} | {:.0} | {:.0} |", crates(args)?, wall.as_secs_f64(), cpu.as_secs_f64());
        if heaviest.is_none() {
            let page = folder.join("cargo-timings/cargo-timing.html");
            let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
            heaviest = Some((*name, by_crate(&text)?));
        }
    }
    let Some((name, seconds)) = heaviest else {
        return Err(format!("no build's name contains `{filter}`"));
    };
    println!("\n| crate ({name}) | s |\n| --- | --- |");
    let mut seconds: Vec<_> = seconds.into_iter().collect();
    seconds.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for (name, seconds) in seconds.iter().take(HEAVIEST) {
        println!("| `{name}` | {seconds:.1} |");
    }
    let rest: f64 = seconds.iter().skip(HEAVIEST).map(|(_, seconds)| seconds).sum();
    println!("| the rest | {rest:.1} |");
    Ok(())
}

/// The number of crates that a build compiles, those for the build itself included.
fn crates(args: &[&str]) -> TaskResult<usize> {
    let mut cargo = cargo();
    cargo.args([
        "tree",
        "--locked",
        "--offline",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--no-dedupe",
    ]);
    let profile = ["--release", "--profile", "dist"];
    cargo.args(args.iter().filter(|arg| !profile.contains(arg)));
    let text = output(&mut cargo)?;
    Ok(text.lines().map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len())
}

/// The seconds of each crate in a page of `cargo build --timings`: a unit of two that run beside each other
/// takes longer than alone.
fn by_crate(page: &str) -> TaskResult<BTreeMap<String, f64>> {
    let problem = || "`cargo build --timings` has written a page of another form".to_owned();
    let units = page
        .split_once("const UNIT_DATA = ")
        .and_then(|(_, rest)| rest.split_once("];"))
        .ok_or_else(problem)?;
    let units: Vec<Value> = serde_json::from_str(&format!("{}]", units.0)).map_err(|_| problem())?;
    let mut seconds = BTreeMap::new();
    for unit in &units {
        let name = unit["name"].as_str().ok_or_else(problem)?;
        *seconds.entry(name.to_owned()).or_insert(0.0) += unit["duration"].as_f64().ok_or_else(problem)?;
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_one_crate_are_added() {
        let page = r#"x
const UNIT_DATA = [{"name": "a", "duration": 1.5, "target": ""}, {"name": "a", "duration": 2, "target": " build-script"}];
const CONCURRENCY_DATA = [];"#;
        assert_eq!(by_crate(page).unwrap(), BTreeMap::from([("a".to_owned(), 3.5)]));
        assert!(by_crate("another page").is_err());
    }
}
