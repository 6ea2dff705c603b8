//! The files of a release: the archive, the Debian package and the RPM, installed below a directory of the
//! test, and used.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Runs a program; returns what it prints.
#[track_caller]
fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes the files of a release of this build, and returns their folder. Uses the programs that `cargo xtask
/// test` has built beside `lockkeeper`, without their symbols, which take minutes to compress.
fn release(test: &Path) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().unwrap();
    let stripped = TempDir::new().unwrap();
    for program in ["lockkeeper", "lockkeeper-lab"] {
        ran(Command::new("strip").arg("-o").arg(stripped.path().join(program)).arg(built.join(program)));
    }
    let out = test.join("out");
    let sign = format!("sed -n -e w{}", test.join("signature").display());
    // The packages are unpacked at once. The signature is a copy.
    ran(Command::new(built.join("xtask"))
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .env("SOURCE_DATE_EPOCH", "1800000000")
        .args(["dist", "--sign", &sign, "--programs"])
        .arg(stripped.path())
        .arg("--out")
        .arg(&out));
    out
}

/// The file of a release whose name ends so.
fn file(out: &Path, end: &str) -> PathBuf {
    let mut found = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    found
        .find(|path| path.to_string_lossy().ends_with(end))
        .unwrap_or_else(|| panic!("no file ends with {end}"))
}

/// Takes a lock with the program that is installed below a prefix, and looks at what else is there.
#[track_caller]
fn is_complete(prefix: &Path) {
    let locks = TempDir::new().unwrap();
    let program = prefix.join("bin/lockkeeper");
    let greeting = ran(Command::new(&program)
        .args(["run", "demo", "--", "echo", "hello"])
        .env("LOCKKEEPER_URL", format!("file://{}", locks.path().display())));
    assert_eq!(greeting, "hello\n");
    let listed = ran(Command::new(&program).arg("pitfalls").env("PATH", "").env_remove("LOCKKEEPER_URL"));
    assert!(listed.contains("no-fence"), "`pitfalls` finds the lab beside it: {listed}");
    for file in [
        "lib/systemd/system/lockkeeper.service",
        "lib/systemd/system/lockkeeper-job@.service",
        "share/bash-completion/completions/lockkeeper",
        "share/doc/lockkeeper/LICENSE-MIT",
        "share/fish/vendor_completions.d/lockkeeper.fish",
        "share/man/man1/lockkeeper-serve.1",
        "share/zsh/vendor-completions/_lockkeeper",
    ] {
        assert!(prefix.join(file).is_file(), "{file} is missing");
    }
}

/// A program of another module takes the client for Go from the release's module proxy.
fn go_module_is_usable(out: &Path, test: &Path) {
    let archive =
        file(out, ".tar.gz").with_file_name(format!("lockkeeper-go-{}.tar.gz", env!("CARGO_PKG_VERSION")));
    ran(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(test));
    let program = test.join("program");
    std::fs::create_dir(&program).unwrap();
    const MODULE: &str = "github.com/lockkeeper/lockkeeper/clients/go";
    let version = env!("CARGO_PKG_VERSION");
    std::fs::write(
        program.join("go.mod"),
        format!("module example\n\ngo 1.19\n\nrequire {MODULE} v{version}\n"),
    )
    .unwrap();
    std::fs::write(
        program.join("main.go"),
        format!("package main\n\nimport _ \"{MODULE}\"\n\nfunc main() {{}}\n"),
    )
    .unwrap();
    ran(Command::new("go")
        .args(["build", "-modcacherw", "-mod=mod", "-o", "program", "."])
        .env("GOPROXY", format!("file://{}", test.join("proxy").display()))
        .env("GONOSUMDB", "*")
        .env("GOFLAGS", "-modcacherw")
        .env("GOMODCACHE", test.join("modules"))
        .current_dir(&program));
}

#[test]
fn release_installs_from_an_archive_and_from_packages() {
    let test = TempDir::new().unwrap();
    let out = release(test.path());
    let (archive, package) = (file(&out, "-linux.tar.gz"), file(&out, ".deb"));
    let listed = ran(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&out));
    for end in [".tar.gz: OK", ".deb: OK", ".rpm: OK", ".jar: OK", ".cdx.json: OK"] {
        assert!(listed.contains(end), "{listed}");
    }
    assert_eq!(
        std::fs::read(out.join("SHA256SUMS")).unwrap(),
        std::fs::read(test.path().join("signature")).unwrap()
    );
    assert!(
        ran(Command::new("jar").args(["--list", "--file"]).arg(file(&out, ".jar")))
            .contains("/Lockkeeper.class")
    );
    go_module_is_usable(&out, test.path());

    let unpacked = test.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    ran(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&unpacked));
    let folders: Vec<_> = std::fs::read_dir(&unpacked).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [folder] = &folders[..] else { panic!("not one folder: {folders:?}") };
    is_complete(folder);

    let installed = test.path().join("installed");
    ran(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&installed));
    is_complete(&installed.join("usr"));
    let unit = std::fs::read_to_string(installed.join("usr/lib/systemd/system/lockkeeper.service")).unwrap();
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")?.split(' ').next());
    assert!(
        program.is_some_and(|program| installed.join(program.trim_start_matches('/')).is_file()),
        "{unit}"
    );
    let field = |name: &str| ran(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name));
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").contains("libc6 (>= 2."), "{}", field("Depends"));

    let rpm = file(&out, ".rpm");
    let field = |what: &str| ran(Command::new("rpm").args(["--query", what, "--package"]).arg(&rpm));
    assert!(field("--requires").contains("glibc >= 2."), "{}", field("--requires"));
    assert!(field("--info").contains("Build Host  : localhost"), "{}", field("--info"));
    ran(Command::new("rpm2archive").arg("-n").arg(&rpm));
    let installed = test.path().join("of the rpm");
    std::fs::create_dir(&installed).unwrap();
    let archive = rpm.with_extension("rpm.tar");
    ran(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&installed));
    is_complete(&installed.join("usr"));
}
