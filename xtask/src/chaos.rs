//! Runs chaos: faults on real processes (`crates/chaos`).
//!
//! Responsible for installing what it needs, and for building the command and the harness beside each other.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::packages::{
    CHAOS, COMMAND, DYNAMODB, ETCD, LIBRARY, MYSQL, NODE, OBJECT_STORE, POSTGRES, PYTHON, REDIS, ZOOKEEPER,
};
use crate::process::{cargo, run as run_shown};
use crate::{TaskResult, features, needs};

/// The package whose tests need the servers of a service, by the beginning of its name in `--on`.
const SERVERS: [(&str, &str); 8] = [
    ("redis", REDIS),
    ("redlock", REDIS),
    ("etcd", ETCD),
    ("zookeeper", ZOOKEEPER),
    ("postgres", POSTGRES),
    ("dynamodb", DYNAMODB),
    ("mysql", MYSQL),
    ("s3", OBJECT_STORE),
];

/// Builds both, and runs the harness with these arguments.
pub(crate) fn run(args: &[OsString]) -> TaskResult {
    let mut packages = vec![CHAOS.to_owned()];
    let named = |name: &str| args.iter().any(|arg| arg.to_string_lossy().starts_with(name));
    // The comparison takes all servers, and the clients that the library's tests run beside ours.
    let compares = args.first().is_some_and(|arg| arg == "compare");
    packages.extend(compares.then(|| LIBRARY.to_owned()));
    let needed = SERVERS.iter().filter(|(name, _)| compares || named(name));
    packages.extend(needed.map(|(_, package)| (*package).to_owned()));
    needs::install_test_needs(&packages)?;
    let mut built = vec![CHAOS, COMMAND];
    // The native modules of clients in other languages.
    built.extend(named("--clients").then_some([NODE, PYTHON]).into_iter().flatten());
    let built = built.iter().flat_map(|package| ["--package", package]);
    run_shown(cargo().args(["build", "--release", "--quiet"]).args(built))?;
    let target: PathBuf = features::metadata()?.target_directory.into();
    run_shown(Command::new(target.join("release").join(CHAOS)).args(args))
}
