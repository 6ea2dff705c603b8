//! The bill of materials of a release (CycloneDX, as JSON): the packages that are compiled into its programs.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, PackageId};
use serde_json::{Value, json};

use crate::TaskResult;
use crate::process::output;

/// The bill of the programs of these packages with these features, on this machine's platform. `time`: of the
/// release, in RFC 3339.
pub(crate) fn bill(programs: &[&str], features: &str, version: &str, time: &str) -> TaskResult<Value> {
    let rustc = output(std::process::Command::new("rustc").arg("--version").arg("--verbose"))?;
    let platform = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let metadata = MetadataCommand::new()
        .features(CargoOpt::SomeFeatures(vec![features.to_owned()]))
        .other_options(["--locked", "--filter-platform", platform].map(str::to_owned))
        .exec()
        .map_err(|error| format!("cannot read the packages that a release has: {error}"))?;
    let linked = linked(&metadata, programs)?;
    let url = |id: &PackageId| format!("pkg:cargo/{}@{}", metadata[id].name, metadata[id].version);
    let components = linked.keys().map(|id| {
        let package = &metadata[id];
        json!({
            "type": "library",
            "bom-ref": url(id),
            "name": package.name.as_str(),
            "version": package.version.to_string(),
            "purl": url(id),
            "licenses": package.license.iter().map(|it| json!({ "expression": it.replace('/', " OR ") })).collect::<Vec<_>>(),
        })
    });
    let needs = linked
        .iter()
        .map(|(id, needed)| json!({ "ref": url(id), "dependsOn": needed.iter().map(|id| url(id)).collect::<Vec<_>>() }));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "component": { "type": "application", "bom-ref": "lockkeeper", "name": "lockkeeper", "version": version },
        },
        "components": components.collect::<Vec<_>>(),
        "dependencies": needs.collect::<Vec<_>>(),
    }))
}

/// The packages that are linked into the programs, and what each of them needs: without those for tests and
/// for build scripts.
fn linked<'a>(
    metadata: &'a Metadata,
    programs: &[&str],
) -> TaskResult<BTreeMap<&'a PackageId, BTreeSet<&'a PackageId>>> {
    let resolve = metadata.resolve.as_ref().ok_or("cargo has resolved no dependencies")?;
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let is_program = |id: &PackageId| programs.contains(&metadata[id].name.as_str());
    let mut left: Vec<&PackageId> = nodes.keys().copied().filter(|id| is_program(id)).collect();
    let mut linked = BTreeMap::new();
    while let Some(id) = left.pop() {
        if linked.contains_key(id) {
            continue;
        }
        let needed: BTreeSet<&PackageId> = nodes[id]
            .deps
            .iter()
            .filter(|dep| dep.dep_kinds.iter().any(|it| it.kind == DependencyKind::Normal))
            .map(|dep| &dep.pkg)
            .collect();
        left.extend(needed.iter().copied());
        linked.insert(id, needed);
    }
    Ok(linked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_has_what_is_linked_and_nothing_of_the_tests() {
        let bill = bill(&["lockkeeper-cli"], "lockkeeper-cli/all", "1.2.3", "2026-01-01T00:00:00Z").unwrap();
        let names: BTreeSet<&str> =
            bill["components"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
        for linked in ["lockkeeper-core", "rustls", "tokio", "opentelemetry"] {
            assert!(names.contains(linked), "{linked} is missing: {names:?}");
        }
        for other in ["proptest", "lockkeeper-rig", "prost-build", "xtask"] {
            assert!(!names.contains(other), "{other} is in no program");
        }
        let refs: BTreeSet<_> =
            bill["components"].as_array().unwrap().iter().map(|it| it["bom-ref"].as_str()).collect();
        let needs = bill["dependencies"].as_array().unwrap();
        assert_eq!(needs.len(), refs.len());
        let needed = needs.iter().flat_map(|it| it["dependsOn"].as_array().unwrap());
        assert!(needed.into_iter().all(|it| refs.contains(&it.as_str())));
    }
}
