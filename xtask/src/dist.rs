//! `cargo xtask dist`: what is installed on a machine, as an archive and as a Debian package; and the
//! packages of the bindings and clients for other languages.
//!
//! The first two contain the same tree below their prefix: the programs with all their features, man pages
//! and completions, and the systemd unit. The Debian package is made by dpkg-deb alone, which every Debian
//! has: cargo-deb would take minutes to build on each machine that runs the tests.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::TaskResult;
use crate::features;
use crate::foreign;
use crate::process::{cargo, output, run};

/// What to pack, and where to put it.
#[derive(Args)]
pub(crate) struct Dist {
    /// Pack the programs in this directory, instead of building them; and no bindings
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// The directory for the files; created if it doesn't exist
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
}

/// The programs, and the features that they are built with.
const PROGRAMS: [&str; 2] = ["lockkeeper", "lockkeeper-lab"];
const FEATURES: &str = "lockkeeper-cli/all";

/// The files of the tree that are copied as they are, by their place below the prefix.
const COPIED: [(&str, &str); 8] = [
    ("packaging/systemd/lockkeeper.service", "lib/systemd/system/lockkeeper.service"),
    ("packaging/systemd/lockkeeper-tls.conf", "share/doc/lockkeeper/lockkeeper-tls.conf"),
    ("packaging/systemd/lockkeeper-job@.service", "lib/systemd/system/lockkeeper-job@.service"),
    ("README.md", "share/doc/lockkeeper/README.md"),
    ("CHANGELOG.md", "share/doc/lockkeeper/CHANGELOG.md"),
    ("LICENSE-APACHE", "share/doc/lockkeeper/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/doc/lockkeeper/LICENSE-MIT"),
    ("docs/operating.md", "share/doc/lockkeeper/operating.md"),
];

/// The shells with completions, and where each looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/lockkeeper"),
    ("zsh", "share/zsh/vendor-completions/_lockkeeper"),
    ("fish", "share/fish/vendor_completions.d/lockkeeper.fish"),
];

/// systemd reads its units again after an installation and after a removal.
const RELOAD: &str =
    "#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then systemctl --system daemon-reload || true; fi\n";

pub(crate) fn make(choice: &Dist) -> TaskResult {
    let metadata = features::metadata()?;
    let version = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "lockkeeper-cli")
        .map(|package| package.version.to_string())
        .ok_or_else(|| "the workspace has no package lockkeeper-cli".to_owned())?;
    let programs = match &choice.programs {
        Some(programs) => programs.clone(),
        None => {
            let mut cargo = cargo();
            cargo.args(["build", "--profile", "dist", "--locked", "--features", FEATURES]);
            run(cargo.args(["--package", "lockkeeper-cli", "--package", "lockkeeper-lab", "--bins"]))?;
            metadata.target_directory.join("dist").into()
        }
    };
    fs::create_dir_all(&choice.out).map_err(|error| format!("{}: {error}", choice.out.display()))?;
    let name = format!("lockkeeper-{version}-{ARCH}-{OS}");
    if choice.programs.is_none() {
        wheel(&choice.out)?;
        npm(&choice.out, metadata.target_directory.as_std_path())?;
    }
    let made = [archive(&programs, &choice.out, &name)?, package(&programs, &choice.out, &version)?];
    println!("{}", jar(&choice.out, &version)?.display());
    println!("{}\n{}", made[0].display(), made[1].display());
    Ok(())
}

/// Builds the wheel of the Python package, for this machine's kind of processor and its libc or a later one.
fn wheel(out: &Path) -> TaskResult {
    let maturin = foreign::installed(foreign::MATURIN)?.join("bin/maturin");
    run(Command::new(maturin)
        .args(["build", "--locked", "--manifest-path", "bindings/python/Cargo.toml", "--out"])
        .arg(out))
}

/// Builds the npm package, for this machine's kind of processor and its libc or a later one.
fn npm(out: &Path, target: &Path) -> TaskResult {
    run(cargo().args([
        "build",
        "--profile",
        "bindings",
        "--locked",
        "--package",
        "lockkeeper-node",
        "--lib",
    ]))?;
    let module = target.join("bindings/liblockkeeper_node.so");
    run(Command::new("bindings/node/pack.sh").arg(module).arg(out))
}

/// A gzipped tar archive whose one folder can be copied to `/usr/local`.
fn archive(programs: &Path, out: &Path, name: &str) -> TaskResult<PathBuf> {
    let root = fresh(&out.join("archive"))?;
    fill(&root.join(name), programs)?;
    let file = out.join(format!("{name}.tar.gz"));
    run(Command::new("tar")
        .args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg("--file")
        .arg(&file)
        .arg("--directory")
        .arg(&root)
        .arg(name))?;
    Ok(file)
}

fn package(programs: &Path, out: &Path, version: &str) -> TaskResult<PathBuf> {
    let root = fresh(&out.join("debian"))?;
    fill(&root.join("usr"), programs)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    // `glibc 2.36`: symbols of the library that this machine has may be in the program.
    let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let libc = libc.rsplit(' ').next().unwrap_or_default();
    let control = format!(
        "Package: lockkeeper\nVersion: {version}\nArchitecture: {architecture}\nSection: admin\nPriority: optional\n\
         Maintainer: The Lockkeeper developers <lockkeeper@lockkeeper.invalid>\nDepends: libc6 (>= {libc}), libgcc-s1\n\
         Homepage: https://github.com/lockkeeper/lockkeeper\n\
         Description: distributed locks that keep their promise even when a holder stalls\n \
         The command `lockkeeper`, which runs a job under a lock of Redis, PostgreSQL, a directory or its own service,\n \
         and that service; `lockkeeper-lab`, which plays mistakes with locks on real servers. The unit lockkeeper.service is neither enabled nor started by the installation.\n"
    );
    write(&root.join("DEBIAN/control"), control.as_bytes(), false)?;
    for script in ["postinst", "postrm"] {
        write(&root.join("DEBIAN").join(script), RELOAD.as_bytes(), true)?;
    }
    let file = out.join(format!("lockkeeper_{version}_{architecture}.deb"));
    run(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&file))?;
    Ok(file)
}

/// The client for Java.
fn jar(out: &Path, version: &str) -> TaskResult<PathBuf> {
    const SOURCES: &str = "clients/java/src/main/java/io/github/lockkeeper";
    let problem = |error| format!("{SOURCES}: {error}");
    let files = fs::read_dir(SOURCES).map_err(problem)?;
    let files = files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>, _>>().map_err(problem)?;
    let classes = fresh(&out.join("java"))?;
    run(Command::new("javac").args(["--release", "17", "-d"]).arg(&classes).args(files))?;
    let file = out.join(format!("lockkeeper-{version}.jar"));
    run(Command::new("jar").args(["--create", "--file"]).arg(&file).arg("-C").arg(&classes).arg("."))?;
    Ok(file)
}

/// Fills the tree below a prefix.
fn fill(prefix: &Path, programs: &Path) -> TaskResult {
    for name in PROGRAMS {
        let program = programs.join(name);
        let contents = fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
        write(&prefix.join("bin").join(name), &contents, true)?;
    }
    let program = prefix.join("bin/lockkeeper");
    for (from, to) in COPIED {
        let contents = fs::read(from).map_err(|error| format!("{from}: {error}"))?;
        write(&prefix.join(to), &contents, false)?;
    }
    for (shell, to) in COMPLETIONS {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        write(&prefix.join(to), script.as_bytes(), false)?;
    }
    run(Command::new(&program).arg("man").arg(prefix.join("share/man/man1")))
}

/// An empty directory in the place of whatever was there.
fn fresh(directory: &Path) -> TaskResult<PathBuf> {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    Ok(directory.to_owned())
}

fn write(path: &Path, contents: &[u8], is_program: bool) -> TaskResult {
    use std::os::unix::fs::PermissionsExt;

    let problem = |error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(problem)?;
    }
    fs::write(path, contents).map_err(problem)?;
    let mode = if is_program { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(problem)
}
