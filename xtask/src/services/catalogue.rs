//! The services that can be started: one [`ServiceSpec`] each.
//!
//! Responsible for the ports, packages and command lines of the services, which are defined only here.
//! Services that tests start too use the command lines of the rig (`crates/rig`). Must not leave anything
//! running: the functions here describe, prepare and probe.
//!
//! Each service has ten ports, from a multiple of ten on. They are outside the ephemeral range (16430 is the
//! benchmark's, for our own node), and none is the default port of any of these programs: Debian starts some
//! of the programs when their package is installed, and those instances must not interfere.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use lockkeeper_rig::s3::{MOTO, PYTHON};
use lockkeeper_rig::{mariadb, pgbouncer, postgres, redis, seaweedfs, zookeeper};
use nix::sys::signal::Signal;

use crate::TaskResult;
use crate::foreign;
use crate::needs::Need;
use crate::packages::RIG;
use crate::services::{ServiceLocation, probe};

/// One service: a process on 127.0.0.1.
#[derive(Clone, Copy)]
pub(crate) struct ServiceSpec {
    /// The service's name on the command line, and the name of its folder.
    pub(crate) name: &'static str,
    /// The name of the service's family on the command line.
    pub(crate) family: &'static str,
    /// The service's port, a multiple of ten. The next nine ports are reserved for the service, too.
    pub(crate) port: u16,
    /// The programs that the service needs, with their Debian packages.
    pub(crate) needs: &'static [Need],
    /// The command that prints the version on stdout, whether the service runs or not.
    pub(crate) version: fn(&ServiceLocation) -> Command,
    /// Prepares the service's folder before a start.
    pub(crate) prepare: fn(&ServiceLocation) -> TaskResult,
    /// The command that runs the service in the foreground as one process, whose pid is used to stop and
    /// measure it.
    pub(crate) command: fn(&ServiceLocation) -> Command,
    /// The signal for a graceful stop. It must work while clients are connected.
    pub(crate) ends_by: Signal,
    /// A service that this one depends on, started before it.
    pub(crate) after: Option<&'static ServiceSpec>,
    /// Returns an error with the reason, unless the service is ready.
    pub(crate) ready: fn(&ServiceLocation) -> Result<(), String>,
}

const REDIS_SERVER: Need = Need::of(redis::SERVER, "the services redis-* and redlock-*");

/// Redis with a sync before each reply: the durable variant.
pub(crate) const REDIS_FSYNC: ServiceSpec = ServiceSpec {
    name: "redis-fsync",
    family: "redis",
    port: 16390,
    needs: &[REDIS_SERVER],
    version: redis_version,
    prepare: nothing,
    command: |place| redis(place, &["--appendonly", "yes", "--appendfsync", "always"]),
    ends_by: Signal::SIGTERM,
    after: None,
    ready: |place| probe::ask(place.port, "PING\r\n", "+PONG"),
};

/// Redis without persistence.
pub(crate) const REDIS_NOFSYNC: ServiceSpec =
    ServiceSpec { name: "redis-nofsync", port: 16400, command: |place| redis(place, &[]), ..REDIS_FSYNC };

/// A replica of [`REDIS_FSYNC`], to see which writes are lost when it becomes the primary.
const REDIS_REPLICA: ServiceSpec = ServiceSpec {
    name: "redis-replica",
    port: 16510,
    command: |place| redis(place, &["--replicaof", "127.0.0.1", &REDIS_FSYNC.port.to_string()]),
    after: Some(&REDIS_FSYNC),
    ready: |place| probe::ask(place.port, "INFO replication\r\n", "master_link_status:up"),
    ..REDIS_FSYNC
};

/// One of the independent servers of Redlock.
const fn redlock(name: &'static str, port: u16) -> ServiceSpec {
    ServiceSpec { name, family: "redlock", port, ..REDIS_NOFSYNC }
}

/// One node of etcd with default settings: it syncs each entry.
pub(crate) const ETCD: ServiceSpec = ServiceSpec {
    name: "etcd",
    family: "etcd",
    port: 16410,
    needs: &[Need { program: "etcd", package: "etcd-server", used_by: "the service etcd" }],
    version: |_| command("etcd", &["--version"]),
    prepare: nothing,
    command: |place| etcd(place, &[place.port]),
    ends_by: Signal::SIGTERM,
    after: None,
    ready: |place| probe::ask(place.port, "GET /health HTTP/1.0\r\n\r\n", "\"health\":\"true\""),
};

/// One node of ZooKeeper with default settings: it syncs each transaction.
pub(crate) const ZOOKEEPER: ServiceSpec = ServiceSpec {
    name: "zookeeper",
    family: "zookeeper",
    port: 16420,
    needs: &[
        Need::of(zookeeper::JAVA, "the service zookeeper"),
        Need::of(zookeeper::CLASSES, "the service zookeeper"),
    ],
    version: |_| command("dpkg-query", &["--show", "--showformat=${Version}", "zookeeper"]),
    prepare: |place| zookeeper_settings(place, ""),
    // The heap is large enough for the 100,000 locks of the benchmark.
    command: |place| zookeeper::line(&place.folder.join("zoo.cfg"), &["-Xmx1g"]).detached(),
    ends_by: Signal::SIGTERM,
    after: None,
    ready: |place| probe::ask(place.port, "srvr", "Mode: standalone"),
};

/// PostgreSQL with default settings: it syncs each transaction. The superuser `postgres` needs no password.
const POSTGRES: ServiceSpec = ServiceSpec {
    name: "postgres",
    family: "postgres",
    port: 16490,
    needs: &[
        Need::of(postgres::SERVER, "the service postgres"),
        Need::of(postgres::PSQL, "the service postgres, to see whether it answers"),
        SETPRIV,
    ],
    version: |_| version_of(postgres::SERVER.name),
    prepare: |place| postgres::initialise(&place.data()),
    command: |place| postgres::line(place.port, &place.data()).detached(),
    // SIGTERM would wait until the last client has disconnected.
    ends_by: Signal::SIGINT,
    after: None,
    ready: postgres_ready,
};

/// MariaDB, which syncs each transaction. The superuser `root` needs no password.
const MARIADB: ServiceSpec = ServiceSpec {
    name: "mariadb",
    family: "mariadb",
    port: 16620,
    needs: &[
        Need::of(mariadb::SERVER, "the service mariadb"),
        Need::of(mariadb::CLIENT, "the service mariadb, to see whether it answers"),
        SETPRIV,
    ],
    version: |_| command(mariadb::SERVER.name, &["--version"]),
    prepare: |place| mariadb::initialise(&place.data()),
    command: |place| mariadb::line(place.port, &place.data()).detached(),
    ends_by: Signal::SIGTERM,
    after: None,
    ready: |place| {
        mariadb::ask_client(place.port, &["--execute", "CREATE DATABASE IF NOT EXISTS app"]).map(|_| ())
    },
};

/// A connection pool for [`POSTGRES`] in transaction mode: after each transaction of a client, another client
/// may use the same connection to the server.
const PGBOUNCER: ServiceSpec = ServiceSpec {
    name: "pgbouncer",
    family: "pgbouncer",
    port: 16500,
    needs: &[Need::of(pgbouncer::SERVER, "the service pgbouncer"), SETPRIV],
    version: |_| version_of(pgbouncer::SERVER.name),
    prepare: |place| {
        pgbouncer::write_settings(&place.folder, place.port, POSTGRES.port, &[]);
        Ok(())
    },
    command: |place| pgbouncer::line(&place.folder).detached(),
    ends_by: Signal::SIGTERM,
    after: Some(&POSTGRES),
    ready: postgres_ready,
};

/// An emulator of Amazon DynamoDB, without data: `lockkeeper dynamodb init` makes a table.
const DYNAMODB: ServiceSpec = ServiceSpec {
    name: "dynamodb",
    family: "dynamodb",
    port: 16610,
    needs: &[Need::of(PYTHON, "the service dynamodb"), PIP],
    version: |_| python(&["-c", "import moto; print(moto.__version__)"]),
    prepare: |place| {
        foreign::install(&[RIG.to_owned()])?;
        let file = place.folder.join(MOTO_FILE);
        fs::write(&file, MOTO).map_err(|error| format!("cannot write {}: {error}", file.display()))
    },
    command: |place| {
        let mut moto = python(&[]);
        moto.arg(place.folder.join(MOTO_FILE)).arg(place.port.to_string());
        moto
    },
    ends_by: Signal::SIGTERM,
    after: None,
    ready: |place| probe::ask(place.port, "GET /moto-api/ HTTP/1.0\r\n\r\n", "200 OK"),
};

/// A store with S3's API: SeaweedFS, from PyPI. It takes unsigned requests, and has the bucket `lockkeeper`.
const S3: ServiceSpec = ServiceSpec {
    name: "s3",
    family: "s3",
    port: 16630,
    needs: &[PIP],
    version: |_| command(weed(), &["version"]),
    prepare: |_| foreign::installed(foreign::SEAWEEDFS).map(drop),
    command: |place| {
        let ports = std::array::from_fn(|part| place.port + part as u16);
        seaweedfs::line(&weed(), ports, &place.data()).detached()
    },
    // At SIGTERM it waits for the streams between its own parts, which do not end.
    ends_by: Signal::SIGKILL,
    after: None,
    ready: |place| seaweedfs::prepare(place.port),
};

/// The program of SeaweedFS.
fn weed() -> PathBuf {
    foreign::root().unwrap_or_default().join(foreign::SEAWEEDFS).join("bin/weed")
}

/// Not `moto.py`, which would hide the package.
const MOTO_FILE: &str = "emulator.py";

/// Python with the packages from PyPI.
fn python(args: &[&str]) -> Command {
    let mut python = command("python3", args);
    // Without the folder, python3 reports that a package is missing.
    python.env("PYTHONPATH", foreign::root().unwrap_or_default().join(foreign::AWS));
    python
}

const SETPRIV: Need =
    Need { program: "setpriv", package: "util-linux", used_by: "the services that refuse to be root" };

const PIP: Need = Need {
    program: "pip3",
    package: "python3-pip",
    used_by: "the services dynamodb and s3, to install them",
};

/// All services, in the order of display.
pub(crate) const SERVICES: &[ServiceSpec] = &[
    REDIS_FSYNC,
    REDIS_NOFSYNC,
    REDIS_REPLICA,
    redlock("redlock-1", 16440),
    redlock("redlock-2", 16450),
    redlock("redlock-3", 16460),
    redlock("redlock-4", 16470),
    redlock("redlock-5", 16480),
    POSTGRES,
    PGBOUNCER,
    MARIADB,
    ETCD,
    ZOOKEEPER,
    DYNAMODB,
    S3,
];

fn nothing(_: &ServiceLocation) -> TaskResult {
    Ok(())
}

fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// An etcd node at `place`, in a cluster whose nodes serve clients on `ports` and each other on the next
/// higher ports.
pub(crate) fn etcd(place: &ServiceLocation, ports: &[u16]) -> Command {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let (clients, peers) = (url(place.port), url(place.port + 1));
    let nodes: Vec<String> = ports.iter().map(|port| format!("node-{port}={}", url(port + 1))).collect();
    let mut command = Command::new("etcd");
    command.args(["--name", &format!("node-{}", place.port)]);
    command.arg("--data-dir").arg(place.data());
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &nodes.join(",")]);
    command
}

/// Writes the settings file of ZooKeeper at `place`: our usual settings, then `more`.
pub(crate) fn zookeeper_settings(place: &ServiceLocation, more: &str) -> TaskResult {
    // The benchmark's holds have a ttl of two minutes.
    let more = format!("maxSessionTimeout=300000\n{more}");
    let settings = zookeeper::settings(place.port, &place.data(), 2000, &more);
    let file = place.folder.join("zoo.cfg");
    fs::write(&file, settings).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

fn redis(place: &ServiceLocation, settings: &[&str]) -> Command {
    redis::line(place.port, &place.data(), settings).detached()
}

fn redis_version(_: &ServiceLocation) -> Command {
    version_of(redis::SERVER.name)
}

/// The command that prints the version of `program`. Debian installs some programs in folders that only the
/// rig searches.
fn version_of(program: &str) -> Command {
    let mut command = Command::new(lockkeeper_rig::find(program).unwrap_or_else(|| program.into()));
    command.arg("--version");
    command
}

fn postgres_ready(place: &ServiceLocation) -> Result<(), String> {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", place.port);
    postgres::psql(&url, "select 1").map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    /// The ports that these programs use when Debian starts them.
    const DEFAULT_PORTS: [u16; 8] = [6379, 2379, 2380, 2181, 2888, 3888, 5432, 6432];
    /// The start of Linux' ephemeral port range.
    const EPHEMERAL_FROM: u16 = 32768;

    fn nowhere() -> ServiceLocation {
        ServiceLocation { folder: "/nowhere".into(), port: 1 }
    }

    #[test]
    fn service_names_and_ports_are_unique_and_needs_are_listed() {
        let names: BTreeSet<&str> = SERVICES.iter().map(|service| service.name).collect();
        assert_eq!(names.len(), SERVICES.len(), "two services have one name");
        let ports: BTreeSet<u16> = SERVICES.iter().map(|service| service.port).collect();
        assert_eq!(ports.len(), SERVICES.len(), "two services share a port");
        for service in SERVICES {
            let ServiceSpec { name, family, port, needs, .. } = service;
            assert!(!name.is_empty() && name.starts_with(family), "{name}, {family}");
            assert!(port % 10 == 0 && (1024..EPHEMERAL_FROM - 10).contains(port), "{name}: {port}");
            assert!(!DEFAULT_PORTS.iter().any(|other| (*port..port + 10).contains(other)), "{name}: {port}");
            assert!(!needs.is_empty(), "{name} comes from nowhere");
            for Need { program, package, used_by } in *needs {
                assert!(
                    !program.is_empty() && !package.is_empty() && !used_by.is_empty(),
                    "{name}: {program}"
                );
            }
            assert!(!(service.version)(&nowhere()).get_program().is_empty(), "{name}");
        }
    }

    #[test]
    fn services_are_listed_after_their_dependencies() {
        for (place, service) in SERVICES.iter().enumerate() {
            if let Some(needed) = service.after {
                assert!(SERVICES[..place].iter().any(|other| other.name == needed.name), "{}", service.name);
            }
        }
    }

    #[test]
    fn each_service_uses_its_own_folder_and_port_on_loopback() {
        for service in SERVICES {
            let root = tempfile::tempdir().unwrap();
            // Some services run as another user, who must be able to traverse the folder.
            fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
            let place = ServiceLocation { folder: root.path().join(service.name), port: service.port };
            fs::create_dir_all(place.data()).unwrap();
            (service.prepare)(&place).unwrap();
            let command = (service.command)(&place);
            let args: Vec<&Path> = command.get_args().map(Path::new).collect();
            let folder = place.folder.to_str().unwrap();
            let has_folder = args.iter().any(|arg| arg.to_str().is_some_and(|arg| arg.contains(folder)));
            assert!(has_folder, "{}: {args:?}", service.name);
            let written = ["zoo.cfg", "pgbouncer.ini", MOTO_FILE]
                .map(|name| fs::read_to_string(place.folder.join(name)));
            let told = format!("{args:?}\n{written:?}");
            assert!(told.contains(&place.port.to_string()), "{} has no port: {told}", service.name);
            assert!(told.contains("127.0.0.1"), "{} does not keep to loopback: {told}", service.name);
        }
    }

    #[test]
    fn no_service_is_ready_before_it_is_started() {
        for service in SERVICES {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let place = ServiceLocation { port, ..nowhere() };
            assert!((service.ready)(&place).is_err(), "{}", service.name);
        }
    }
}
