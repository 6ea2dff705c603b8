//! The cargo features without which cargo leaves a target out, and says nothing.
//!
//! Responsible for no test being skipped that reads as passed: whoever checks, tests or documents packages turns on every
//! feature that a test or a benchmark of theirs requires. Other features (those of measurements, which bring the clients of
//! the others) stay off.

use std::collections::BTreeSet;
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};

use crate::Outcome;

/// Turns them on for `packages`, or for the whole workspace if there are none.
pub(crate) fn turn_on(cargo: &mut Command, packages: &[String]) -> Outcome {
    let features = required(&metadata()?, packages);
    if !features.is_empty() {
        cargo.arg("--features").arg(features.into_iter().collect::<Vec<_>>().join(","));
    }
    Ok(())
}

/// The workspace's packages.
pub(crate) fn metadata() -> Outcome<Metadata> {
    MetadataCommand::new()
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot read the workspace's packages: {error}"))
}

/// As `package/feature`.
fn required(metadata: &Metadata, packages: &[String]) -> BTreeSet<String> {
    let chosen = metadata.packages.iter().filter(|package| {
        packages.is_empty() || packages.iter().any(|wanted| package.name.as_str() == wanted)
    });
    chosen
        .flat_map(|package| {
            let features = package.targets.iter().flat_map(|target| &target.required_features);
            features.map(|feature| format!("{}/{feature}", package.name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_targets_require_is_turned_on_where_it_is_asked_for() {
        let metadata = metadata().expect("our own workspace");
        let all = required(&metadata, &[]);
        for known in ["lockkeeper-fence/redis", "lockkeeper-fence/http", "lockkeeper/redlock"] {
            assert!(all.contains(known), "{known} is not in {all:?}");
        }
        let fences = required(&metadata, &["lockkeeper-fence".to_owned()]);
        assert!(!fences.is_empty() && fences.iter().all(|feature| feature.starts_with("lockkeeper-fence/")));
        assert!(required(&metadata, &["lockkeeper-core".to_owned()]).is_empty());
    }
}
