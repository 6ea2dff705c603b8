//! The targets of checks and tests, and the cargo features that they require. Cargo silently leaves a target
//! out if its required features are off.
//!
//! Responsible for no test being left out silently: checks, tests and docs of packages enable every feature
//! that a test or benchmark of those packages requires, and name the targets that a plain `cargo test` leaves
//! out (`test = false`). Other features stay off, such as those that add the clients of other systems.

use std::collections::BTreeSet;
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand, Package};

use crate::TaskResult;

/// The targets of some packages.
pub(crate) struct Targets {
    /// Empty: all.
    packages: Vec<String>,
    features: BTreeSet<String>,
    /// Whether cargo accepts `--lib`, `--test` and `--doc`: it refuses them for packages without such a
    /// target.
    has_libraries: bool,
    has_tests: bool,
    pub(crate) has_doctests: bool,
}

impl Targets {
    /// The targets of these packages of the workspace, or of all if there are none.
    pub(crate) fn of(packages: &[String]) -> TaskResult<Self> {
        let metadata = metadata()?;
        for wanted in packages {
            if !metadata.packages.iter().any(|package| package.name.as_str() == wanted) {
                let names: Vec<&str> =
                    metadata.packages.iter().map(|package| package.name.as_str()).collect();
                return Err(format!("there is no package `{wanted}`; there are: {}", names.join(", ")));
            }
        }
        let chosen = || chosen(&metadata, packages);
        Ok(Self {
            packages: packages.to_owned(),
            features: required(&metadata, packages),
            has_libraries: chosen().any(|package| package.targets.iter().any(|target| target.is_lib())),
            has_tests: chosen().any(|package| package.targets.iter().any(|target| target.is_test())),
            has_doctests: chosen()
                .any(|package| package.targets.iter().any(|target| target.is_lib() && target.doctest)),
        })
    }

    /// Selects the packages, with the required features.
    pub(crate) fn choose_packages(&self, cargo: &mut Command) {
        if self.packages.is_empty() {
            cargo.arg("--workspace");
        }
        for package in &self.packages {
            cargo.args(["--package", package]);
        }
        if !self.features.is_empty() {
            cargo.arg("--features").arg(self.features.iter().cloned().collect::<Vec<_>>().join(","));
        }
    }

    /// Selects the tests: those in libraries, and all test binaries (of `--tests` cargo leaves out those with
    /// `test = false`). No program has tests of its own. Examples and benchmarks are compiled by clippy only.
    pub(crate) fn choose_tests(&self, cargo: &mut Command) {
        self.choose_packages(cargo);
        if self.has_libraries {
            cargo.arg("--lib");
        }
        if self.has_tests {
            cargo.args(["--test", "*"]);
        }
    }

    /// Selects all targets.
    pub(crate) fn choose_all(&self, cargo: &mut Command) {
        self.choose_tests(cargo);
        cargo.args(["--bins", "--examples", "--benches"]);
    }
}

/// The workspace's packages.
pub(crate) fn metadata() -> TaskResult<Metadata> {
    MetadataCommand::new()
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot read the workspace's packages: {error}"))
}

fn chosen<'a>(metadata: &'a Metadata, packages: &'a [String]) -> impl Iterator<Item = &'a Package> {
    metadata.packages.iter().filter(move |package| {
        packages.is_empty() || packages.iter().any(|wanted| package.name.as_str() == wanted)
    })
}

/// The required features, as `package/feature`.
fn required(metadata: &Metadata, packages: &[String]) -> BTreeSet<String> {
    chosen(metadata, packages)
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

    /// Such tests would not be run: see [`Targets::choose_tests`].
    #[test]
    fn no_program_has_unit_tests() {
        let metadata = metadata().expect("our own workspace");
        let programs = metadata.packages.iter().flat_map(|package| &package.targets).filter(|it| it.is_bin());
        for program in programs {
            let folder = program.src_path.parent().expect("a file");
            let only = std::fs::read_to_string(&program.src_path).expect("our own file");
            assert!(
                !only.contains("#[cfg(test)]"),
                "{} in {folder} has tests: move them to the library",
                program.name
            );
        }
    }

    #[test]
    fn an_unknown_package_is_refused_with_the_known_ones() {
        let error = Targets::of(&["lockeeper".to_owned()]).err().expect("refused");
        assert!(error.contains("`lockeeper`") && error.contains("lockkeeper-core"), "{error}");
    }
}
