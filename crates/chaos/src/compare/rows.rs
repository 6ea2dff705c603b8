//! The rows of the table: a lock service, and a client of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::Result;
use crate::processes::ending_with_us;

/// Programs that run the clients of other projects, with a line protocol; the tests of the library run them
/// too.
const PEERS: &str = "crates/client/tests/system/interop/peers";
const FOREIGN: &str = "target/foreign";
/// Compiled programs.
const BUILT: &str = "target/compare";

/// A client of a lock service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LockClient {
    Ours,
    Concurrency,
    Curator,
    Kazoo,
    RedisPy,
    NodeRedlock,
    Psql,
    Mariadb,
    PythonDynamodbLock,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct ComparedRow {
    /// The value of `--row`.
    pub(crate) name: &'static str,
    /// The service, as in [`crate::others::NAMES`]; `own-1`, `own-3`, or `fail-over`.
    pub(crate) on: &'static str,
    pub(crate) client: LockClient,
    pub(crate) service: &'static str,
    /// The client, with the settings that matter.
    pub(crate) shown: &'static str,
    /// How long the service keeps the lock of a silent holder.
    pub(crate) ttl_ms: u64,
    /// Whether the client gives its user a token.
    pub(crate) has_token: bool,
}

const fn ours(
    name: &'static str,
    on: &'static str,
    service: &'static str,
    shown: &'static str,
    has_token: bool,
) -> ComparedRow {
    ComparedRow { name, on, client: LockClient::Ours, service, shown, ttl_ms: TTL_MS, has_token }
}

const fn foreign(
    name: &'static str,
    on: &'static str,
    client: LockClient,
    (service, shown): (&'static str, &'static str),
    ttl_ms: u64,
    has_token: bool,
) -> ComparedRow {
    ComparedRow { name, on, client, service, shown, ttl_ms, has_token }
}

/// The ttl that each client asks for, if it takes one.
pub(crate) const TTL_MS: u64 = 1500;

/// All rows.
pub(crate) const ROWS: [ComparedRow; 21] = {
    use LockClient::{Concurrency, Curator, Kazoo, Mariadb, NodeRedlock, Psql, PythonDynamodbLock, RedisPy};
    [
        foreign("etcd-go", "etcd", Concurrency, ("etcd", "Go's `concurrency.Mutex`"), 2000, true),
        ours("etcd-ours", "etcd", "etcd", "Lockkeeper", true),
        foreign("zookeeper-curator", "zookeeper", Curator, ("ZooKeeper", "Curator"), 4000, false),
        foreign("zookeeper-kazoo", "zookeeper", Kazoo, ("ZooKeeper", "kazoo"), 4000, false),
        ours("zookeeper-ours", "zookeeper", "ZooKeeper", "Lockkeeper", true),
        foreign("redis-py", "redis", RedisPy, ("Redis", "redis-py"), 1500, false),
        ours("redis-ours", "redis", "Redis", "Lockkeeper, `fencing=counter`", true),
        foreign("failover-redis-py", "fail-over", RedisPy, ("Redis with fail-over", "redis-py"), 1500, false),
        ours("failover-ours", "fail-over", "Redis with fail-over", "Lockkeeper, `fencing=counter`", true),
        foreign("redlock-node", "redlock", NodeRedlock, ("Redlock, 3 Redis", "node-redlock"), 1500, false),
        ours("redlock-ours", "redlock", "Redlock, 3 Redis", "Lockkeeper", false),
        foreign(
            "postgres-psql",
            "postgres-session",
            Psql,
            ("PostgreSQL", "psql, `pg_advisory_lock`"),
            1500,
            false,
        ),
        ours("postgres-session-ours", "postgres-session", "PostgreSQL", "Lockkeeper, `lock=session`", true),
        ours("postgres-row-ours", "postgres-row", "PostgreSQL", "Lockkeeper, `lock=row`", true),
        foreign("mariadb-get-lock", "mysql", Mariadb, ("MariaDB", "mariadb, `GET_LOCK`"), 1500, false),
        ours("mariadb-ours", "mysql", "MariaDB", "Lockkeeper, `lock=row`", true),
        foreign(
            "dynamodb-python",
            "dynamodb",
            PythonDynamodbLock,
            ("DynamoDB (moto)", "python_dynamodb_lock"),
            2000,
            false,
        ),
        ours("dynamodb-ours", "dynamodb", "DynamoDB (moto)", "Lockkeeper", true),
        ours("s3-ours", "s3", "S3 (SeaweedFS)", "Lockkeeper", true),
        ours("own-1", "own-1", "Lockkeeper, 1 node", "Lockkeeper", true),
        ours("own-3", "own-3", "Lockkeeper, 3 nodes", "Lockkeeper", true),
    ]
};

/// The rows of these names, or all.
pub(crate) fn rows(names: &[String]) -> Result<Vec<&'static ComparedRow>> {
    let named = |name: &String| {
        ROWS.iter().find(|row| row.name == *name).ok_or_else(|| {
            let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            format!("--row {name}: there is no such row; there are {}", names.join(", ")).into()
        })
    };
    if names.is_empty() { Ok(ROWS.iter().collect()) } else { names.iter().map(named).collect() }
}

impl LockClient {
    /// Checks that the client is installed, and compiles its program if it has one.
    pub(crate) fn prepare(self) -> Result {
        match self {
            Self::Concurrency => {
                compiled("concurrency_mutex.go", "golang-go golang-etcd-server-dev", |folder| {
                    let mut go = Command::new("go");
                    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
                    go.env("GOCACHE", folder.join("cache")).arg("build").arg("-o").arg(folder.join("peer"));
                    go
                })
            }
            Self::Curator => compiled("CuratorLock.java", "default-jdk libcurator-recipes-java", |folder| {
                let mut javac = Command::new("javac");
                javac.args(["-cp", "/usr/share/java/*", "-d"]).arg(folder);
                javac
            }),
            Self::RedisPy | Self::Kazoo | Self::PythonDynamodbLock => installed("pypi-locks").map(drop),
            Self::NodeRedlock => installed("npm-locks").map(drop),
            Self::Psql => found("psql", "postgresql-client"),
            Self::Mariadb => found("mariadb", "mariadb-client-core"),
            Self::Ours => Ok(()),
        }
    }

    /// The command of a client's program, for a service at these addresses.
    pub(crate) fn command(self, addresses: &[String], url: &str) -> Result<Command> {
        let ports: Vec<&str> =
            addresses.iter().filter_map(|it| it.rsplit_once(':')).map(|(_, port)| port).collect();
        let mut command = ending_with_us();
        let python = |command: &mut Command, script: &str| -> Result {
            command.arg("python3").arg(Path::new(PEERS).join(script));
            command.env("PYTHONPATH", installed("pypi-locks")?);
            Ok(())
        };
        match self {
            Self::Concurrency => {
                command.arg(built("concurrency_mutex.go").join("peer")).args(ports);
            }
            Self::Curator => {
                command.args(["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
                let folder = built("CuratorLock.java");
                command.arg(format!("{}:/usr/share/java/*", folder.display())).arg("CuratorLock");
                command.args(ports).arg("mutex");
            }
            Self::Kazoo => {
                python(&mut command, "kazoo_lock.py")?;
                command.args(ports).arg("Lock");
            }
            Self::RedisPy => {
                python(&mut command, "redis_lock.py")?;
                command.args(ports);
            }
            Self::NodeRedlock => {
                command.env("LOCKKEEPER_NPM", installed("npm-locks")?);
                command.arg("node").arg(Path::new(PEERS).join("redlock.mjs")).args(ports);
            }
            Self::PythonDynamodbLock => {
                python(&mut command, "dynamodb_lock.py")?;
                command.args([format!("http://{}", addresses[0]), "locks".to_owned()]);
            }
            Self::Psql => {
                let direct = url.split('?').next().unwrap_or_default();
                command.args(["psql", "--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
                command.args(["--set=ON_ERROR_STOP=1", "--dbname", direct]);
            }
            Self::Mariadb => {
                command.args(["mariadb", "--no-defaults", "--user=root", "--host=127.0.0.1", "--batch"]);
                command.args(["--skip-column-names", "--unbuffered", "--skip-reconnect"]);
                command.arg(format!("--port={}", ports[0]));
            }
            Self::Ours => return Err("our own client is no program".into()),
        }
        Ok(command)
    }
}

/// The folder of a set of packages that `cargo xtask` has installed.
fn installed(set: &str) -> Result<PathBuf> {
    let folder = std::path::absolute(Path::new(FOREIGN).join(set))?;
    if folder.join("installed.txt").is_file() {
        return Ok(folder);
    }
    Err(format!("{} is missing: `cargo xtask chaos compare` installs it", folder.display()).into())
}

fn found(program: &str, package: &str) -> Result {
    match lockkeeper_rig::find(program) {
        Some(_) => Ok(()),
        None => Err(format!("`{program}` is missing; Debian's package is {package}").into()),
    }
}

fn built(source: &str) -> PathBuf {
    std::path::absolute(Path::new(BUILT).join(source)).unwrap_or_else(|_| BUILT.into())
}

/// Compiles a program into its folder; the compiler's command gets the source appended.
fn compiled(source: &str, packages: &str, compiler: impl Fn(&Path) -> Command) -> Result {
    let folder = built(source);
    std::fs::create_dir_all(&folder)?;
    let needs = format!("{source} needs Debian's {packages}");
    let output = compiler(&folder).arg(std::path::absolute(Path::new(PEERS).join(source))?).output();
    let output = output.map_err(|error| format!("{needs}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{needs}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_once_and_an_unknown_name_lists_them() {
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        assert_eq!(rows(&["etcd-go".into()]).unwrap()[0].client, LockClient::Concurrency);
        let error = rows(&["chubby".into()]).unwrap_err().to_string();
        assert!(error.contains("chubby") && error.contains("etcd-go"), "{error}");
    }
}
