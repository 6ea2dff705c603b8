//! `cargo xtask dist`: what is installed on a machine, as an archive, a Debian package and an RPM; the
//! packages of the bindings and clients for other languages; a bill of materials; and the checksums of all,
//! which a command may sign. Files depend on the sources alone, so that everybody can build and compare them.
//!
//! The first three contain the same tree below their prefix: the programs with all their features, man pages
//! and completions, and the systemd unit. The packages are made by dpkg-deb and rpmbuild, which Debian has:
//! cargo-deb would take minutes to build on each machine that runs the tests.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::TaskResult;
use crate::features;
use crate::foreign;
use crate::process::{cargo, output, run};
use crate::sbom;

/// What to pack, and where to put it.
#[derive(Args)]
pub(crate) struct Dist {
    /// Pack the programs in this directory, instead of building them; and no bindings
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Sign the checksums: this shell command gets the path of SHA256SUMS as its last argument
    #[arg(long, value_name = "COMMAND")]
    sign: Option<String>,
    /// Build everything twice, and fail if the files differ
    #[arg(long)]
    check_reproducible: bool,
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
const RELOAD: &str = "if [ -d /run/systemd/system ]; then systemctl --system daemon-reload || true; fi";

const SUMMARY: &str = "distributed locks that keep their promise even when a holder stalls";
const DESCRIPTION: &str = "\
The command `lockkeeper`, which runs a job under a lock of Redis, PostgreSQL, a directory or its own service, and that service;
`lockkeeper-lab`, which plays mistakes with locks on real servers. The unit lockkeeper.service is neither enabled nor started by
the installation.";
const HOMEPAGE: &str = "https://github.com/lockkeeper/lockkeeper";

pub(crate) fn make(choice: &Dist) -> TaskResult {
    let metadata = features::metadata()?;
    let version = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "lockkeeper-cli")
        .map(|package| package.version.to_string())
        .ok_or_else(|| "the workspace has no package lockkeeper-cli".to_owned())?;
    let target = metadata.target_directory.as_std_path();
    let release = Release::of(version, target.to_owned())?;
    let files = release.make(choice.programs.as_deref(), &choice.out)?;
    if choice.check_reproducible {
        let again = Release { target: target.join("again"), ..release };
        let out = choice.out.join("again");
        let others = again.make(choice.programs.as_deref(), &out)?;
        same(&files, &others)?;
        fresh(&out)?;
    }
    let sums = choice.out.join("SHA256SUMS");
    let names = files.iter().filter_map(|file| file.file_name());
    let text = output(Command::new("sha256sum").args(names).current_dir(&choice.out))?;
    write(&sums, format!("{text}\n").as_bytes(), false)?;
    if let Some(sign) = &choice.sign {
        run(Command::new("sh").args(["-ec", &format!("{sign} \"$1\""), "sign"]).arg(&sums))?;
    }
    for file in files {
        println!("{}", file.display());
    }
    Ok(())
}

/// What all files of a release have in common.
struct Release {
    version: String,
    /// The version and the commit, for `--version`.
    shown_version: String,
    /// The time of the commit, in seconds since 1970: that of all files.
    epoch: String,
    /// Where cargo builds.
    target: PathBuf,
}

impl Release {
    /// The release of the commit that is checked out, or of `SOURCE_DATE_EPOCH` where there is none.
    fn of(version: String, target: PathBuf) -> TaskResult<Self> {
        let git = |args: &[&str]| output(Command::new("git").args(args));
        let (shown_version, epoch) = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => (version.clone(), epoch),
            Err(_) => {
                let commit = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])?;
                (format!("{version} ({commit})"), git(&["log", "-1", "--format=%ct"])?)
            }
        };
        Ok(Self { version, shown_version, epoch, target })
    }

    /// Makes all files, and returns them.
    fn make(&self, programs: Option<&Path>, out: &Path) -> TaskResult<Vec<PathBuf>> {
        fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
        let mut files = Vec::new();
        let programs = match programs {
            Some(programs) => programs.to_owned(),
            None => {
                let mut cargo = self.building(cargo())?;
                cargo.args(["build", "--profile", "dist", "--locked", "--features", FEATURES]);
                run(cargo.args(["--package", "lockkeeper-cli", "--package", "lockkeeper-lab", "--bins"]))?;
                let fresh = fresh(&out.join("bindings"))?;
                fs::create_dir_all(&fresh).map_err(|error| format!("{}: {error}", fresh.display()))?;
                self.wheel(&fresh)?;
                self.npm(&fresh)?;
                files.extend(moved(&fresh, out)?);
                self.target.join("dist")
            }
        };
        let name = format!("lockkeeper-{}-{ARCH}-{OS}", self.version);
        files.push(self.jar(out)?);
        files.push(self.go_module(out)?);
        files.push(self.bill(out)?);
        files.push(self.archive(&programs, out, &name)?);
        files.push(self.debian_package(&programs, out)?);
        files.push(self.rpm(&programs, out)?);
        Ok(files)
    }

    /// The command with what makes its result depend on the sources alone: no paths and no times of this
    /// machine.
    fn building(&self, mut command: Command) -> TaskResult<Command> {
        let shown = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
        let here = std::env::current_dir().map_err(|error| format!("the current folder: {error}"))?;
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
        let paths = [
            (shown(Some(self.target.clone())), "/target"),
            (shown(home), "/cargo"),
            (shown(Some(here)), "/lockkeeper"),
        ];
        let paths: Vec<_> = paths.iter().filter_map(|(path, to)| Some((path.as_deref()?, to))).collect();
        // The last one that fits is used.
        let flags = |option: &str| {
            let flags = paths.iter().rev().map(|(path, to)| format!("{option}={path}={to}"));
            flags.collect::<Vec<_>>().join(" ")
        };
        command.env("RUSTFLAGS", flags("--remap-path-prefix")).env("CFLAGS", flags("-ffile-prefix-map"));
        command.env("CARGO_TARGET_DIR", &self.target).env("LOCKKEEPER_VERSION", &self.shown_version);
        command.env("SOURCE_DATE_EPOCH", &self.epoch).env("CARGO_INCREMENTAL", "0");
        Ok(command)
    }

    /// Builds the wheel of the Python package, for this machine's kind of processor and its libc or a later
    /// one.
    fn wheel(&self, out: &Path) -> TaskResult {
        let maturin = foreign::installed(foreign::MATURIN)?.join("bin/maturin");
        let mut maturin = self.building(Command::new(maturin))?;
        maturin.args(["build", "--locked", "--manifest-path", "bindings/python/Cargo.toml", "--out"]);
        run(maturin.arg(out))
    }

    /// Builds the npm package, for this machine's kind of processor and its libc or a later one.
    fn npm(&self, out: &Path) -> TaskResult {
        let mut cargo = self.building(cargo())?;
        cargo.args(["build", "--profile", "bindings", "--locked", "--package", "lockkeeper-node", "--lib"]);
        run(&mut cargo)?;
        let module = self.target.join("bindings/liblockkeeper_node.so");
        run(Command::new("bindings/node/pack.sh").arg(module).arg(out))
    }

    /// The client for Java.
    fn jar(&self, out: &Path) -> TaskResult<PathBuf> {
        const SOURCES: &str = "clients/java/src/main/java/io/github/lockkeeper";
        let classes = fresh(&out.join("java"))?;
        run(Command::new("javac")
            .args(["--release", "17", "-d"])
            .arg(&classes)
            .args(files_in(Path::new(SOURCES))?))?;
        let file = out.join(format!("lockkeeper-{}.jar", self.version));
        let mut jar = self.zip(&file)?;
        for class in files_in(&classes)? {
            let class = class.strip_prefix(&classes).map_err(|error| error.to_string())?;
            jar.arg("-C").arg(&classes).arg(class);
        }
        run(&mut jar)?;
        Ok(file)
    }

    /// The client for Go, as the tree of a module proxy: `GOPROXY=file:///…`.
    fn go_module(&self, out: &Path) -> TaskResult<PathBuf> {
        const SOURCES: &str = "clients/go";
        let manifest = read(&Path::new(SOURCES).join("go.mod"))?;
        let module =
            manifest.lines().find_map(|line| line.strip_prefix("module ")).ok_or("go.mod names no module")?;
        let root = fresh(&out.join("go"))?;
        let (version, tree) = (format!("v{}", self.version), format!("{module}@v{}", self.version));
        let mut files = Vec::new();
        for file in files_in(Path::new(SOURCES))? {
            let to = Path::new(&tree).join(file.strip_prefix(SOURCES).map_err(|error| error.to_string())?);
            write(
                &root.join(&to),
                &fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?,
                false,
            )?;
            files.push(to);
        }
        let proxy = root.join("proxy");
        let at = proxy.join(module).join("@v");
        let info = format!("{{\"Version\":\"{version}\",\"Time\":\"{}\"}}", self.time("%Y-%m-%dT%H:%M:%SZ")?);
        write(&at.join("list"), format!("{version}\n").as_bytes(), false)?;
        write(&at.join(format!("{version}.info")), info.as_bytes(), false)?;
        write(&at.join(format!("{version}.mod")), manifest.as_bytes(), false)?;
        let mut zip = self.zip(&at.join(format!("{version}.zip")))?;
        // Only files: Go takes no entries of folders.
        for file in files {
            zip.arg("-C").arg(&root).arg(file);
        }
        run(&mut zip)?;
        let file = out.join(format!("lockkeeper-go-{}.tar.gz", self.version));
        self.tar(&file, &root, "proxy")?;
        Ok(file)
    }

    /// Begins a zip file without a manifest; each file follows as `-C FOLDER FILE`.
    fn zip(&self, file: &Path) -> TaskResult<Command> {
        let mut jar = Command::new("jar");
        jar.args(["--create", "--no-manifest", "--date", &self.time("%Y-%m-%dT%H:%M:%S+00:00")?, "--file"]);
        jar.arg(file);
        Ok(jar)
    }

    /// The time of the commit.
    fn time(&self, format: &str) -> TaskResult<String> {
        output(
            Command::new("date")
                .args(["--utc", "--date"])
                .arg(format!("@{}", self.epoch))
                .arg(format!("+{format}")),
        )
    }

    /// The bill of materials of the programs.
    fn bill(&self, out: &Path) -> TaskResult<PathBuf> {
        let time = self.time("%Y-%m-%dT%H:%M:%SZ")?;
        let bill = sbom::bill(&["lockkeeper-cli", "lockkeeper-lab"], FEATURES, &self.version, &time)?;
        let file = out.join(format!("lockkeeper-{}.cdx.json", self.version));
        let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
        write(&file, text.as_bytes(), false)?;
        Ok(file)
    }

    /// A gzipped tar archive whose one folder can be copied to `/usr/local`.
    fn archive(&self, programs: &Path, out: &Path, name: &str) -> TaskResult<PathBuf> {
        let root = fresh(&out.join("archive"))?;
        fill(&root.join(name), programs)?;
        let file = out.join(format!("{name}.tar.gz"));
        self.tar(&file, &root, name)?;
        Ok(file)
    }

    fn tar(&self, file: &Path, root: &Path, name: &str) -> TaskResult {
        run(Command::new("tar")
            .args(["--create", "--use-compress-program=gzip --no-name", "--sort=name"])
            .args(["--owner=0", "--group=0", "--numeric-owner", &format!("--mtime=@{}", self.epoch)])
            .arg("--file")
            .arg(file)
            .arg("--directory")
            .arg(root)
            .arg(name))
    }

    fn debian_package(&self, programs: &Path, out: &Path) -> TaskResult<PathBuf> {
        let version = &self.version;
        let root = fresh(&out.join("debian"))?;
        fill(&root.join("usr"), programs)?;
        let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
        let libc = libc_version()?;
        let control = format!(
            "Package: lockkeeper\nVersion: {version}\nArchitecture: {architecture}\nSection: admin\nPriority: optional\n\
             Maintainer: The Lockkeeper developers <lockkeeper@lockkeeper.invalid>\nDepends: libc6 (>= {libc}), libgcc-s1\n\
             Homepage: {HOMEPAGE}\nDescription: {SUMMARY}\n {}\n",
            DESCRIPTION.replace('\n', "\n ")
        );
        write(&root.join("DEBIAN/control"), control.as_bytes(), false)?;
        for script in ["postinst", "postrm"] {
            let text = format!("#!/bin/sh\nset -e\n{RELOAD}\n");
            write(&root.join("DEBIAN").join(script), text.as_bytes(), true)?;
        }
        let file = out.join(format!("lockkeeper_{version}_{architecture}.deb"));
        run(Command::new("dpkg-deb")
            .env("SOURCE_DATE_EPOCH", &self.epoch)
            .args(["--root-owner-group", "--build"])
            .arg(&root)
            .arg(&file))?;
        Ok(file)
    }

    /// For distributions with RPM, of this machine's libc or a later one. Nothing in it is compiled here.
    fn rpm(&self, programs: &Path, out: &Path) -> TaskResult<PathBuf> {
        let version = &self.version;
        let out = fs::canonicalize(out).map_err(|error| format!("{}: {error}", out.display()))?;
        let root = fresh(&out.join("rpm"))?;
        let tree = root.join("tree");
        fill(&tree.join("usr"), programs)?;
        let paths = files_in(&tree)?.into_iter().map(|file| {
            let path = file.strip_prefix(&tree).map(Path::to_owned).map_err(|error| error.to_string())?;
            // `rpmbuild` compresses man pages.
            let star = if path.starts_with("usr/share/man") { "*" } else { "" };
            Ok(format!("/{}{star}\n", path.display()))
        });
        let paths = paths.collect::<TaskResult<String>>()?;
        let spec = format!(
            "Name: lockkeeper\nVersion: {version}\nRelease: 1\nSummary: {SUMMARY}\nLicense: Apache-2.0 OR MIT\n\
             URL: {HOMEPAGE}\nAutoReqProv: no\nRequires: glibc >= {}, libgcc\n%description\n{DESCRIPTION}\n\
             %install\ncp -a {}/. %{{buildroot}}\n%post\n{RELOAD}\n%postun\n{RELOAD}\n%files\n{paths}",
            libc_version()?,
            tree.display()
        );
        let file = root.join("lockkeeper.spec");
        write(&file, spec.as_bytes(), false)?;
        let name = format!("lockkeeper-{version}-1.{ARCH}.rpm");
        let defines = [
            format!("_topdir {}/build", root.display()),
            format!("_rpmdir {}", out.display()),
            format!("_rpmfilename {name}"),
            "_buildhost localhost".to_owned(),
            "use_source_date_epoch_as_buildtime 1".to_owned(),
            "clamp_mtime_to_source_date_epoch 1".to_owned(),
            // Programs stay as they are.
            "__os_install_post %{nil}".to_owned(),
            "debug_package %{nil}".to_owned(),
            "_build_id_links none".to_owned(),
            "_binary_payload w6.gzdio".to_owned(),
        ];
        let mut rpmbuild = Command::new("rpmbuild");
        rpmbuild.env("SOURCE_DATE_EPOCH", &self.epoch).args(["-bb", "--quiet"]);
        run(rpmbuild.args(defines.iter().flat_map(|define| ["--define", define])).arg(&file))?;
        Ok(out.join(name))
    }
}

/// The version of this machine's libc: the programs may need what it has.
fn libc_version() -> TaskResult<String> {
    // `glibc 2.36`.
    let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    Ok(libc.rsplit(' ').next().unwrap_or_default().to_owned())
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

/// Moves the files of a folder, and returns them.
fn moved(from: &Path, to: &Path) -> TaskResult<Vec<PathBuf>> {
    let mut moved = Vec::new();
    for file in files_in(from)? {
        let to = to.join(file.file_name().unwrap_or_default());
        fs::rename(&file, &to).map_err(|error| format!("{}: {error}", file.display()))?;
        moved.push(to);
    }
    Ok(moved)
}

/// The files below a folder, sorted.
fn files_in(folder: &Path) -> TaskResult<Vec<PathBuf>> {
    let problem = |error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() { files.extend(files_in(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}

/// Compares the files of two builds.
fn same(files: &[PathBuf], others: &[PathBuf]) -> TaskResult {
    let bytes = |file: &PathBuf| fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let mut different = Vec::new();
    for (file, other) in files.iter().zip(others) {
        if file.file_name() != other.file_name() || bytes(file)? != bytes(other)? {
            different.push(format!("{} and {}", file.display(), other.display()));
        }
    }
    if different.is_empty() && files.len() == others.len() {
        eprintln!("both builds have made the same {} files", files.len());
        return Ok(());
    }
    Err(format!("two builds of the same sources differ:\n{}", different.join("\n")))
}

fn read(file: &Path) -> TaskResult<String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
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
