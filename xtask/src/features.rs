//! The cargo features that targets require. Cargo silently leaves a target out if its required features are off.
//!
//! Responsible for no test being skipped silently: checks, tests and docs of packages enable every feature that a
//! test or benchmark of those packages requires. Other features stay off, such as those that add the clients of
//! other systems.

use std::collections::BTreeSet;
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};

use crate::TaskResult;

/// Enables the required features of `packages`, or of the whole workspace if `packages` is empty.
pub(crate) fn turn_on(cargo: &mut Command, packages: &[String]) -> TaskResult {
    let features = required(&metadata()?, packages);
    if !features.is_empty() {
        cargo.arg("--features").arg(features.into_iter().collect::<Vec<_>>().join(","));
    }
    Ok(())
}

/// The workspace's packages.
pub(crate) fn metadata() -> TaskResult<Metadata> {
    MetadataCommand::new()
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot read the workspace's packages: {error}"))
}

/// The required features, as `package/feature`.
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
    fn features_required_by_targets_are_enabled_for_selected_packages() {
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
