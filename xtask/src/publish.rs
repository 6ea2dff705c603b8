//! `cargo xtask publishable`: whether crates.io would take our packages, and in which order.
//!
//! Responsible for: each package that is published has what crates.io demands, and needs only what is
//! published before it. A test dependency on a later package must have no version: cargo leaves it out of
//! what it publishes. Then cargo itself packs all of them, without the network and without building them.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, Metadata, Package};

use crate::TaskResult;
use crate::features::metadata;
use crate::process::{cargo, run};

pub(crate) fn check() -> TaskResult {
    let metadata = metadata()?;
    let packages = order(&metadata);
    let mut faults = Vec::new();
    let mut before = BTreeSet::new();
    for package in &packages {
        faults.extend(faults_of(package, &metadata, &before));
        before.insert(package.name.as_str());
    }
    if !faults.is_empty() {
        return Err(format!("not all packages can be published:\n{}", faults.join("\n")));
    }
    let mut pack = cargo();
    pack.args(["package", "--no-verify", "--allow-dirty", "--offline", "--quiet"]);
    for package in &packages {
        pack.args(["--package", package.name.as_str()]);
    }
    run(&mut pack)?;
    for package in packages {
        println!("cargo publish --package {}", package.name);
    }
    Ok(())
}

/// The packages that are published, each behind those that it needs.
fn order(metadata: &Metadata) -> Vec<&Package> {
    fn visit<'a>(package: &'a Package, metadata: &'a Metadata, order: &mut Vec<&'a Package>) {
        let is_ours = |name: &str| metadata.packages.iter().find(|it| it.name.as_str() == name);
        if order.iter().any(|it| it.name == package.name) {
            return;
        }
        for needed in package.dependencies.iter().filter(|it| it.kind != DependencyKind::Development) {
            if let Some(needed) = is_ours(&needed.name).filter(|it| is_published(it)) {
                visit(needed, metadata, order);
            }
        }
        order.push(package);
    }
    let mut order = Vec::new();
    for package in metadata.packages.iter().filter(|it| is_published(it)) {
        visit(package, metadata, &mut order);
    }
    order
}

fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// What crates.io would refuse. `before`: what is published before.
fn faults_of(package: &Package, metadata: &Metadata, before: &BTreeSet<&str>) -> Vec<String> {
    let name = &package.name;
    let fields = [
        ("description", package.description.is_some()),
        ("license", package.license.is_some()),
        ("repository", package.repository.is_some()),
    ];
    let missing = fields.into_iter().filter(|(_, is_there)| !is_there);
    let mut faults: Vec<String> = missing.map(|(field, _)| format!("{name}: it has no {field}")).collect();
    for needed in &package.dependencies {
        let is_ours = metadata.packages.iter().any(|it| it.name.as_str() == needed.name);
        let is_for_tests = needed.kind == DependencyKind::Development;
        let has_version = !needed.req.comparators.is_empty();
        if !is_ours || before.contains(needed.name.as_str()) && has_version {
            continue;
        }
        if is_for_tests && has_version && needed.name != name.as_str() {
            let why = "is published later or never: write `{ path = … }` without a version";
            faults.push(format!("{name}: its tests need {}, which {why}", needed.name));
        } else if !is_for_tests {
            faults
                .push(format!("{name}: it needs {}, which has no version or is not published", needed.name));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_can_be_published_in_this_order() {
        let metadata = metadata().unwrap();
        let mut before = BTreeSet::new();
        for package in order(&metadata) {
            assert_eq!(faults_of(package, &metadata, &before), Vec::<String>::new());
            before.insert(package.name.as_str());
        }
        assert!(before.contains("lockkeeper") && !before.contains("xtask"), "{before:?}");
    }
}
