//! The names of our packages whose tests need more than Rust.

pub(crate) const CHAOS: &str = "lockkeeper-chaos";
pub(crate) const COMMAND: &str = "lockkeeper-cli";
pub(crate) const EXAMPLES: &str = "lockkeeper-examples";
pub(crate) const FENCE: &str = "lockkeeper-fence";
pub(crate) const LAB: &str = "lockkeeper-lab";
pub(crate) const LIBRARY: &str = "lockkeeper";
pub(crate) const NODE: &str = "lockkeeper-node";
pub(crate) const PYTHON: &str = "lockkeeper-python";
pub(crate) const RIG: &str = "lockkeeper-rig";
pub(crate) const DYNAMODB: &str = "lockkeeper-dynamodb";
pub(crate) const ETCD: &str = "lockkeeper-etcd";
pub(crate) const EXAMPLE_BACKEND: &str = "lockkeeper-example-backend";
pub(crate) const MYSQL: &str = "lockkeeper-mysql";
pub(crate) const OBJECT_STORE: &str = "lockkeeper-object-store";
pub(crate) const POSTGRES: &str = "lockkeeper-postgres";
pub(crate) const REDIS: &str = "lockkeeper-redis";
pub(crate) const REDLOCK: &str = "lockkeeper-redlock";
pub(crate) const ZOOKEEPER: &str = "lockkeeper-zookeeper";

/// Whether something for the tests of `packages` (all if empty) is needed for those of `chosen` (all if
/// empty).
pub(crate) fn is_for(packages: &[&str], chosen: &[String]) -> bool {
    packages.is_empty() || chosen.is_empty() || chosen.iter().any(|one| packages.contains(&one.as_str()))
}
